"""Evaluation: mean@k on held-out tasks with a bootstrap interval. The only place that opens the test split."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

import numpy as np

from harness_sdk.copying import copy_share
from harness_sdk.loader import LoadedHarness
from harness_sdk.policies.base import Policy
from harness_sdk.rollout import RolloutConfig, jobs_for
from harness_sdk.trajectory import Trajectory
from optimizers.archive.records import OutcomeTable
from optimizers.record.played import Played, play
from optimizers.search.comparison import compare
from whale_env.core import EnvHandle
from whale_env.types import Task

RESAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How one pair did on some tasks. All rates are fractions.

    Attributes:
        mean: mean@k: the mean over tasks of each task's mean reward.
        low: Lower end of the 95 % interval over tasks.
        high: Upper end.
        k: Rollouts per task.
        tasks: Tasks with at least one known reward.
        unknown: Rollouts whose reward an infrastructure failure left unknown; they are not counted as 0.
        format: Share of model calls that could be read as an action.
        legality: Share of environment actions that were valid (None if there was none).
        truncated: Share of model calls cut by a limit.
        turns: Model calls per rollout.
        tokens: Sampled tokens per rollout.
        rollouts: Rollouts in all.
        seconds: Wall time.
        metrics: Means of the domain's own metrics.
        failures: Rollouts by the failure they ended in; those without one are left out.
        by_task: Rewards of each task's rollouts by index, by task id, None where unknown: what a paired comparison
            needs.
        copied: Of the rewarded commits, how many a reader without skill finds in the prompts
            (`harness_sdk.copying.copy_share`); None where nothing was rewarded.
    """

    mean: float
    low: float
    high: float
    k: int
    tasks: int
    unknown: int
    format: float
    legality: float | None
    truncated: float
    turns: float
    tokens: float
    rollouts: int
    seconds: float
    metrics: Mapping[str, float]
    failures: Mapping[str, int] = field(default_factory=dict)
    by_task: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    copied: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the evaluation as JSON data."""
        return asdict(self)


async def evaluate(
    env: EnvHandle,
    harness: LoadedHarness,
    policy: Policy,
    tasks: Sequence[Task],
    k: int,
    config: RolloutConfig,
    on_done: Callable[[Trajectory], None] | None = None,
) -> tuple[Evaluation, Played]:
    """Rolls a pair out k times on each task and sums it up.

    Args:
        env: A handle that may open the tasks' split.
        harness: The harness.
        policy: The weights.
        tasks: The tasks.
        k: Rollouts per task.
        config: How to roll out; its phase names the evaluation.
        on_done: Called with each finished trajectory.

    Returns:
        The summary, and the rollouts with what they cost.
    """
    played = await play(jobs_for(harness, tasks, k), env, policy, config, on_done)
    return summary(played.trajectories, k, played.cost.seconds, config.seed), played


def summary(trajectories: Sequence[Trajectory], k: int, seconds: float, seed: int = 0) -> Evaluation:
    """Sums trajectories up; see `Evaluation`."""
    by_task: dict[str, dict[int, float | None]] = defaultdict(dict)
    metrics: dict[str, list[float]] = defaultdict(list)
    for trajectory in trajectories:
        by_task[trajectory.task.id][trajectory.index] = trajectory.reward
        for name, value in trajectory.score.metrics.items():
            metrics[name].append(value)
    known = ([reward for reward in rewards.values() if reward is not None] for rewards in by_task.values())
    means = [fmean(rewards) for rewards in known if rewards]
    low, high = interval(means, seed)
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    acted = [turn for turn in turns if turn.calls]
    unread = sum(turn.failure is not None and turn.failure.kind != "illegal" for turn in turns)
    illegal = sum(turn.failure is not None and turn.failure.kind == "illegal" for turn in acted)
    count = max(len(trajectories), 1)
    return Evaluation(
        mean=fmean(means) if means else 0.0,
        low=low,
        high=high,
        k=k,
        tasks=len(means),
        unknown=sum(trajectory.reward is None for trajectory in trajectories),
        format=1 - unread / len(turns) if turns else 0.0,
        legality=1 - illegal / len(acted) if acted else None,
        truncated=sum(turn.completion.finish_reason == "length" for turn in turns) / max(len(turns), 1),
        turns=len(turns) / count,
        tokens=sum(trajectory.tokens for trajectory in trajectories) / count,
        rollouts=len(trajectories),
        seconds=seconds,
        metrics={name: fmean(values) for name, values in sorted(metrics.items())},
        failures=dict(Counter(t.score.failure for t in trajectories if t.score.failure).most_common()),
        by_task={task: [rewards.get(index) for index in range(k)] for task, rewards in by_task.items()},
        copied=copy_share(trajectories),
    )


def warning(trajectories: Sequence[Trajectory]) -> str:
    """Returns a line for a user where nothing was measured but an error of the harness or around it, else ``""``."""
    counted = [trajectory for trajectory in trajectories if trajectory.reward is not None] or trajectories
    if not counted or any(t.score.failure not in ("harness_error", "env_error") for t in counted):
        return ""
    kinds = " or ".join(sorted({str(trajectory.score.failure) for trajectory in counted}))
    known = " of known reward" if len(counted) < len(trajectories) else ""
    return f"all {len(counted)} rollouts{known} ended in {kinds}, the first so: {' '.join(counted[0].stopped.split())}"


@dataclass(frozen=True, slots=True)
class Gain:
    """A second evaluation against a first.

    Attributes:
        gain: Mean difference over the rollouts whose reward both know.
        p: One-sided exact p-value over tasks (`optimizers.search.comparison.compare`).
    """

    gain: float
    p: float


def gain(before: Evaluation, after: Evaluation) -> Gain:
    """Compares two evaluations with the same seeds."""
    found = compare(_table(after), _table(before))
    return Gain(found.gain, found.p)


def _table(evaluation: Evaluation) -> OutcomeTable:
    rollouts = ((task, index, reward) for task, row in evaluation.by_task.items() for index, reward in enumerate(row))
    return OutcomeTable("", {(task, index): reward for task, index, reward in rollouts if reward is not None})


def interval(means: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Returns a 95 % interval for the mean over tasks.

    A percentile bootstrap over tasks (Efron 1979). Where all tasks agree on 0 or on 1 a bootstrap cannot see any
    spread; then the exact binomial bound with tasks as trials is given (Clopper and Pearson 1934).

    Args:
        means: One number from 0 to 1 per task.
        seed: Seed of the resampling.
    """
    if not means:
        return 0.0, 1.0
    n = len(means)
    if all(mean == 0 for mean in means):
        return 0.0, float(1 - 0.025 ** (1 / n))
    if all(mean == 1 for mean in means):
        return float(0.025 ** (1 / n)), 1.0
    rng = np.random.default_rng(seed)
    values = np.asarray(means)
    draws = values[rng.integers(0, n, size=(RESAMPLES, n))].mean(axis=1)
    low, high = np.percentile(draws, [2.5, 97.5])
    return float(low), float(high)
