"""Racing: candidates are scored batch by batch on tasks in one shuffled order, and hopeless ones are stopped early.

A candidate is stopped when it can no longer be the winner: when it could not catch up even if it solved all that is
left, or when an always-valid bound says so with high confidence. The bound looks at paired differences, after every
batch, as often as one likes. Which of those that survive is accepted is `optimizers.search.acceptance`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from harness_sdk.randomness import derive_seed
from harness_sdk.trajectory import Trajectory
from optimizers.archive.records import OutcomeTable
from optimizers.search.scoring import Scorer
from whale_env.types import Task

HORIZON = 0.3
"""Share of the tasks after which the bound is meant to be sharpest."""
PRIOR_VARIANCE = 0.25
"""Guess of a difference's variance, worth one observation."""
TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True)
class RacingConfig:
    """How a race is run.

    Attributes:
        alpha: Bound on the chance that the candidate that full scoring would have put first is stopped. The true
            chance is far lower: the bound holds for looks at any time and for any rewards.
        batches: Batches that the tasks are dealt out in; candidates are looked at after each.
    """

    alpha: float = 0.2
    batches: int = 16

    def __post_init__(self) -> None:
        if not 0 < self.alpha < 1:
            raise ValueError(f"alpha is {self.alpha}; give a probability between 0 and 1")
        if self.batches < 1:
            raise ValueError(f"batches is {self.batches}; there must be at least 1")


@dataclass(frozen=True, slots=True)
class Raced:
    """How a race ended.

    Attributes:
        trajectories: Rollouts by candidate; those that were stopped have them for the tasks they saw.
        stopped: Why each stopped candidate was stopped.
        rollouts: Rollouts played.
        saved: Rollouts that full scoring would have played besides.
    """

    trajectories: Mapping[str, tuple[Trajectory, ...]]
    stopped: Mapping[str, str]
    rollouts: int
    saved: int


def hopeless(differences: Sequence[float], total: int, need: float, alpha: float) -> bool:
    """Whether the sum of all differences will stay below ``need``, judged from those seen.

    Differences are drawn without replacement (the order is shuffled), so if the sum of all ``total`` were ``need``, the
    next one would have mean (need - sum so far) / (number left). A bettor against that, who starts with 1 and stakes
    part of it on lower outcomes, has a capital that is a nonnegative supermartingale whenever the sum reaches ``need``;
    by Ville's inequality it ever reaches 1 / alpha with probability alpha at most (confidence sequences by betting,
    without replacement: Waudby-Smith and Ramdas 2020; 2024, section 5). Stakes follow the variance seen before. Valid
    at all times, and for all values of ``need`` at once since the capital grows with it.

    Args:
        differences: What was seen, in order, each from -1 to 1.
        total: How many there are in all.
        need: The sum needed to win.
        alpha: Chance of a wrong yes, over all looks together.
    """
    seen = np.asarray(differences, dtype=float)
    if need - seen.sum() > total - len(seen) + TOLERANCE:
        return True
    if not len(seen):
        return False
    before = np.concatenate([[0.0], np.cumsum(seen)[:-1]])
    means = np.clip((need - before) / (total - np.arange(len(seen))), -1.0, 1.0)
    squares = np.concatenate([[0.0], np.cumsum(seen**2)[:-1]])
    variances = (squares + PRIOR_VARIANCE) / (np.arange(len(seen)) + 1)
    stakes = np.sqrt(2 * math.log(1 / alpha) / (HORIZON * total * variances))
    stakes = np.minimum(stakes, 0.9 / np.maximum(1.0 - means, TOLERANCE))
    return float(np.log1p(-stakes * (seen - means)).sum()) >= math.log(1 / alpha)


def task_means(table: OutcomeTable) -> dict[str, float]:
    """Returns the mean reward by task id, of known rewards."""
    sums: dict[str, tuple[float, int]] = {}
    for (task, _), reward in table.rewards.items():
        total, count = sums.get(task, (0.0, 0))
        sums[task] = (total + reward, count + 1)
    return {task: total / count for task, (total, count) in sums.items()}


def shuffled(tasks: Sequence[Task], seed: int) -> list[Task]:
    """Returns the tasks in the order of the race: the same for all candidates and the same seed."""
    return sorted(tasks, key=lambda task: derive_seed("race", seed, task.id))


def losers(
    means: Mapping[str, Mapping[str, float]],
    incumbent: Mapping[str, float],
    order: Sequence[str],
    step: float,
    alpha: float,
) -> dict[str, str]:
    """Returns the candidates that can no longer win, and why.

    To win, a candidate must beat the incumbent and be no worse than every rival still in the race.

    Args:
        means: Mean reward by candidate and task id, on the tasks seen so far.
        incumbent: Mean reward of the incumbent by task id, on all tasks.
        order: Ids of all tasks, in the order of the race.
        step: The smallest difference by which a sum of task means can be larger (1 / rollouts per task).
        alpha: Chance that a winner is stopped, over all looks and opponents together.
    """
    found: dict[str, str] = {}
    share = alpha / max(len(means), 1)
    for name, mine in means.items():
        tried = max((i + 1 for i, task in enumerate(order) if task in mine), default=0)
        left = sum(task in incumbent for task in order[tried:])
        opponents = {"the incumbent": (incumbent, step)}
        opponents |= {rival: (theirs, 0.0) for rival, theirs in means.items() if rival != name and rival not in found}
        for opponent, (theirs, need) in opponents.items():
            seen = [mine[task] - theirs[task] for task in order[:tried] if task in mine and task in theirs]
            total = len(seen) + left
            if hopeless(seen, total, need, share):
                gain = sum(seen) / max(len(seen), 1)
                found[name] = f"{gain:+.3f} against {opponent} after {len(seen)} of {total} tasks"
                break
    return found


async def race(
    candidates: Sequence[str],
    incumbent: OutcomeTable,
    tasks: Sequence[Task],
    samples: int,
    score: Scorer,
    config: RacingConfig | None = None,
    label: tuple[str, int] = ("search", 0),
) -> Raced:
    """Scores candidates batch by batch and stops those that can no longer win.

    A rollout has the same seed as in full scoring under the same label, so the outcomes of survivors are the same. An
    infrastructure failure is no outcome: its pair is left out.

    Args:
        candidates: Ids of the candidates.
        incumbent: The accepted harness's outcomes on the same tasks at the same weights.
        tasks: The search tasks.
        samples: Rollouts per task.
        score: Rolls out.
        config: Confidence and batches.
        label: Phase label of the rollouts, and the seed of the order.
    """
    config = config or RacingConfig()
    ordered = shuffled(tasks, label[1])
    order = [task.id for task in ordered]
    known = task_means(incumbent)
    played: dict[str, list[Trajectory]] = {name: [] for name in candidates}
    stopped: dict[str, str] = {}
    size = -(-len(ordered) // config.batches)
    for start in range(0, len(ordered), max(size, 1)):
        racing = [name for name in candidates if name not in stopped]
        if not racing:
            break
        batch = await score(racing, ordered[start : start + size], samples, label[0])
        for name in racing:
            played[name] += batch[name]
        if start + size < len(ordered):
            means = {name: task_means(OutcomeTable.of(name, played[name])) for name in racing}
            stopped |= losers(means, known, order, 1 / samples, config.alpha)
    rollouts = sum(len(trajectories) for trajectories in played.values())
    full = len(candidates) * len(tasks) * samples
    return Raced({name: tuple(rows) for name, rows in played.items()}, stopped, rollouts, full - rollouts)
