"""The data that flows through one episode: messages, completions, parse failures, turns, and the episode a hook sees.

Plain frozen data with a JSON round trip, so that a hook gets the same thing in this process and across the cage's
wire. Trajectories (the finished record, with token ids) live in `harness_sdk.trajectory`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, TypeAlias, TypedDict

from whale_env.types import Observation, Task, ToolCall, ToolSpec

Role = Literal["system", "user", "assistant", "tool"]
FinishReason = Literal["stop", "length", "abort"]
"""``stop``: the model ended or a stop string matched. ``length``: cut by a limit. ``abort``: the backend failed."""


class Message(TypedDict):
    """One chat message, in the OpenAI layout.

    A final ``assistant`` message is a *prefix*: the model continues it. What a harness wrote there never counts as
    said by the model.
    """

    role: Role
    content: str
    tool_calls: NotRequired[list[dict[str, Any]]]
    tool_call_id: NotRequired[str]


ToolSchema: TypeAlias = dict[str, Any]
"""An OpenAI function schema, ``{"type": "function", "function": {"name", "description", "parameters"}}``."""


@dataclass(frozen=True, slots=True)
class ParseFailure:
    """Model text that could not be read as an action.

    Attributes:
        reason: What is wrong, in words that can be shown to the model.
        detail: The offending text, shortened.
        kind: ``truncated`` when the text was cut off in a call, ``illegal`` when it was read but the environment
            refused it, else ``format``.
    """

    reason: str
    detail: str = ""
    kind: Literal["format", "truncated", "illegal"] = "format"

    def to_json(self) -> dict[str, Any]:
        """Returns the failure as JSON data."""
        return {"reason": self.reason, "detail": self.detail, "kind": self.kind}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ParseFailure:
        """Rebuilds a failure from `to_json`."""
        return cls(data["reason"], data.get("detail", ""), data.get("kind", "format"))


@dataclass(frozen=True, slots=True)
class Completion:
    """What the model wrote in one call, as a hook sees it.

    Attributes:
        text: The sampled text, without the end token and without any prefix the harness wrote.
        finish_reason: Why it ended.
        tool_calls: Native tool calls, where the backend or the chat template has them.
        tokens: Number of sampled tokens (the end token included).
        unread: Native tool calls that could not be read.
        structured: Whether native calls came beside the text, as from an API, and not in it.
    """

    text: str
    finish_reason: FinishReason = "stop"
    tool_calls: tuple[ToolCall, ...] = ()
    tokens: int = 0
    unread: tuple[ParseFailure, ...] = ()
    structured: bool = False

    def to_json(self) -> dict[str, Any]:
        """Returns the completion as JSON data."""
        return {
            "text": self.text,
            "finish_reason": self.finish_reason,
            "tool_calls": [call.to_json() for call in self.tool_calls],
            "tokens": self.tokens,
            "unread": [failure.to_json() for failure in self.unread],
            "structured": self.structured,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Completion:
        """Rebuilds a completion from `to_json`."""
        calls = tuple(ToolCall.from_json(call) for call in data["tool_calls"])
        unread = tuple(ParseFailure.from_json(failure) for failure in data.get("unread", ()))
        return cls(data["text"], data["finish_reason"], calls, data["tokens"], unread, data.get("structured", False))


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one tool call gave: an environment step as a harness sees it. The reward is not part of it.

    Attributes:
        observation: What the environment shows after the call.
        done: Whether the episode is over.
        error: Why the call was invalid or refused, or None. An invalid call is data; the episode goes on.
    """

    observation: Observation
    done: bool = False
    error: str | None = None

    @property
    def text(self) -> str:
        """The error if there is one, else the observation's text."""
        return self.error if self.error is not None else self.observation.text

    def to_json(self) -> dict[str, Any]:
        """Returns the result as JSON data."""
        return {"observation": self.observation.to_json(), "done": self.done, "error": self.error}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> StepResult:
        """Rebuilds a result from `to_json`."""
        return cls(Observation.from_json(data["observation"]), data["done"], data["error"])


@dataclass(frozen=True, slots=True)
class Turn:
    """One model call and what came of it.

    Attributes:
        completion: What the model wrote.
        calls: The tool calls read from it (empty after a parse failure).
        results: One text per call, as `Harness.act` returned it.
        failure: The parse failure or the invalid action, or None.
        feedback: What `Harness.recover` answered to the failure, or None.
    """

    completion: Completion
    calls: tuple[ToolCall, ...] = ()
    results: tuple[str, ...] = ()
    failure: ParseFailure | None = None
    feedback: str | None = None

    def messages(self) -> list[Message]:
        """Returns the turn as messages of the history: what the model said, and what came of it.

        Native calls are answered one by one, each under its own id; others in one message. Calls beside them that could
        not be read have no id to be answered under: what is wrong with each is said after the others.
        """
        said: Message = {"role": "assistant", "content": self.completion.text}
        native = self.completion.tool_calls
        taken = bool(self.calls) and self.calls == native[: len(self.calls)]
        unread = [f"Another call could not be used: {failure.reason}." for failure in self.completion.unread if taken]
        feedback = [self.feedback] if self.feedback else []
        if not taken or len(self.results) != len(native):
            answer = "\n".join([*unread, *(feedback if self.failure else self.results)])
            return [said, {"role": "user", "content": answer or "Continue."}]
        ids = [call.id or f"call_{number}" for number, call in enumerate(native)]
        if self.completion.structured:
            said["tool_calls"] = [_function_call(call, name) for call, name in zip(native, ids, strict=True)]
        answers: list[Message] = [
            {"role": "tool", "content": text, "tool_call_id": name}
            for text, name in zip(self.results, ids, strict=True)
        ]
        more = "\n".join([*unread, *feedback])
        closing: list[Message] = [{"role": "user", "content": more}] if more else []
        return [said, *answers, *closing]

    def to_json(self) -> dict[str, Any]:
        """Returns the turn as JSON data."""
        return {
            "completion": self.completion.to_json(),
            "calls": [call.to_json() for call in self.calls],
            "results": list(self.results),
            "failure": self.failure.to_json() if self.failure else None,
            "feedback": self.feedback,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Turn:
        """Rebuilds a turn from `to_json`."""
        return cls(
            Completion.from_json(data["completion"]),
            tuple(ToolCall.from_json(call) for call in data["calls"]),
            tuple(data["results"]),
            ParseFailure.from_json(data["failure"]) if data["failure"] else None,
            data["feedback"],
        )


@dataclass(frozen=True, slots=True)
class Episode:
    """One rollout in progress, as every hook sees it. A new object each turn; changing it changes nothing.

    Attributes:
        task: The public part of the problem.
        tools: The environment's primitives.
        first: The observation the episode began with.
        observation: The latest observation (the first one until something was done).
        turns: All finished turns, oldest first.
        done: Whether the environment has ended the episode.
    """

    task: Task
    tools: tuple[ToolSpec, ...]
    first: Observation
    observation: Observation
    turns: tuple[Turn, ...] = ()
    done: bool = False

    def __repr__(self) -> str:
        return f"Episode(task={self.task.id!r}, turns={len(self.turns)}, done={self.done})"

    @property
    def failures(self) -> int:
        """How many turns ended in a parse failure or an invalid action."""
        return sum(turn.failure is not None for turn in self.turns)

    @property
    def tokens(self) -> int:
        """How many tokens the model has sampled so far."""
        return sum(turn.completion.tokens for turn in self.turns)

    def to_json(self) -> dict[str, Any]:
        """Returns the episode as JSON data."""
        return {
            "task": self.task.to_json(),
            "tools": [tool.to_json() for tool in self.tools],
            "first": self.first.to_json(),
            "observation": self.observation.to_json(),
            "turns": [turn.to_json() for turn in self.turns],
            "done": self.done,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Episode:
        """Rebuilds an episode from `to_json`."""
        return cls(
            Task.from_json(data["task"]),
            tuple(ToolSpec.from_json(tool) for tool in data["tools"]),
            Observation.from_json(data["first"]),
            Observation.from_json(data["observation"]),
            tuple(Turn.from_json(turn) for turn in data["turns"]),
            data["done"],
        )


def _function_call(call: ToolCall, name: str) -> dict[str, Any]:
    function = {"name": call.name, "arguments": json.dumps(dict(call.arguments))}
    return {"id": name, "type": "function", "function": function}
