"""The words every package shares: tasks, tools, calls, observations, scores.

Plain frozen data with a JSON round trip. No behaviour of any domain, no Gymnasium, no model lives here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from whale_env.json_schema import as_schema

Json: TypeAlias = Any
"""A value that JSON can hold. Not spelled out: a harness that reads an observation would have to narrow every step."""

Split = Literal["train", "search", "test"]
"""``train`` trains weights, ``search`` scores harness candidates, ``test`` is opened by evaluation only."""

SPLITS: tuple[Split, ...] = get_args(Split)

Failure = Literal[
    "format",
    "illegal",
    "wrong",
    "truncated",
    "budget",
    "timeout",
    "harness_error",
    "harness_violation",
    "env_error",
]
"""Why a rollout did not earn its reward. The list is closed: every trajectory without reward 1 carries one of these."""

FAILURES: tuple[Failure, ...] = get_args(Failure)


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A primitive that an environment offers.

    Attributes:
        name: Identifier the model calls it by.
        description: One sentence for the model.
        parameters: JSON schema of the arguments (``{"type": "object", "properties": …, "required": […]}``), of which
            `whale_env.json_schema` says what is read.
        commits: Whether a call binds the agent (a move, a final answer). Others only inform.
        runs: Whether it runs its argument as a program, which the model must then have written.
    """

    name: str
    description: str
    parameters: Mapping[str, Json]
    commits: bool = False
    runs: bool = False

    def __post_init__(self) -> None:
        """Brings a schema's ``true``, ``false`` and null into the form that every reader knows."""
        parameters = as_schema(self.parameters)
        if parameters is not self.parameters:
            object.__setattr__(self, "parameters", {"type": "object", **parameters})

    def schema(self) -> dict[str, Any]:
        """Returns the OpenAI function schema of this tool."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": self.parameters},
        }

    def to_json(self) -> dict[str, Any]:
        """Returns the tool as JSON data."""
        return {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
            "commits": self.commits,
            "runs": self.runs,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ToolSpec:
        """Rebuilds a tool from `to_json`."""
        return cls(
            data["name"], data["description"], data["parameters"], data.get("commits", False), data.get("runs", False)
        )


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of one tool: an environment action, or what a model asked for.

    Attributes:
        name: The tool's name.
        arguments: Keyword arguments, JSON values.
        id: The model-side call id that a result answers, if there is one. Not part of equality.
    """

    name: str
    arguments: Mapping[str, Json] = field(default_factory=dict)
    id: str | None = field(default=None, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Returns the call as JSON data."""
        data: dict[str, Any] = {"name": self.name, "arguments": dict(self.arguments)}
        return data if self.id is None else {**data, "id": self.id}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ToolCall:
        """Rebuilds a call from `to_json`."""
        return cls(data["name"], data["arguments"], data.get("id"))


@dataclass(frozen=True, slots=True)
class Observation:
    """What the environment shows.

    Attributes:
        text: The observation as a reader would want it.
        data: The same facts as JSON data, for harnesses that lay them out themselves.
    """

    text: str
    data: Mapping[str, Json] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Returns the observation as JSON data."""
        return {"text": self.text, "data": dict(self.data)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Observation:
        """Rebuilds an observation from `to_json`."""
        return cls(data["text"], data["data"])


@dataclass(frozen=True, slots=True)
class Task:
    """The public part of one problem. Never the answer, nor anything that leads to it.

    Attributes:
        id: Unique within its environment and the same in every process.
        env: The environment's domain name.
        split: Which split it belongs to.
        data: Public facts about the task (tier, topic, …).
        source: The data set it comes from, for slices and results by source; empty where there is only one. A
            harness does not see it.
    """

    id: str
    env: str
    split: Split
    data: Mapping[str, Json] = field(default_factory=dict)
    source: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns the task as JSON data."""
        data: dict[str, Any] = {"id": self.id, "env": self.env, "split": self.split, "data": dict(self.data)}
        return {**data, "source": self.source} if self.source else data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Task:
        """Rebuilds a task from `to_json`."""
        return cls(data["id"], data["env"], data["split"], data["data"], data.get("source", ""))


@dataclass(frozen=True, slots=True)
class Score:
    """The verdict on one rollout.

    Attributes:
        reward: 1.0 solved, 0.0 not, None when an infrastructure failure made it unknown (never scored as 0, never
            trained on).
        failure: Why it is not 1.0, or None.
        metrics: Further measures by name (legality, retrieval accuracy, …).
    """

    reward: float | None
    failure: Failure | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Returns the score as JSON data."""
        return {"reward": self.reward, "failure": self.failure, "metrics": dict(self.metrics)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Score:
        """Rebuilds a score from `to_json`."""
        return cls(data["reward"], data["failure"], data["metrics"])


def canonical_json(value: Any) -> str:
    """Returns the one JSON text of a value: sorted keys, no spaces; equal values give equal bytes."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
