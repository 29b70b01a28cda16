"""The floor: what a harness earns with policies that know nothing.

A reward that needs no model is the harness's, or chance. Every policy without skill (`harness_sdk.no_skill`) plays a
few tasks; the best of them play further ones, on which nothing was chosen. There the reward is compared with what
policies without skill earn under the starting harness (h0) and under the SDK's plain one, which shows no more than the
environment does (chance). What lies significantly above both is refused as ``answers-itself``.

The test is an exact binomial one of the best policy's solved tasks against the larger of the two rates, each counted
with one more success in two more tasks so that a rate of 0 is not taken for certain; its level is `LEVEL`, divided by
the number of policies compared. With 36 tasks and nothing earned otherwise, 6 solved tasks are refused: a harness that
gives away a third of the answers is found in 99 of 100 checks, one that gives away nothing is refused in less than one
of a thousand. Nothing is asked of a model.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from harness_sdk.loader import LoadedHarness, load
from harness_sdk.no_skill import ASKED, policies
from harness_sdk.rollout import RolloutConfig, jobs_for, rollout
from harness_sdk.trajectory import Trajectory
from whale_env.core import EnvHandle
from whale_env.types import Task

SCREENED = 8
"""Tasks on which every policy plays."""

CONFIRMED = 36
"""Tasks on which the best play then."""

BEST = 2
"""How many play then."""

LEVEL = 0.001
"""How often a harness that gives nothing away is refused."""

PICKED = 0.5
"""Share of a policy's rollouts above which commits that it did not choose are the harness's way, and no misreading."""

AT_ONCE = 4
"""Policies that play at the same time."""


@dataclass(frozen=True, slots=True)
class Floor:
    """What a harness earns without a model's skill.

    Attributes:
        reward: Mean reward of the best policy without skill.
        policy: Its name.
        tasks: On how many tasks that was measured.
        h0: What such policies earn under the starting harness.
        chance: What they earn under the plain harness.
        p_value: How likely the reward is where the harness gives nothing away.
        limit: The smallest reward that is refused here.
        violations: Rollouts in which it committed what the model had not said or chosen.
        picked: Their share under the policy that met most of them.
        example: One of those.
    """

    reward: float
    policy: str
    tasks: int
    h0: float
    chance: float
    p_value: float
    limit: float
    violations: int = 0
    picked: float = 0.0
    example: Trajectory | None = field(default=None, repr=False)

    @property
    def margin(self) -> float:
        """How far above the larger of h0 and chance a reward must lie to be refused."""
        return self.limit - max(self.h0, self.chance)

    @property
    def picks(self) -> bool:
        """Whether it commits what the model did not choose, again and again; a reader that errs at times does not."""
        return self.picked > PICKED

    @property
    def answers_itself(self) -> bool:
        """Whether the harness earns without a model what only a model should."""
        return self.reward >= self.limit

    def __str__(self) -> str:
        return (
            f"floor {self.reward:.2f} ({self.policy}; {self.tasks} tasks), h0 {self.h0:.2f}, chance {self.chance:.2f}, "
            f"refused from {self.limit:.2f}"
        )


async def floor(
    harness: LoadedHarness, env: EnvHandle, tasks: Sequence[Task], *, h0: LoadedHarness | None = None
) -> Floor:
    """Measures what a harness earns with policies that know nothing.

    Args:
        harness: The harness; an untrusted one plays in the cage.
        env: The environment.
        tasks: Tasks of the search split; up to `SCREENED` + `CONFIRMED` are played.
        h0: The starting harness; None takes the domain's own.

    Returns:
        The floor, and what it is compared with.

    Raises:
        HarnessError: It cannot begin an episode at all.
        ConfinementError: It is untrusted and cannot be confined here.
    """
    few = len(tasks) < 2 * SCREENED
    screened, confirmed = (tasks, tasks) if few else (tasks[:SCREENED], tasks[SCREENED : SCREENED + CONFIRMED])
    own = await _played(harness, env, screened, confirmed)
    plain = load("harness_sdk.harness:Harness")
    h0 = h0 or load(env.prototype.domain.spec.baseline)
    chance = await _compared(plain, env, screened, confirmed, own.chosen)
    first = await _compared(h0, env, screened, confirmed, own.chosen)
    count = len(confirmed)
    solved = max(first, chance)
    rate = (solved + 1) / (count + 2)
    compared = own.policies if few else len(own.chosen)
    level = LEVEL / compared
    least = next((k for k in range(count + 1) if k > solved and _at_least(k, count, rate) < level), count + 1)
    return Floor(
        reward=own.solved / max(1, count),
        policy=own.policy,
        tasks=count,
        h0=first / max(1, count),
        chance=chance / max(1, count),
        p_value=min(1.0, compared * _at_least(own.solved, count, rate)),
        limit=least / max(1, count),
        violations=len(own.violations),
        picked=own.picked,
        example=own.violations[0] if own.violations else None,
    )


@dataclass(frozen=True, slots=True)
class _Best:
    policy: str
    solved: int
    chosen: tuple[str, ...]
    policies: int
    violations: tuple[Trajectory, ...]
    picked: float


_measured: dict[tuple[object, ...], dict[str, int]] = {}


async def _compared(
    harness: LoadedHarness, env: EnvHandle, screened: Sequence[Task], confirmed: Sequence[Task], others: Sequence[str]
) -> int:
    """Returns what the best policy earns of those that are best under this harness and of others, measured once."""
    key = (harness.id, env.name, repr(sorted(env.kwargs.items())), tuple(t.id for t in (*screened, *confirmed)))
    known = _measured.setdefault(key, {})
    if not known:
        own = await _played(harness, env, screened, confirmed)
        known[own.policy] = own.solved
    player = _Player(harness, env)
    twins = {twin for name in others for twin in (name, name.removesuffix(ASKED), name.removesuffix(ASKED) + ASKED)}
    missing = sorted((twins & player.known.keys()) - known.keys())
    for name, played in zip(missing, await player.play(missing, confirmed), strict=True):
        known[name] = _solved(played)
    return max(count for name, count in known.items() if name in twins or name == next(iter(known)))


class _Player:
    """Plays policies without skill, some at a time."""

    def __init__(self, harness: LoadedHarness, env: EnvHandle) -> None:
        self.known = policies(env.prototype.tools)
        self._harness, self._env = harness, env
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def play(self, names: Sequence[str], tasks: Sequence[Task]) -> list[list[Trajectory]]:
        return await asyncio.gather(*(self._one(name, tasks) for name in names))

    async def _one(self, name: str, tasks: Sequence[Task]) -> list[Trajectory]:
        async with self._slots:
            config = RolloutConfig(phase="floor", max_prompt_tokens=10**6, concurrency=8)
            return await rollout(jobs_for(self._harness, tasks), self._env, self.known[name], config)


async def _played(harness: LoadedHarness, env: EnvHandle, screened: Sequence[Task], confirmed: Sequence[Task]) -> _Best:
    player = _Player(harness, env)
    first = dict(zip(player.known, await player.play([*player.known], screened), strict=True))
    ranked = sorted(player.known, key=lambda name: -_solved(first[name]))
    chosen = ranked[:BEST] if _solved(first[ranked[0]]) else ranked[:1]
    fresh = confirmed is not screened
    again = await player.play(chosen, confirmed) if fresh else [first[name] for name in chosen]
    best = max(range(len(chosen)), key=lambda place: _solved(again[place]))
    violations = tuple(t for played in (*first.values(), *again) for t in played if picks(t))
    picked = max(sum(map(picks, played)) / max(1, len(played)) for played in first.values())
    return _Best(chosen[best], _solved(again[best]), tuple(chosen), len(player.known), violations, picked)


def picks(trajectory: Trajectory) -> bool:
    """Whether the harness tried to commit what the model had not said, or picked among many values that it named.

    Taking the first of many is refused too, but a harness may do so without looking.
    """
    metrics = trajectory.score.metrics
    return any(metrics.get(f"refused_{why}", 0.0) > 0 for why in ("unsaid", "picked"))


def _solved(trajectories: Sequence[Trajectory]) -> int:
    return sum(trajectory.reward == 1.0 for trajectory in trajectories)


def _at_least(successes: int, tasks: int, rate: float) -> float:
    """Probability of so many successes or more."""
    return math.fsum(math.comb(tasks, k) * rate**k * (1 - rate) ** (tasks - k) for k in range(successes, tasks + 1))
