"""Meta-Harness, the harness phase: a proposer writes harness source, the search split scores it, the best is accepted.

One iteration at frozen weights: score what the proposer wrote, all candidates through one engine, and pick. The
archive is `optimizers.archive`, proposers are `optimizers.proposer`; phases are `optimizers.whale`. ``python -m
optimizers.meta_harness`` is the harness-only control.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness_sdk.check import behaviour
from harness_sdk.loader import HarnessLoadError, LoadedHarness, load_source
from harness_sdk.policies.base import Policy
from harness_sdk.rollout import RolloutConfig, jobs_for, rollout
from harness_sdk.trajectory import Trajectory
from optimizers.archive import Archive, Entry
from optimizers.ledger import AgentCost
from optimizers.proposer import Proposal
from whale_env.core import EnvHandle
from whale_env.types import Task

CHECKED = 3
"""Search tasks on which a candidate's behaviour is checked before any model call."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A proposal that passed the validator and the behaviour checks."""

    proposal: Proposal
    harness: LoadedHarness


@dataclass(frozen=True, slots=True)
class Rejected:
    """A proposal that did not."""

    proposal: Proposal
    why: str


async def admit(
    proposals: Sequence[Proposal], archive: Archive, env: EnvHandle, tasks: Sequence[Task], *, allow_uncaged: bool
) -> tuple[list[Candidate], list[Rejected]]:
    """Validates proposals, drops those the archive holds already, and plays the rest against scripted policies.

    Nothing here costs a model call.

    Args:
        proposals: What a proposer wrote.
        archive: Harnesses that need no second trial.
        env: The environment.
        tasks: Search tasks; the first few are played.
        allow_uncaged: Whether candidates may run without a cage where the kernel has none.

    Returns:
        Candidates and rejects; every proposal is in exactly one of the two.
    """
    seen = set(archive.ids())
    candidates: list[Candidate] = []
    rejected: list[Rejected] = []
    for proposal in proposals:
        try:
            harness = load_source(proposal.source, env=env.prototype.domain.spec.name, allow_uncaged=allow_uncaged)
        except HarnessLoadError as error:
            rejected.append(Rejected(proposal, str(error)))
            continue
        if harness.id in seen:
            rejected.append(Rejected(proposal, f"the archive holds this source already ({harness.id})"))
            continue
        seen.add(harness.id)
        played = await behaviour(harness, env, tasks[:CHECKED])
        if played.ok:
            candidates.append(Candidate(proposal, harness))
        else:
            rejected.append(Rejected(proposal, str(played)))
    return candidates, rejected


async def score(
    harnesses: Sequence[LoadedHarness],
    env: EnvHandle,
    policy: Policy,
    tasks: Sequence[Task],
    samples: int,
    config: RolloutConfig,
    on_done: Callable[[Trajectory], None] | None = None,
) -> tuple[dict[str, list[Trajectory]], AgentCost]:
    """Rolls several harnesses out on the same tasks with the same seeds, all at once.

    Returns:
        The trajectories by harness id, and what they cost.
    """
    began = time.monotonic()
    jobs = [job for harness in harnesses for job in jobs_for(harness, tasks, samples)]
    trajectories = await rollout(jobs, env, policy, config, on_done)
    by_harness: dict[str, list[Trajectory]] = {harness.id: [] for harness in harnesses}
    for trajectory in trajectories:
        by_harness[trajectory.harness].append(trajectory)
    return by_harness, AgentCost.of(trajectories, time.monotonic() - began)


def entry_of(candidate: Candidate, cycle: int, iteration: int) -> Entry:
    """Returns the archive's record of a new candidate."""
    proposal = candidate.proposal
    return Entry(
        candidate.harness.id,
        proposal.name,
        proposal.parent,
        proposal.hypothesis,
        proposal.axis,
        cycle,
        iteration,
        proposal.traits,
    )


def main() -> None:
    """``python -m optimizers.meta_harness``: harness phases only."""
    from optimizers.cli import run_command

    run_command("optimizers.meta_harness", method="harness-only")


if __name__ == "__main__":
    main()
