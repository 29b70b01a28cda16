"""The cage's wire, seen from the trusted side: length-prefixed JSON, from a sender that may be hostile.

Sizes are bounded before anything is kept, and decoding gives plain data or `ProtocolError`, nothing else. What the
messages mean is the business of `harness_sdk.sandbox.session`; the other end is `harness_sdk.sandbox.worker`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

from harness_sdk.types import ParseFailure
from whale_env.strict_json import read_json
from whale_env.types import ToolCall

T = TypeVar("T")

MAX_DEPTH = 64
MAX_VALUES = 200_000


class ProtocolError(Exception):
    """The worker sent what no honest worker sends."""


class Wire(asyncio.Protocol):
    """Length-prefixed frames in both directions; what comes in is bounded before it is kept."""

    def __init__(self, message_bytes: int, total_bytes: int) -> None:
        self._message_bytes = message_bytes
        self._total_bytes = total_bytes
        self._buffer = bytearray()
        self._received = 0
        self._fault: Exception | None = None
        self._waiting: asyncio.Future[bytes] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`; the worker has closed its end or ended."""
        self._fail(ConnectionError("the worker has ended"))

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`; keeps what belongs to the one frame that is waited for."""
        self._buffer += data
        self._received += len(data)
        size = int.from_bytes(self._buffer[:4], "big") if len(self._buffer) >= 4 else 0
        if size > self._message_bytes:
            self._fail(ProtocolError(f"a message of {size} bytes; the bound is {self._message_bytes}"))
        elif self._received > self._total_bytes:
            self._fail(ProtocolError(f"more than {self._total_bytes} bytes in one episode"))
        elif self._waiting is None or self._waiting.done():
            self._fail(ProtocolError("an answer that nobody asked for"))
        elif len(self._buffer) > 4 + size:
            self._fail(ProtocolError("more than one answer"))
        elif len(self._buffer) >= 4 and len(self._buffer) == 4 + size:
            self._waiting.set_result(bytes(self._buffer[4:]))
            self._buffer.clear()

    async def exchange(self, frame: bytes, seconds: float) -> bytes:
        """Sends a frame and returns the next one.

        Raises:
            TimeoutError: None came in time.
            ConnectionError: The worker has ended.
            ProtocolError: It sent too much, or at the wrong time.
        """
        if self._fault is not None:
            raise self._fault
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        self._waiting = loop.create_future()
        self._transport.write(frame)
        timer = loop.call_later(max(seconds, 0.0), self._expire, self._waiting, True)
        try:
            return await self._waiting
        finally:
            timer.cancel()

    def close(self) -> None:
        """Closes the connection, unsent data dropped."""
        self._fault = self._fault or ConnectionError("the session is closed")
        if self._transport is not None:
            self._transport.abort()

    def _expire(self, waiting: asyncio.Future[bytes], grace: bool) -> None:
        """Gives an answer that is half here a moment more: perhaps it was this process that was busy."""
        if waiting.done():
            return
        if grace and self._buffer:
            asyncio.get_running_loop().call_later(0.25, self._expire, waiting, False)
        else:
            waiting.set_exception(TimeoutError())

    def _fail(self, fault: Exception) -> None:
        if self._fault is None:
            self._fault = fault
        self._buffer.clear()
        if self._transport is not None:
            self._transport.pause_reading()
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(self._fault)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"not JSON data: {value!r:.80}")


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_plain).encode


def encoded(message: Mapping[str, Any]) -> bytes:
    """Returns a message as a frame: four bytes of length, then JSON. Lone surrogates pass as they are."""
    data = _encode(message).encode("utf-8", "surrogatepass")
    return len(data).to_bytes(4, "big") + data


def decoded(frame: bytes) -> Any:
    """Returns a frame's JSON value; what is not finite, not shallow or not JSON is `ProtocolError`."""
    try:
        value = read_json(frame.decode("utf-8", "surrogatepass"), max_depth=MAX_DEPTH, lenient=True)
    except ValueError as error:
        raise ProtocolError(f"not JSON: {error}"[:200]) from None
    if frame.count(b"[") + frame.count(b"{") > MAX_DEPTH and _count(value) > MAX_VALUES:
        raise ProtocolError(f"more than {MAX_VALUES} values")
    return value


def _count(value: Any) -> int:
    """Returns how many values there are in a value: whatever walks it later on would stumble over too many."""
    todo, count = [value], 0
    while todo:
        item = todo.pop()
        below = item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        count += len(below)
        todo += below
    return count


def typed(value: Any, kind: type[T], what: str) -> T:
    """Returns the value if it is exactly of a type (True is no int), else raises `ProtocolError`."""
    if type(value) is not kind:
        raise ProtocolError(f"{what} is {type(value).__name__}, not {kind.__name__}")
    return value


def failure_of(data: Any) -> ParseFailure:
    """Returns a `ParseFailure` from untrusted JSON data, or raises `ProtocolError`."""
    found = typed(data, dict, "failure")
    if found.keys() != {"reason", "detail", "kind"} or found["kind"] not in ("format", "truncated"):
        raise ProtocolError(f"not a ParseFailure: {found!r:.120}")
    return ParseFailure(typed(found["reason"], str, "reason"), typed(found["detail"], str, "detail"), found["kind"])


def tool_call_of(data: Any) -> ToolCall:
    """Returns a `ToolCall` from untrusted JSON data, or raises `ProtocolError`."""
    found = typed(data, dict, "call")
    if not found.keys() <= {"name", "arguments", "id"} or not found.keys() >= {"name", "arguments"}:
        raise ProtocolError(f"not a ToolCall: {found!r:.120}")
    name, arguments = typed(found["name"], str, "name"), typed(found["arguments"], dict, "arguments")
    return ToolCall(name, arguments, typed(found["id"], str, "id") if "id" in found else None)
