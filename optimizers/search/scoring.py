"""Harnesses by id: loading them, and rolling them out on the same tasks with the same seeds, all through one engine.

What their rewards decide is `optimizers.search.acceptance`; who asks for rollouts is a
`optimizers.search.protocol.HarnessSearch`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

from harness_sdk.loader import LoadedHarness, load_source
from harness_sdk.policies.base import Policy
from harness_sdk.rollout import RolloutConfig, jobs_for
from harness_sdk.trajectory import Trajectory
from optimizers.archive.records import OutcomeTable
from optimizers.archive.store import Archive
from optimizers.record.ledger import AgentCost
from optimizers.record.played import play
from whale_env.core import EnvHandle
from whale_env.types import Task

Scorer: TypeAlias = Callable[[Sequence[str], Sequence[Task], int, str], Awaitable[Mapping[str, Sequence[Trajectory]]]]
"""Rolls harnesses (by id) out on tasks, so many rollouts per task, with seeds that derive from a label."""

TableScorer: TypeAlias = Callable[[Sequence[str], Sequence[Task], int, str], Awaitable[Mapping[str, OutcomeTable]]]
"""The same, of which only what was earned is wanted."""


def tabled(score: Scorer) -> TableScorer:
    """Returns a scorer that tells only what was earned."""

    async def played(ids: Sequence[str], tasks: Sequence[Task], samples: int, label: str) -> Mapping[str, OutcomeTable]:
        found = await score(ids, tasks, samples, label)
        return {harness_id: OutcomeTable.of(harness_id, found[harness_id]) for harness_id in ids}

    return played


class Harnesses:
    """The harnesses of an archive, each loaded once."""

    def __init__(self, archive: Archive, env: str, *, allow_uncaged: bool = False) -> None:
        """Takes the archive; nothing is loaded yet.

        Args:
            archive: Has their sources.
            env: The domain's name.
            allow_uncaged: Whether sources may run without a cage where the kernel has none.
        """
        self._archive, self._env, self._allow_uncaged = archive, env, allow_uncaged
        self._known: dict[str, LoadedHarness] = {}

    def know(self, harness: LoadedHarness) -> None:
        """Makes a harness known that need not be loaded from the archive, such as a trusted or a fresh one."""
        self._known[harness.id] = harness

    def load(self, harness_id: str) -> LoadedHarness:
        """Returns a harness."""
        if harness_id not in self._known:
            source = self._archive.source(harness_id)
            self.know(load_source(source, env=self._env, allow_uncaged=self._allow_uncaged))
        return self._known[harness_id]


class Scoring:
    """A `Scorer` at frozen weights that counts what it costs.

    Attributes:
        costs: Of each call.
    """

    def __init__(
        self,
        harnesses: Harnesses,
        env: EnvHandle,
        policy: Policy,
        rollouts: Callable[[str], RolloutConfig],
        on_done: Callable[[Trajectory], None] | None = None,
    ) -> None:
        """Prepares.

        Args:
            harnesses: What can be scored.
            env: The environment.
            policy: The frozen weights.
            rollouts: Gives the way to roll out under a label.
            on_done: Called with each finished trajectory.
        """
        self._harnesses, self._env, self._policy = harnesses, env, policy
        self._rollouts, self._on_done = rollouts, on_done
        self.costs: list[AgentCost] = []

    async def __call__(
        self, ids: Sequence[str], tasks: Sequence[Task], samples: int, label: str
    ) -> Mapping[str, Sequence[Trajectory]]:
        """Rolls out."""
        chosen = [self._harnesses.load(harness_id) for harness_id in ids]
        config = self._rollouts(label)
        played, cost = await score(chosen, self._env, self._policy, (tasks, samples), config, self._on_done)
        self.costs.append(cost)
        return played


async def score(
    harnesses: Sequence[LoadedHarness],
    env: EnvHandle,
    policy: Policy,
    on: tuple[Sequence[Task], int],
    config: RolloutConfig,
    on_done: Callable[[Trajectory], None] | None = None,
) -> tuple[dict[str, list[Trajectory]], AgentCost]:
    """Rolls several harnesses out on the same tasks with the same seeds, all at once.

    Args:
        harnesses: The harnesses.
        env: The environment.
        policy: The model.
        on: The tasks, and how many rollouts of each.
        config: How to roll out.
        on_done: Called with each finished trajectory.

    Returns:
        The trajectories by harness id, and what they cost.
    """
    tasks, samples = on
    jobs = [job for harness in harnesses for job in jobs_for(harness, tasks, samples)]
    played = await play(jobs, env, policy, config, on_done)
    by_harness: dict[str, list[Trajectory]] = {harness.id: [] for harness in harnesses}
    for trajectory in played.trajectories:
        by_harness[trajectory.harness].append(trajectory)
    return by_harness, played.cost
