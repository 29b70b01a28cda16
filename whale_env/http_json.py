"""One JSON request over HTTP, tried again where that may help. What is asked and what a reply means is the caller's."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

from whale_env.errors import WhaleError

AGAIN = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
"""Statuses that may pass."""

FIRST_WAIT = 0.25
"""Seconds before the second try; each further wait doubles."""


class RequestError(WhaleError, RuntimeError):
    """No usable reply: one line that says why."""


def post_json(
    url: str,
    body: Mapping[str, Any],
    *,
    headers: Mapping[str, str] | None = None,
    timeout: float = 30.0,
    tries: int = 3,
) -> Any:
    """Posts JSON and returns the JSON reply.

    Args:
        url: Where to.
        body: What.
        headers: Further headers.
        timeout: Seconds for one try.
        tries: How often at most.

    Returns:
        The reply's value.

    Raises:
        RequestError: Refused, unreachable after all tries, or not JSON.
    """
    request = urllib.request.Request(
        url,
        json.dumps(body).encode(),
        {"Content-Type": "application/json", "Accept": "application/json", **(headers or {})},
    )
    for left in reversed(range(tries)):
        try:
            with urllib.request.urlopen(request, timeout=timeout) as response:
                return json.loads(response.read())
        except urllib.error.HTTPError as error:
            with error:
                why = f"{url} refused the request: HTTP {error.code} {error.reason}"
            if error.code not in AGAIN or not left:
                raise RequestError(why) from None
        except OSError as error:
            if not left:
                reason = str(getattr(error, "reason", error)) or type(error).__name__
                raise RequestError(f"nothing answers at {url}: {reason}. Is the server running?") from None
        except ValueError as error:
            raise RequestError(f"{url} gave no JSON: {error}") from None
        time.sleep(FIRST_WAIT * 2 ** (tries - 1 - left))
    raise ValueError(f"tries must be at least 1, not {tries}")
