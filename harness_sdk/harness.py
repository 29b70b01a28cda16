"""`Harness`: the one base class. Subclass it and override the hooks you want to change; every hook has a default.

A harness decides what enters the model's context, how tools are shown, how text becomes tool calls, what is said after
a failure, and when to stop. It never decides the answer: a committing call is refused unless the model chose it.
Hooks are plain synchronous methods over plain data. The loop that calls them is `harness_sdk.rollout`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

from harness_sdk import toolcalls
from harness_sdk.types import Completion, Episode, Message, ParseFailure, StepResult, ToolSchema
from whale_env.types import ToolCall, ToolSpec


class Tools(Protocol):
    """The environment as `Harness.act` sees it: its primitives and nothing else."""

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The environment's primitives."""
        ...

    def step(self, call: ToolCall) -> StepResult:
        """Runs one tool call on the environment.

        Args:
            call: The call. A committing one is refused unless the model said its argument, and as its choice.

        Returns:
            The new observation, or the error that makes the call invalid.
        """
        ...


class Harness:
    """The executable program around a model.

    The smallest useful harness is a class with one attribute::

        class Terse(Harness):
            system = "Answer with <move>uci</move> and nothing else."

    Attributes:
        system: System text; empty means none.
        instructions: Text appended to the first observation.
        prompt_attributes: Names of the class attributes that hold prompt text (what prompt-only search may change).
        max_turns: Model calls in an episode; by default more than any environment takes, whose own limits hold.
        max_failures: Parse failures and invalid actions after which the episode stops.
        max_tokens_per_turn: Sampled tokens in one model call.
        max_tokens: Sampled tokens in an episode; by default more than a run allows, whose own limits hold.
        max_prompt_tokens: Length of one prompt, by default likewise; a longer one ends the episode as ``budget``.
        stop_strings: Texts at which the model is stopped (the text stays in the completion).
    """

    system: ClassVar[str] = ""
    instructions: ClassVar[str] = ""
    prompt_attributes: ClassVar[tuple[str, ...]] = ("system", "instructions")
    max_turns: ClassVar[int] = 1000
    max_failures: ClassVar[int] = 2
    max_tokens_per_turn: ClassVar[int] = 1024
    max_tokens: ClassVar[int] = 65536
    max_prompt_tokens: ClassVar[int] = 65536
    stop_strings: ClassVar[tuple[str, ...]] = ()

    def tools(self, env_tools: Sequence[ToolSpec]) -> list[ToolSchema]:
        """Decides which tool schemas the model sees natively.

        Args:
            env_tools: The environment's primitives.

        Returns:
            OpenAI function schemas; an empty list shows none. A model whose chat template has no place for them never
            sees them (a warning says so): then `pack` must say what can be written.
        """
        return [tool.schema() for tool in env_tools]

    def pack(self, episode: Episode) -> list[Message]:
        """Packs the context: the whole prompt of the next model call.

        Args:
            episode: The rollout so far.

        Returns:
            All messages, oldest first. A final assistant message is a prefix that the model continues.
        """
        opening = "\n\n".join(part for part in (episode.first.text, self.instructions) if part)
        messages: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        messages.append({"role": "user", "content": opening})
        return [*messages, *(message for turn in episode.turns for message in turn.messages())]

    def parse(self, completion: Completion, episode: Episode) -> list[ToolCall] | ParseFailure:
        """Reads the model's text as tool calls.

        Args:
            completion: What the model wrote.
            episode: The rollout so far, this completion excluded.

        Returns:
            The calls in order; an empty list asks for another model call without acting; or why it cannot be read.
        """
        if completion.tool_calls:
            return list(completion.tool_calls)
        if completion.unread:
            return completion.unread[0]
        found = toolcalls.parse(completion.text, "tags", episode.tools)
        calls = [item for item in found if isinstance(item, ToolCall)]
        if calls:
            return calls
        if found:
            return next(item for item in found if isinstance(item, ParseFailure))
        if completion.finish_reason == "length":
            return ParseFailure("the reply was cut off before a tool call", kind="truncated")
        names = ", ".join(f"<{tool.name}>…</{tool.name}>" for tool in episode.tools)
        return ParseFailure(f"no tool call found; write {names}")

    def act(self, call: ToolCall, env: Tools) -> str:
        """Turns one model-side call into environment calls, through ``env.step`` only.

        Args:
            call: What `parse` read.
            env: The environment's primitives.

        Returns:
            The text that answers the call in the history.
        """
        return env.step(call).text

    def recover(self, failure: ParseFailure, episode: Episode) -> str | None:
        """Answers a parse failure or an invalid action.

        Args:
            failure: What went wrong.
            episode: The rollout so far, the failed turn excluded.

        Returns:
            Feedback for the model, or None to give up.
        """
        return f"That could not be used: {failure.reason}. Try again."

    def stop(self, episode: Episode) -> str | None:
        """Decides whether the episode is over, before each model call.

        Args:
            episode: The rollout so far.

        Returns:
            A reason to stop, or None to go on. The environment's own end and the limits are enforced besides.
        """
        return "done" if episode.done else None
