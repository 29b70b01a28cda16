"""Listening to a harness while it plays: what it offers the model, and whether its calls fit the tools."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from harness_sdk.check.facts import signature
from harness_sdk.check.report import Finding
from harness_sdk.loader import LoadedHarness
from harness_sdk.session import HarnessSession, Step
from harness_sdk.types import Completion, Episode, ParseFailure, StepResult, ToolSchema
from whale_env.spaces import ToolCallSpace
from whale_env.types import ToolCall, ToolSpec


@dataclass(slots=True)
class Notes:
    """What was heard of a harness while it played.

    Attributes:
        tools: The environment's tools.
        offered: Names of the schemas that it offers natively, or None.
        right: How many calls fit a tool.
        wrong: Why other calls fit none, and how many.
    """

    tools: Sequence[ToolSpec]
    offered: tuple[str, ...] | None = None
    right: int = 0
    wrong: Counter[str] = field(default_factory=Counter)

    def call(self, call: ToolCall, said: str) -> None:
        """Notes a call of the environment.

        A name that stands quoted in the model's text is the model's, of a harness that passes on what it reads; which
        of the listed values an argument has is the model's business too.
        """
        error = ToolCallSpace([replace(tool, parameters=_unlisted(tool.parameters)) for tool in self.tools]).error(call)
        if error is None:
            self.right += 1
        elif call.name in {tool.name for tool in self.tools} or json.dumps(call.name) not in said:
            self.wrong[error] += 1

    def findings(self) -> list[Finding]:
        """Whether every call that it made was of no use."""
        if self.right or not self.wrong:
            return []
        error, tools = self.wrong.most_common(1)[0][0], ", ".join(map(signature, self.tools))
        why = f"no call that it makes can ever be carried out: {error}. Have `parse`, or `act`, call {tools}"
        return [Finding("cannot-act", "any policy", why)]


def _unlisted(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    return {k: _unlisted(v) for k, v in schema.items() if k != "enum" or isinstance(v, Mapping)}


class _Heard:
    """A `HarnessSession` that is listened to; what is not noted goes straight to the session."""

    def __init__(self, session: HarnessSession, notes: Notes) -> None:
        self._session, self._notes = session, notes
        self._said = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    async def tools(self, env_tools: Sequence[ToolSpec]) -> list[ToolSchema]:
        schemas = await self._session.tools(env_tools)
        self._notes.offered = tuple(schema["function"]["name"] for schema in schemas)
        return schemas

    async def parse(self, completion: Completion, episode: Episode) -> list[ToolCall] | ParseFailure:
        self._said += completion.text
        return await self._session.parse(completion, episode)

    async def act(self, call: ToolCall, specs: tuple[ToolSpec, ...], step: Step) -> str:
        return await self._session.act(call, specs, _HeardStep(step, lambda made: self._notes.call(made, self._said)))


class _HeardStep:
    def __init__(self, step: Step, note: Callable[[ToolCall], None]) -> None:
        self.blocking = step.blocking
        self._step, self._note = step, note

    def __call__(self, call: ToolCall) -> StepResult:
        self._note(call)
        return self._step(call)


def heard(harness: LoadedHarness, notes: Notes) -> LoadedHarness:
    """Returns the harness, every session of which is listened to.

    Args:
        harness: The harness.
        notes: Where what is heard is noted.
    """

    async def opened(seed: int) -> HarnessSession:
        return cast(HarnessSession, _Heard(await harness.open(seed), notes))

    return replace(harness, _open=opened)
