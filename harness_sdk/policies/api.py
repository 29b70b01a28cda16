"""What the HTTP backends share: bounded concurrency, bounded answers, one layer of retries, and errors in one line.

Written for the official OpenAI and Anthropic SDKs, whose clients and exceptions have the same names. Their own retries
are off: they end where an answer begins, and one that is cut off or no JSON, or a stream that breaks, may pass as well
as a busy server. What is asked and how an answer is read is each backend's own.
"""

from __future__ import annotations

import asyncio
import importlib
import random
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from time import time
from typing import Any
from urllib.parse import urlsplit

from harness_sdk.policies.base import PolicyError, PromptRefusedError, PromptTooLongError
from harness_sdk.types import ParseFailure
from whale_env.errors import InputError, MissingPackageError
from whale_env.http_json import without_login
from whale_env.strict_json import read_json
from whale_env.types import ToolCall

FIRST_WAIT = 0.5
"""Seconds before the first retry; each further one doubles."""
LONGEST_WAIT = 60.0
MAX_ANSWER = 32 << 20
"""Bytes of an answer that is read; a server may be broken or hostile."""
RETRIED = frozenset({408, 409, 425, 429})
"""Client errors that may pass; all of 500 and above do as well."""

_TOO_LONG = re.compile(
    r"context.?length|context.?window|context size|prompt is too long|input is too long|too many tokens|maximum input",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class ApiConfig:
    """How a server is reached.

    Attributes:
        package: The SDK's module name, also the name of this project's extra that installs it.
        key_variable: Environment variable that holds the key when none is given.
        base_url: The server, or None for the SDK's default.
        concurrency: Requests at a time.
        timeout: Seconds for one attempt, from the first byte sent to the last received.
        retries: Attempts after the first.
    """

    package: str
    key_variable: str
    base_url: str | None = field(repr=False)  # may hold a password
    concurrency: int
    timeout: float
    retries: int

    def __post_init__(self) -> None:
        if self.concurrency < 1:
            raise InputError(f"concurrency must be at least 1, not {self.concurrency}")
        if not self.timeout > 0:
            raise InputError(f"timeout must be more than 0 seconds, not {self.timeout}")
        if self.retries < 0:
            raise InputError(f"retries must be at least 0, not {self.retries}")
        if self.base_url is not None and urlsplit(self.base_url).scheme not in ("http", "https"):
            raise InputError(f"base_url must begin with http:// or https://, not {without_login(self.base_url)!r:.60}")


class ContextLengthError(PromptTooLongError):
    """The server says, in its own words, that a prompt does not fit its model; ``tokens`` and ``limit`` are 0."""

    def __init__(self, reason: str) -> None:
        super().__init__(0, 0)
        self.args = (reason,)


class _Transient(Exception):
    """An attempt failed in a way that may pass."""

    def __init__(self, reason: str, wait: float | None = None) -> None:
        super().__init__(reason)
        self.wait = wait


class ApiClient:
    """Sends requests through one SDK client per event loop."""

    def __init__(self, config: ApiConfig, client_class: str, api_key: str | None) -> None:
        """Prepares a client; nothing is sent.

        Args:
            config: How to reach the server.
            client_class: Name of the SDK's asynchronous client class.
            api_key: The key; None reads the environment, and a server given by ``base_url`` may need none.

        Raises:
            MissingPackageError: The SDK is not installed.
            PolicyError: There is no key and the default server needs one.
        """
        import os

        try:
            self._sdk: Any = importlib.import_module(config.package)
        except ImportError as error:
            raise MissingPackageError(
                f"this policy needs the {config.package} package: pip install -e '.[{config.package}]'"
            ) from error
        key = api_key or os.environ.get(config.key_variable)
        if not key and config.base_url is None:
            raise PolicyError(
                f"no API key: set {config.key_variable} in the environment, or give base_url "
                "(on the command line --backend.url, for a proposer --search.proposer.url)"
            )
        self.config = config
        self.where = config.package if config.base_url is None else urlsplit(config.base_url).hostname or "the server"

        # The key lives in these closures and in the SDK's client, so that no repr or dump of this object shows it.
        def connect() -> Any:
            # Only some headers are dropped on a redirect to another server, and not every key is in one of those.
            http = self._sdk.DefaultAsyncHttpxClient(
                follow_redirects=False, timeout=config.timeout, event_hooks={"response": [self._read]}
            )
            return getattr(self._sdk, client_class)(
                api_key=key or "none",
                base_url=config.base_url,
                timeout=config.timeout,
                max_retries=0,
                http_client=http,
                default_headers={"Accept-Encoding": "identity"},  # what is small when packed may be huge
            )

        def redact(text: str) -> str:
            return without_login(text.replace(key, "[key]") if key else text)

        self._connect, self._redact = connect, redact
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Any = None
        self._slots = asyncio.Semaphore(config.concurrency)

    async def send(self, call: Callable[[Any], Awaitable[Any]]) -> dict[str, Any]:
        """Sends one request, again if it fails in a way that may pass.

        Args:
            call: Given the SDK's client, makes the request and returns its raw response, or its text.

        Returns:
            The JSON object that the server answered.

        Raises:
            ContextLengthError: The prompt does not fit the model.
            PolicyError: The server refused, or all attempts failed.
        """
        loop = asyncio.get_running_loop()
        if loop is not self._loop:  # connections belong to the loop that opened them
            self._loop, self._client = loop, self._connect()
            self._slots = asyncio.Semaphore(self.config.concurrency)
        async with self._slots:
            for attempt in range(self.config.retries + 1):
                try:
                    return await self._attempt(call)
                except _Transient as failure:
                    reason, asked = str(failure), failure.wait
                if attempt < self.config.retries:
                    wait = FIRST_WAIT * 2**attempt * random.uniform(0.5, 1.0)
                    await asyncio.sleep(min(max(wait, asked or 0.0), LONGEST_WAIT))
        raise PolicyError(f"{self.where}: {reason} (tried {self.config.retries + 1} times)")

    async def close(self) -> None:
        """Closes the connections of the running loop."""
        if self._client is not None and self._loop is asyncio.get_running_loop():
            await self._client.close()
        self._client = self._loop = None

    async def _read(self, response: Any) -> None:
        """Reads an answer, or what goes with an error, as far as the bound allows, before the SDK reads all of it."""
        encoding = response.headers.get("content-encoding", "identity")
        if encoding != "identity":
            raise PolicyError(f"{self.where}: the answer is packed ({encoding!r:.40}), which was not asked for")
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            return  # read piece by piece by who asked for it
        data = bytearray()
        async for piece in response.stream:
            data += piece
            if len(data) > MAX_ANSWER:
                raise PolicyError(f"{self.where}: the answer has more than {MAX_ANSWER} bytes")
        await response.stream.aclose()
        library = importlib.import_module(type(response).__module__.partition(".")[0])
        response.stream = library.ByteStream(bytes(data))

    async def _attempt(self, call: Callable[[Any], Awaitable[Any]]) -> dict[str, Any]:
        sdk = self._sdk
        try:
            async with asyncio.timeout(self.config.timeout):
                response = await call(self._client)
        except (TimeoutError, sdk.APITimeoutError):
            raise _Transient(f"no answer in {self.config.timeout:g} s") from None
        except sdk.APIStatusError as error:
            raise self._status(error) from None
        except sdk.APIConnectionError as error:
            if isinstance(error.__cause__, PolicyError):
                raise error.__cause__ from None
            raise _Transient(f"connection failed: {self._line(error.__cause__ or error)}") from None
        body = response.encode() if isinstance(response, str) else response.http_response.content
        shown = self._redact(body[:10_000].decode("utf-8", "replace"))
        try:
            answer = read_json(body.decode("utf-8"), lenient=True)
        except ValueError:
            raise _Transient(f"the answer is not JSON: {shown!r:.100}") from None
        if not isinstance(answer, dict):
            raise _Transient(f"the answer is not a JSON object: {shown!r:.100}")
        return answer

    def _status(self, error: Any) -> Exception:
        status: int = error.status_code
        reason = self._line(error)
        if 300 <= status < 400:
            moved = without_login(str(error.response.headers.get("location", "another address")))
            return PolicyError(f"{self.where}: redirects ({status}) to {moved}; give that address")
        if status in (401, 403):  # the server's own words may hold the key
            return PolicyError(f"{self.where}: refused the key ({status}); check {self.config.key_variable}")
        if status in (400, 413, 422) and _TOO_LONG.search(reason):
            return ContextLengthError(f"{self.where}: {reason}")
        if status in (400, 413, 422):
            return PromptRefusedError(f"{self.where}: {status} {reason}")
        if status in RETRIED or status >= 500:
            return _Transient(f"{status} {reason}", _retry_after(error.response.headers))
        return PolicyError(f"{self.where}: {status} {reason}")

    def _line(self, error: BaseException) -> str:
        """What an error says, in one line."""
        body = getattr(error, "body", None)
        inner = body.get("error", body) if isinstance(body, Mapping) else None
        said = inner.get("message") if isinstance(inner, Mapping) else None
        text = str(said or getattr(error, "message", None) or error).strip()
        return self._redact(" ".join(text.split()) or type(error).__name__)[:500]


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that the server asks to wait: a number or a date."""
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        return float(value)
    except ValueError:
        pass
    try:
        return parsedate_to_datetime(value).timestamp() - time()
    except ValueError:
        return None


def read_call(name: Any, arguments: Any, call_id: str, *, cut: bool = False) -> ToolCall | ParseFailure:
    """Reads a native tool call.

    Args:
        name: The tool's name.
        arguments: An object, or JSON text of one; no text is an empty object, for tools without arguments.
        call_id: The call's id.
        cut: Whether the reply was cut off in this call: what is not whole is ``truncated`` then, and no text is not
            an empty object.

    Returns:
        The call, or why it cannot be read. Never raises.
    """
    if cut:
        whole = read_call(name, arguments, call_id) if arguments not in (None, "") else None
        if isinstance(whole, ToolCall):
            return whole
        return ParseFailure(f"the reply was cut off in the call of {name}", str(arguments or "")[:200], "truncated")
    if not isinstance(name, str) or not name:
        return ParseFailure("the tool name is empty: give the name of a tool", str(name)[:200])
    if isinstance(arguments, str):
        try:
            arguments = read_json(arguments or "{}", lenient=True)
        except ValueError as error:
            return ParseFailure(f"the arguments of {name} are not JSON: {error}", str(arguments)[:200])
    if not isinstance(arguments, dict):
        return ParseFailure(f"the arguments of {name} must be an object", repr(arguments)[:200])
    return ToolCall(name, arguments, call_id)


def cut_at_stop(text: str, stop: tuple[str, ...]) -> tuple[str, bool]:
    """Cuts a text after the first stop string in it.

    Returns:
        The text, stop string included, and whether there was one.
    """
    ends = [text.index(string) + len(string) for string in stop if string in text]
    return (text[: min(ends)], True) if ends else (text, False)
