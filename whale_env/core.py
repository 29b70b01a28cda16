"""`ToolEnv`: the one Gymnasium environment class, and `Domain` / `Session`, the two small protocols a domain fills in.

A domain names its tools, lists public tasks, and opens a session per episode. A session holds the answer, observes,
applies tool calls and scores. `ToolEnv` adds everything that is the same for all domains: Gymnasium's five verbs,
task choice, schema checks, the caps on steps and invalid calls. `EnvHandle` is what optimisers and evaluation hold; a
sealed handle cannot open the test split.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import gymnasium as gym

from whale_env.commit import FEW, Named, named_verbatim, pieces, said_code
from whale_env.commit import said_verbatim as said_verbatim  # for domains that import all they need from here
from whale_env.errors import InputError, WhaleError
from whale_env.spaces import ObservationSpace, ToolCallSpace
from whale_env.types import SPLITS, Failure, Json, Observation, Score, Split, Task, ToolCall, ToolSpec


@dataclass(frozen=True, slots=True)
class Easy:
    """What a model of some 100 million parameters can begin on.

    Attributes:
        arguments: The environment's arguments.
        calls: Model calls in an episode; 0 where it takes as many as the environment has steps.
        tokens: Sampled tokens in an episode of one or a few calls.
    """

    arguments: Mapping[str, Json] = field(default_factory=dict)
    calls: int = 0
    tokens: int = 256


@dataclass(frozen=True, slots=True)
class DomainSpec:
    """What a domain declares about itself.

    Attributes:
        name: Short name (``"chess"``).
        tools: The primitives it offers.
        max_steps: Hard cap on valid calls in an episode; then it is truncated. Say what a player may need.
        max_invalid: Hard cap on invalid calls, which do not count as steps; the episode ends there as ``illegal``.
        blocking: Whether a step may take long (a subprocess, a network call), so that it is run off the event loop.
        easy: A setting that a small model can begin on.
        baseline: The harness to begin with, as ``module:Class``; a name only, nothing is imported.
        listing: Arguments of an environment that only lists its tasks, without what playing them needs.
    """

    name: str
    tools: tuple[ToolSpec, ...]
    max_steps: int = 64
    max_invalid: int = 8
    blocking: bool = False
    easy: Easy = field(default_factory=Easy)
    baseline: str = "harness_sdk.harness:Harness"
    listing: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a session says about one applied call.

    Attributes:
        observation: What the agent now sees.
        error: Why the call was invalid (it then changed nothing), or None.
        done: Whether the episode is over.
    """

    observation: Observation
    error: str | None = None
    done: bool = False


class Session(Protocol):
    """One episode of a domain. It holds the answer and never leaves the trusted process."""

    def observe(self) -> Observation:
        """Returns the current observation."""
        ...

    def apply(self, call: ToolCall) -> Outcome:
        """Applies a schema-valid call.

        Raises:
            CallError: What serves calls breaks at this one.
        """
        ...

    def score(self) -> Score:
        """Scores the episode as it stands."""
        ...


@runtime_checkable
class Says(Protocol):
    """A session with a notion of its own of what a text says; without it `said_verbatim` decides."""

    def said(self, call: ToolCall, text: str) -> bool:
        """Whether a text says what a committing call commits."""
        ...


@runtime_checkable
class Names(Protocol):
    """A session with values of a kind of its own (the legal moves); without it `named_verbatim` finds them."""

    def named(self, call: ToolCall, text: str) -> Sequence[Named]:
        """Returns what a text names of the kinds that a committing call's arguments are of."""
        ...


class Domain(Protocol):
    """A kind of problem: its tools, its tasks, and how an episode begins."""

    spec: DomainSpec

    def tasks(self, split: Split) -> Sequence[Task]:
        """Returns the public tasks of one split, always in the same order."""
        ...

    def start(self, task: Task, seed: int) -> Session:
        """Opens an episode on a task."""
        ...


class CallError(WhaleError, RuntimeError):
    """A call broke what serves it, while other calls still work: whoever made the call is to blame, not the world."""


class UnknownTaskError(WhaleError, LookupError):
    """A task id that the environment does not have."""


class ForeignEnvError(InputError):
    """An environment has no tools and no tasks; adapters give it some (`whale_env.adapters`)."""


class SealedSplitError(PermissionError):
    """A sealed handle was asked for a split that it must not open."""


class ToolEnv(gym.Env[Observation, ToolCall]):
    """A domain as a Gymnasium environment.

    Actions are `ToolCall`, observations `Observation`. An invalid call is data (``info["error"]``): it changes nothing
    and does not end the episode before the domain's cap. The reward is the verifier's, 0 or 1, on the step that ends
    the episode.
    """

    metadata = {"render_modes": ["ansi", "svg"], "render_fps": 1}  # noqa: RUF012  # Gymnasium's own declaration

    def __init__(self, domain: Domain, *, split: Split = "train", render_mode: str | None = None) -> None:
        """Wraps a domain.

        Args:
            domain: The domain.
            split: Where `reset` draws a task from when it is not given one.
            render_mode: ``"ansi"``, ``"svg"`` (where the domain draws itself) or None.

        Raises:
            InputError: An unknown split or render mode.
        """
        if split not in SPLITS:
            raise InputError(f"unknown split {split!r}; known: {', '.join(SPLITS)}")
        if render_mode not in (None, "ansi", "svg"):
            raise InputError(f"unknown render_mode {render_mode!r}; known: ansi, svg")
        self.domain = domain
        self.render_mode = render_mode
        self.action_space = self._calls = ToolCallSpace(domain.spec.tools)
        self.observation_space = ObservationSpace()
        self._split = split
        self._index: dict[str, Task] | None = None
        self._session: Session | None = None
        self._over = True
        self._steps = self._invalid = 0
        self._cap: Failure | None = None

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The primitives that the agent may call."""
        return self.domain.spec.tools

    def tasks(self, split: Split) -> Sequence[Task]:
        """Returns the public tasks of a split."""
        return self.domain.tasks(split)

    def task(self, task_id: str) -> Task:
        """Returns the task with an id, from whichever split has it.

        Raises:
            UnknownTaskError: No task has that id.
        """
        if self._index is None:
            self._index = {task.id: task for split in SPLITS for task in self.domain.tasks(split)}
        found = self._index.get(task_id)
        if found is None:
            raise UnknownTaskError(f"{self.domain.spec.name} has no task {task_id!r:.80} among its {len(self._index)}")
        return found

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begins an episode.

        Args:
            seed: Seeds task choice and whatever the domain draws.
            options: ``{"task": id}`` picks a task of any split; otherwise one is drawn from the env's split.

        Returns:
            The first observation, and ``{"task": id, "error": None}``.

        Raises:
            UnknownTaskError: No task has that id.
        """
        super().reset(seed=seed)
        task_id = (options or {}).get("task")
        task = self._draw_task() if task_id is None else self.task(task_id)
        return self.begin(task, int(self.np_random.integers(2**31))), {"task": task.id, "error": None}

    def begin(self, task: Task, seed: int) -> Observation:
        """Begins an episode on a task: what `reset` does once the task is chosen."""
        self._session = self.domain.start(task, seed)
        self._over, self._steps, self._invalid, self._cap = False, 0, 0, None
        return self._session.observe()

    def step(self, action: ToolCall) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Runs one tool call.

        Args:
            action: The call. One that is not in `action_space` is an invalid call, not an exception.

        Returns:
            Observation, reward (0.0 until the end), terminated, truncated, and info with ``error`` (None or why the
            call was invalid).
        """
        session = self._live()
        if self._over:
            return session.observe(), 0.0, True, False, {"error": "the episode is over; call reset()"}
        error = self._calls.error(action)
        outcome = Outcome(session.observe(), error) if error else session.apply(action)
        self._steps += outcome.error is None
        self._invalid += outcome.error is not None
        truncated = False
        if outcome.done:
            self._over = True
        elif self._invalid >= self.domain.spec.max_invalid:
            self._over, self._cap = True, "illegal"
        elif self._steps >= self.domain.spec.max_steps:
            self._over, self._cap, truncated = True, "budget", True
        reward = (self.score().reward or 0.0) if self._over else 0.0
        return outcome.observation, reward, self._over and not truncated, truncated, {"error": outcome.error}

    def said(self, call: ToolCall, text: str) -> bool:
        """Whether a text of the model's says what a call commits, or has the program that it runs (the commit rule)."""
        session = self._live()
        if any(tool.runs for tool in self.tools if tool.name == call.name):
            return all(said_code(str(value), text) for value in call.arguments.values())
        return session.said(call, text) if isinstance(session, Says) else said_verbatim(call, text)

    def named(self, call: ToolCall, text: str) -> Sequence[Named]:
        """Returns what a text names of the kinds that a committing call's arguments are of (the commit rule)."""
        session = self._live()
        if isinstance(session, Names):
            return session.named(call, text)
        found = named_verbatim(call, text, self._choices(call.name))
        if all(entry.value in entry.values for entry in found) or not self.said(call, text):
            return found
        # Said in another way than word for word, which only the session can tell: piece by piece.
        parts = tuple(pieces(text))
        few = parts if len(set(parts)) <= FEW else parts[-1:]
        return (Named(parts, next((part for part in reversed(few) if self.said(call, part)), None), False),)

    def score(self) -> Score:
        """Scores the episode as it stands."""
        score = self._live().score()
        return replace(score, failure=self._cap) if self._cap and score.reward != 1.0 else score

    @property
    def over(self) -> bool:
        """Whether the episode has ended."""
        return self._over

    def render(self) -> str | None:
        """Draws the current state as text, or as SVG where the domain has ``svg()``."""
        if self.render_mode is None:
            return None
        session = self._live()
        if self.render_mode == "svg" and hasattr(session, "svg"):
            return str(session.svg())
        return session.observe().text

    def _choices(self, tool: str) -> dict[str, Sequence[Json]]:
        schema = next((known.parameters for known in self.tools if known.name == tool), {})
        properties: Mapping[str, Any] = schema.get("properties", {})
        return {name: item["enum"] for name, item in properties.items() if item.get("enum")}

    def _draw_task(self) -> Task:
        tasks = self.domain.tasks(self._split)
        if not tasks:
            raise UnknownTaskError(f"{self.domain.spec.name} has no task in split {self._split!r}")
        return tasks[int(self.np_random.integers(len(tasks)))]

    def _live(self) -> Session:
        if self._session is None:
            raise gym.error.ResetNeeded("call reset() first")
        return self._session


@dataclass(frozen=True)
class EnvHandle:
    """A named environment with its arguments, and the splits that its holder may open.

    Attributes:
        name: Gymnasium id (``whale/Chess-v0``, ``my_pkg:MyEnv-v0``).
        kwargs: Keyword arguments of the environment.
        splits: The splits that `tasks` and `open` allow.
    """

    name: str
    kwargs: Mapping[str, Json]
    splits: tuple[Split, ...] = SPLITS

    def sealed(self) -> EnvHandle:
        """Returns the handle for optimisers: the same environment, the test split closed."""
        return replace(self, splits=("train", "search"))

    @cached_property
    def prototype(self) -> ToolEnv:
        """One environment of this kind, for its tools and tasks; episodes use `open`."""
        return self._make()

    def tasks(self, split: Split) -> Sequence[Task]:
        """Returns the public tasks of a split.

        Raises:
            SealedSplitError: The split is closed to this handle.
        """
        self._check(split)
        return self.prototype.tasks(split)

    def open(self, task: Task, seed: int) -> tuple[ToolEnv, Observation]:
        """Opens a fresh environment and begins an episode.

        Args:
            task: What to play; its split is looked up by id, not believed.
            seed: Seed of the episode.

        Returns:
            The environment and its first observation.

        Raises:
            SealedSplitError: The task belongs to a split that is closed to this handle.
            UnknownTaskError: No such task.
        """
        known = self.prototype.task(task.id)
        self._check(known.split)
        env = ToolEnv(self.prototype.domain)
        return env, env.begin(known, seed)

    def _check(self, split: Split) -> None:
        if split not in self.splits:
            raise SealedSplitError(f"the {split!r} split of {self.name} is sealed; only evaluation opens it")

    def _make(self) -> ToolEnv:
        make: Any = gym.make  # typed for its own options, which the environment's arguments are not
        env = make(self.name, disable_env_checker=True, **self.kwargs).unwrapped
        if not isinstance(env, ToolEnv):
            arguments = json.dumps({"env": self.name, **self.kwargs})
            raise ForeignEnvError(
                f"{self.name} is {type(env).__name__}, not a ToolEnv; as a foreign environment it is "
                f"--env gymnasium --env-args '{arguments}'"
            )
        return env
