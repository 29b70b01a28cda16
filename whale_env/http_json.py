"""One JSON request over HTTP, tried again where that may help. What is asked and what a reply means is the caller's."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException, InvalidURL
from typing import Any

from whale_env.errors import InputError, WhaleError
from whale_env.strict_json import read_json
from whale_env.wording import in_one_line

AGAIN = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""Statuses that may pass."""

FIRST_WAIT = 0.25
"""Seconds before the second try; each further wait doubles."""

MAX_REPLY = 32 << 20
"""Bytes of a reply that is read; a server may be broken or hostile."""

_LOGIN = re.compile(r"(?<=://)[^/\s?#@\"']+@")


class RequestError(WhaleError, RuntimeError):
    """No usable reply: one line that says why."""


def holds_login(text: str) -> bool:
    """Tells whether a text holds an address with a user's name or password (``http://me:word@host``)."""
    return _LOGIN.search(text) is not None


def without_login(text: str) -> str:
    """Returns a text in which no address has a user's name or password."""
    return _LOGIN.sub("", text)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would take the key in the headers to wherever the server says, and lose what is posted."""

    def redirect_request(self, *_: object) -> None:
        return None


_opener = urllib.request.build_opener(_NoRedirects)


def _value(response: Any, deadline: float) -> Any:
    """Reads a reply within the bound and the time, and returns its JSON value."""
    data = bytearray()
    while piece := response.read1(1 << 16):
        data += piece
        if len(data) > MAX_REPLY:
            raise InputError(f"it has more than {MAX_REPLY} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError("the reply does not end")
    left = response.length  # of what was announced
    if left:
        raise ConnectionError(f"the reply was cut off, {left} bytes before its end")
    return read_json(data.decode("utf-8"), lenient=True)


def post_json(
    url: str,
    body: Mapping[str, Any],
    *,
    headers: Mapping[str, str] | None = None,
    timeout: float = 30.0,
    tries: int = 3,
) -> Any:
    """Posts JSON and returns the JSON reply. Redirects are not followed.

    Args:
        url: Where to.
        body: What.
        headers: Further headers.
        timeout: Seconds for one try.
        tries: How often at most.

    Returns:
        The reply's value.

    Raises:
        RequestError: Refused, unreachable after all tries, or no JSON of bearable size.
    """
    request = urllib.request.Request(
        url,
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "Accept": "application/json", **(headers or {})},
    )
    shown = without_login(url)
    for left in reversed(range(tries)):
        try:
            with _opener.open(request, timeout=timeout) as response:
                return _value(response, time.monotonic() + timeout)
        except urllib.error.HTTPError as error:
            with error:
                moved = error.headers.get("Location") if 300 <= error.code < 400 else None
                why = f"{shown} refused the request: HTTP {error.code} {error.reason}"
                why += f"; it redirects to {without_login(moved)}, give that address" if moved else ""
            if error.code not in AGAIN or not left:
                raise RequestError(why) from None
        except InvalidURL:
            raise RequestError(f"{shown} is no address, or one with a password in it; leave that out") from None
        except (OSError, HTTPException) as error:
            if not left:
                reason = in_one_line(getattr(error, "reason", error)) or type(error).__name__
                raise RequestError(f"nothing answers at {shown}: {reason}. Is the server running?") from None
        except ValueError as error:
            raise RequestError(f"{shown} gave no JSON: {error}") from None
        time.sleep(FIRST_WAIT * 2 ** (tries - 1 - left))
    raise ValueError(f"tries must be at least 1, not {tries}")
