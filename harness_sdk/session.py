"""One harness living for one episode, behind one asynchronous interface for trusted and caged code.

`LocalSession` calls a trusted harness in this process. The cage (`harness_sdk.sandbox`) offers the same interface over
a pipe. The rollout loop sees only `HarnessSession`. Checking what hooks return happens here, once, for both.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

from harness_sdk.harness import Harness
from harness_sdk.types import Completion, Episode, Message, ParseFailure, StepResult, ToolSchema
from whale_env.errors import WhaleError
from whale_env.types import ToolCall, ToolSpec


class Step(Protocol):
    """Runs one tool call on the environment, in the trusted process.

    Attributes:
        blocking: Whether a call may take long, so that it must not run on the event loop.
    """

    blocking: bool

    def __call__(self, call: ToolCall) -> StepResult:
        """Runs the call."""
        ...


class HarnessError(WhaleError):
    """A harness hook raised, hung, or returned something that is not what the hook must return.

    Attributes:
        hook: The hook's name.
    """

    def __init__(self, hook: str, why: str) -> None:
        super().__init__(f"{hook}: {why}")
        self.hook = hook


@dataclass(frozen=True, slots=True)
class Limits:
    """A harness's declared limits (see `Harness` for their meaning)."""

    max_turns: int = 1000
    max_failures: int = 2
    max_tokens_per_turn: int = 1024
    max_tokens: int = 65536
    max_prompt_tokens: int = 65536
    stop_strings: tuple[str, ...] = ()

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Limits:
        """Checks declared limits.

        Args:
            values: The class attributes by name.

        Returns:
            The limits.

        Raises:
            HarnessError: A limit is not a positive whole number, or a stop string is not a non-empty string.
        """
        for name, value in values.items():
            if name == "stop_strings":
                if not isinstance(value, (tuple, list)) or not all(isinstance(s, str) and s for s in value):
                    raise HarnessError("limits", f"stop_strings must be a tuple of non-empty strings, not {value!r}")
            elif isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10_000_000:
                raise HarnessError("limits", f"{name} must be a whole number from 1 to 10000000, not {value!r}")
        return cls(**{**values, "stop_strings": tuple(values.get("stop_strings", ()))})

    @classmethod
    def declared_by(cls, harness: type[Harness] | Harness) -> Limits:
        """Reads and checks the limits of a harness class."""
        return cls.of({f.name: getattr(harness, f.name) for f in fields(cls)})


class HarnessSession(Protocol):
    """A fresh harness for one episode.

    What a harness does wrong is raised as `HarnessError`; anything else that is raised is a failure of the cage itself.
    """

    limits: Limits

    async def tools(self, env_tools: Sequence[ToolSpec]) -> list[ToolSchema]:
        """See `Harness.tools`."""
        ...

    async def pack(self, episode: Episode) -> list[Message]:
        """See `Harness.pack`."""
        ...

    async def parse(self, completion: Completion, episode: Episode) -> list[ToolCall] | ParseFailure:
        """See `Harness.parse`."""
        ...

    async def act(self, call: ToolCall, specs: tuple[ToolSpec, ...], step: Step) -> str:
        """See `Harness.act`; ``step`` runs in the trusted process."""
        ...

    async def recover(self, failure: ParseFailure, episode: Episode) -> str | None:
        """See `Harness.recover`."""
        ...

    async def stop(self, episode: Episode) -> str | None:
        """See `Harness.stop`."""
        ...

    async def close(self) -> None:
        """Ends the session; safe to call twice."""
        ...


@dataclass(frozen=True, slots=True)
class EnvTools:
    """The `Tools` that a harness's ``act`` gets: specs and ``step``."""

    specs: tuple[ToolSpec, ...]
    step: Step


class LocalSession:
    """A trusted harness in this process."""

    def __init__(self, harness: Harness) -> None:
        self._harness = harness
        self.limits = Limits.declared_by(harness)

    async def tools(self, env_tools: Sequence[ToolSpec]) -> list[ToolSchema]:
        """See `Harness.tools`."""
        return checked_tools(self._call("tools", tuple(env_tools)))

    async def pack(self, episode: Episode) -> list[Message]:
        """See `Harness.pack`."""
        return checked_messages(self._call("pack", episode))

    async def parse(self, completion: Completion, episode: Episode) -> list[ToolCall] | ParseFailure:
        """See `Harness.parse`."""
        return checked_calls(self._call("parse", completion, episode))

    async def act(self, call: ToolCall, specs: tuple[ToolSpec, ...], step: Step) -> str:
        """See `Harness.act`."""
        env = EnvTools(specs, step)
        if step.blocking:
            return cut_text("act", await asyncio.to_thread(self._call, "act", call, env))
        return cut_text("act", self._call("act", call, env))

    async def recover(self, failure: ParseFailure, episode: Episode) -> str | None:
        """See `Harness.recover`."""
        return cut_optional_text("recover", self._call("recover", failure, episode))

    async def stop(self, episode: Episode) -> str | None:
        """See `Harness.stop`."""
        return checked_optional_text("stop", self._call("stop", episode))

    async def close(self) -> None:
        """Nothing to end."""

    def _call(self, hook: str, *args: Any) -> Any:
        try:
            return getattr(self._harness, hook)(*args)
        except Exception as error:
            raise HarnessError(hook, described(error, file_of(type(self._harness)))) from error


def described(error: BaseException, file: str | None) -> str:
    """Returns an error as ``Type: text (line n)``, whatever its own ``__str__`` does.

    Args:
        error: What a harness raised.
        file: The file that the harness is in; the line is the last one there that the error passed.
    """
    try:
        line = line_in(error, file)
        return f"{type(error).__name__}: {error}"[:MAX_ERROR] + (f" (line {line})" if line else "")
    except BaseException:
        return type(error).__name__


def file_of(harness: type) -> str | None:
    """Returns the file that a class is defined in, as its tracebacks name it."""
    return getattr(sys.modules.get(harness.__module__), "__file__", None)


def line_in(error: BaseException, file: str | None) -> int | None:
    """Returns the last line of a file that an error passed on its way, or None."""
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


ROLES = ("system", "user", "assistant", "tool")
MAX_MESSAGES = 4096
MAX_PROMPT_CHARS = 4_000_000
MAX_CALLS = 64
MAX_TEXT = 64 << 10
"""Bytes of a reason, a detail, a feedback, or the text that answers a call."""
MAX_DEPTH = 64
MAX_ERROR = 3900


def checked_text(hook: str, value: Any) -> str:
    """Returns a hook's text, or raises `HarnessError`. Lone surrogates, which no tokenizer can read, are replaced."""
    if not isinstance(value, str):
        raise HarnessError(hook, f"must return a string, not {type(value).__name__}")
    if len(value) > MAX_PROMPT_CHARS:
        raise HarnessError(hook, f"returned {len(value)} characters; the bound is {MAX_PROMPT_CHARS}")
    return clean_text(value)


def clean_text(value: str) -> str:
    """Returns the text as an exact `str` in which lone surrogates became "?"."""
    text = str.__str__(value)
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def checked_optional_text(hook: str, value: Any) -> str | None:
    """As `checked_text`, None allowed."""
    return None if value is None else checked_text(hook, value)


def cut_text(hook: str, value: Any) -> str:
    """As `checked_text`, and what is longer than `MAX_TEXT` bytes loses its middle.

    These texts stand in every later prompt and in the record. They often hold what the model or a tool wrote, so that
    a long one is no fault of the harness: it is cut, with a mark that says how much is missing.
    """
    text = checked_text(hook, value)
    if len(text) <= MAX_TEXT // 4:  # no character takes more than four bytes
        return text
    data = text.encode()
    if len(data) <= MAX_TEXT:
        return text
    mark = f"\n[… {len(data) - MAX_TEXT} bytes and more left out …]\n"
    half = (MAX_TEXT - len(mark.encode())) // 2
    return data[:half].decode("utf-8", "ignore") + mark + data[-half:].decode("utf-8", "ignore")


def cut_optional_text(hook: str, value: Any) -> str | None:
    """As `cut_text`, None allowed."""
    return None if value is None else cut_text(hook, value)


def checked_tools(value: Any) -> list[ToolSchema]:
    """Returns well-formed OpenAI function schemas, or raises `HarnessError`."""
    if not isinstance(value, (list, tuple)):
        raise HarnessError("tools", f"must return a list of schemas, not {type(value).__name__}")
    schemas: list[ToolSchema] = checked_data("tools", list(value))
    for schema in schemas:
        function = schema.get("function") if isinstance(schema, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise HarnessError("tools", f"not an OpenAI function schema: {schema!r:.200}")
        if not isinstance(function.get("parameters", {}), dict):
            raise HarnessError("tools", f"parameters of {function['name']!r} must be a JSON schema object")
    return schemas


def checked_data(hook: str, value: Any, depth: int = 0) -> Any:
    """Returns a copy of plain JSON data with clean texts, or raises `HarnessError` naming what is none."""
    if depth > MAX_DEPTH:
        raise HarnessError(hook, f"returned data nested more than {MAX_DEPTH} deep")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, int) and abs(value) < 2**63:
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, (list, tuple)):
        return [checked_data(hook, item, depth + 1) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {clean_text(key): checked_data(hook, item, depth + 1) for key, item in value.items()}
    raise HarnessError(hook, f"returned something that is not JSON data: {value!r:.80}")


def checked_messages(value: Any) -> list[Message]:
    """Returns well-formed, bounded chat messages, or raises `HarnessError`."""
    if not isinstance(value, (list, tuple)) or not value:
        raise HarnessError("pack", f"must return a non-empty list of messages, not {value!r:.80}")
    if len(value) > MAX_MESSAGES:
        raise HarnessError("pack", f"returned {len(value)} messages; the bound is {MAX_MESSAGES}")
    messages: list[Message] = []
    total = 0
    for index, item in enumerate(value):
        if not isinstance(item, dict) or item.get("role") not in ROLES or not isinstance(item.get("content"), str):
            raise HarnessError("pack", f"message {index} needs a role of {ROLES} and string content, not {item!r:.120}")
        message: Message = {"role": item["role"], "content": clean_text(item["content"])}
        if "tool_calls" in item:
            calls = checked_data("pack", item["tool_calls"])
            if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
                raise HarnessError("pack", f"tool_calls of message {index} must be a list of calls, not {calls!r:.120}")
            message["tool_calls"] = calls
        if "tool_call_id" in item:
            message["tool_call_id"] = checked_text("pack", item["tool_call_id"])
        total += len(message["content"])
        messages.append(message)
    if total > MAX_PROMPT_CHARS:
        raise HarnessError("pack", f"returned {total} characters; the bound is {MAX_PROMPT_CHARS}")
    return messages


def checked_calls(value: Any) -> list[ToolCall] | ParseFailure:
    """Returns the calls or the failure that `parse` gave, or raises `HarnessError`."""
    if isinstance(value, ParseFailure):
        kind = value.kind if value.kind in ("format", "truncated") else "format"
        return ParseFailure(cut_text("parse", value.reason), cut_text("parse", value.detail), kind)
    if not isinstance(value, (list, tuple)) or not all(isinstance(call, ToolCall) for call in value):
        raise HarnessError("parse", f"must return a list of ToolCall or a ParseFailure, not {value!r:.120}")
    if len(value) > MAX_CALLS:  # as many as the model wrote: its failure, not the harness's
        return ParseFailure(f"{len(value)} tool calls in one reply; at most {MAX_CALLS} can be carried out")
    return [
        ToolCall(
            checked_text("parse", call.name),
            checked_data("parse", dict(call.arguments)),
            checked_optional_text("parse", call.id),
        )
        for call in value
    ]
