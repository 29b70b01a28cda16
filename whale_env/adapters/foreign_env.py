"""Any Gymnasium environment as a domain: seeds are the tasks, one committing tool takes the action.

The environment's own rewards are added up; an episode whose return reaches a threshold counts as solved. The agent sees
neither rewards nor the environment's ``info``. Spaces are turned into arguments by `action_forms` and into text by
`space_text`; image observations and continuous actions are not covered.

A seed is public, as it is the task's name. It is no answer, but who can run the environment can rehearse with it; a
caged harness cannot. Whether two seeds are two different problems is the environment's business: ``FrozenLake-v1``
always has the same map.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from whale_env.adapters.action_forms import Names, action_of, choices, instructions, parameters, written
from whale_env.adapters.known_envs import KNOWN, Notes
from whale_env.adapters.space_text import MAX_NUMBERS, plain, size, text, without_escapes
from whale_env.arguments import check_whole
from whale_env.commit import leaves, said_verbatim
from whale_env.core import DomainSpec, Outcome, ToolEnv
from whale_env.errors import InputError
from whale_env.types import SPLITS, Json, Observation, Score, Split, Task, ToolCall, ToolSpec

SEEDS: Mapping[Split, range] = {
    "train": range(1000),
    "search": range(1_000_000, 1_000_250),
    "test": range(2_000_000, 2_000_250),
}
"""Seeds of each split: what the environment's ``reset`` is given."""

MAX_STEPS = 100
"""Actions in an episode where neither the caller nor the environment says how many."""

MAX_INVALID = 8
ACT = "act"


@dataclass(frozen=True, slots=True)
class Rules:
    """How a foreign environment is played.

    Attributes:
        threshold: Return from which on an episode counts as solved.
        text: What the model is told at the start.
        names: Names of the discrete actions.
        drawn: Whether the environment's text drawing is shown instead of its observation.
        actions: What can be done and how it is written; the model is told at the start.
    """

    threshold: float
    text: str
    names: Names
    drawn: bool
    actions: str


def gymnasium_env(
    env: str | None = None,
    *,
    threshold: float | None = None,
    rules: str | None = None,
    names: Names = None,
    max_steps: int | None = None,
    split: Split = "train",
    render_mode: str | None = None,
    **arguments: Any,
) -> ToolEnv:
    """Makes a `ToolEnv` out of a Gymnasium environment (``whale/Gymnasium-v0``).

    Args:
        env: Gymnasium id, ``"FrozenLake-v1"`` or ``"module:Env-v0"``.
        threshold: Return of one episode from which on it counts as solved. None takes `KNOWN`'s or the environment's
            registered ``reward_threshold`` (which its author may have meant for a mean of many episodes).
        rules: What the model is told at the start; None takes `KNOWN`'s, if any.
        names: Names of the discrete actions in order, for a Dict action space by key.
        max_steps: Actions in an episode; None takes the environment's own limit, or `MAX_STEPS`.
        split: Where ``reset()`` draws from.
        render_mode: ``"ansi"`` or None.
        **arguments: Passed to the foreign environment.

    Returns:
        The environment.

    Raises:
        InputError: It cannot be made, no threshold is known, or its spaces cannot be put into words.
    """
    if env is None:
        raise InputError("say which environment: gymnasium_env('FrozenLake-v1'), --env-args '{\"env\": \"…\"}'")
    if not isinstance(env, str) or not env:
        raise InputError(f"env must be a Gymnasium id such as 'FrozenLake-v1', not {env!r:.80}")
    check_whole(1, max_steps=max_steps)
    domain = ForeignDomain(_Maker(env, max_steps, arguments), threshold, rules, names)
    return ToolEnv(domain, split=split, render_mode=render_mode)


@dataclass(frozen=True, slots=True)
class _Maker:
    """Makes a fresh foreign environment."""

    env: str
    max_steps: int | None
    arguments: Mapping[str, Any]

    def __call__(self, drawn: bool) -> gym.Env[Any, Any]:
        from whale_env.registry import load_plugins

        make: Any = gym.make  # typed for its own options, which the environment's arguments are not
        if self.env not in gym.registry and ":" not in self.env:
            load_plugins(self.env)
        known = gym.registry.get(self.env)
        limit = self.max_steps or (None if known is None or known.max_episode_steps else MAX_STEPS)
        options = {**({"render_mode": "ansi"} if drawn else {}), "max_episode_steps": limit, **self.arguments}
        try:
            made: gym.Env[Any, Any] = make(self.env, disable_env_checker=True, **options)
        except (gym.error.Error, ImportError, TypeError, ValueError) as error:
            raise InputError(f"cannot make {self.env!r} with {dict(self.arguments)}: {error}") from error
        if isinstance(made.unwrapped, ToolEnv):
            made.close()
            raise InputError(f"{self.env} is a tool environment already: --env {self.env}")
        return made


class ForeignDomain:
    """A Gymnasium environment as a `whale_env.core.Domain`."""

    def __init__(self, maker: _Maker, threshold: float | None, rules: str | None, names: Names) -> None:
        """Makes one environment to read its spaces off, and closes it again.

        Args:
            maker: Makes environments; its argument says whether they draw themselves as text.
            threshold: As for `gymnasium_env`.
            rules: As for `gymnasium_env`.
            names: As for `gymnasium_env`.

        Raises:
            InputError: As for `gymnasium_env`.
        """
        probe = maker(False)
        try:
            made = probe.spec
            notes = KNOWN.get(made.name if made else "", Notes(""))
            limits = (threshold, notes.threshold, made.reward_threshold if made else None)
            solved = next((limit for limit in limits if limit is not None), None)
            if isinstance(solved, bool) or not isinstance(solved, (int, float)) or not math.isfinite(solved):
                given = "none is known" if solved is None else f"not {solved!r:.80}"
                raise InputError(f"say from which return on {maker.env} counts as solved: threshold=<number> ({given})")
            self._space = probe.action_space
            names = notes.names if names is None else names
            schema = parameters(self._space, names)
            is_text = isinstance(probe.observation_space, gym.spaces.Text)
            drawn = not is_text and "ansi" in probe.metadata.get("render_modes", ())
            many = size(probe.observation_space)
            if not drawn and (many is None or many > MAX_NUMBERS):
                raise InputError(
                    f"an observation of {maker.env} is {probe.observation_space!r:.80}, which cannot be read as text: "
                    f"wrap it so that it has at most {MAX_NUMBERS} numbers, is Text, or renders as 'ansi'"
                )
            steps = maker.max_steps or (made.max_episode_steps if made else None) or MAX_STEPS
        finally:
            probe.close()
        self._maker = maker
        told = notes.rules if rules is None else rules
        self._rules = Rules(float(solved), told, names, drawn, instructions(ACT, self._space, names))
        act = ToolSpec(ACT, f"Takes one action in {maker.env}; written {written(ACT, schema)}.", schema, commits=True)
        self._tasks = {split: tuple(Task(str(seed), maker.env, split) for seed in SEEDS[split]) for split in SPLITS}
        self.spec = DomainSpec(maker.env, (act,), max_steps=steps, max_invalid=MAX_INVALID, blocking=True)

    def tasks(self, split: Split) -> Sequence[Task]:
        """Returns the split's seeds."""
        return self._tasks[split]

    def start(self, task: Task, seed: int) -> ForeignSession:
        """Opens the episode of a seed; the rollout's own seed changes nothing, so that a task stays one problem."""
        env = self._maker(self._rules.drawn)
        return ForeignSession(env, int(task.id), self._rules)


class ForeignSession:
    """One episode of a foreign environment."""

    def __init__(self, env: gym.Env[Any, Any], seed: int, rules: Rules) -> None:
        self._env, self._rules = env, rules
        self._close = weakref.finalize(self, env.close)
        self._return, self._steps, self._over = 0.0, 0, False
        value, _ = env.reset(seed=seed)
        self._seen = self._shown(value)

    def observe(self) -> Observation:
        """Shows the state; at the start also the rules and what can be done."""
        return self._seen

    def apply(self, call: ToolCall) -> Outcome:
        """Takes one action."""
        try:
            action = action_of(self._env.action_space, self._rules.names, call.arguments)
        except ValueError as error:
            return Outcome(self._seen, f"{call.name}: {error}")
        value, reward, terminated, truncated, _ = self._env.step(action)
        self._return += float(reward)
        self._steps += 1
        self._over = bool(terminated or truncated)
        self._seen = self._shown(value)
        if self._over:
            self._close()
        return Outcome(self._seen, None, self._over)

    def said(self, call: ToolCall, text: str) -> bool:
        """Whether the text has every part of the action."""
        return said_verbatim(ToolCall(call.name, dict(enumerate(leaves(call.arguments)))), text)  # type: ignore[arg-type]

    def score(self) -> Score:
        """1 when the environment ended the episode and its return reached the threshold.

        Metrics: ``return`` and ``actions``.
        """
        metrics = {"return": self._return, "actions": float(self._steps)} if math.isfinite(self._return) else {}
        if not self._over:
            return Score(0.0, "budget", metrics)
        return Score(1.0, None, metrics) if self._return >= self._rules.threshold else Score(0.0, "wrong", metrics)

    def _shown(self, value: Any) -> Observation:
        data: dict[str, Json] = {}
        if (size(self._env.observation_space) or MAX_NUMBERS + 1) <= MAX_NUMBERS:
            data["observation"] = plain(value)
        names = choices(self._env.action_space, self._rules.names)
        if names and not self._over:
            data["actions"] = [{"action": name} for name in names]
        state = without_escapes(str(self._env.render())) if self._rules.drawn else text(plain(value))
        if self._steps:
            return Observation(state, data)
        return Observation("\n\n".join(part for part in (self._rules.text, state, self._rules.actions) if part), data)
