"""Rolling out and knowing what it cost: what training, candidate scoring and evaluation have in common."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness_sdk.policies.base import Policy
from harness_sdk.rollout import Job, RolloutConfig, rollout
from harness_sdk.trajectory import Trajectory
from optimizers.record.ledger import AgentCost
from whale_env.core import EnvHandle


@dataclass(frozen=True, slots=True)
class Played:
    """Rollouts, in the order of their jobs, and what they cost."""

    trajectories: list[Trajectory]
    cost: AgentCost


async def play(
    jobs: Sequence[Job],
    env: EnvHandle,
    policy: Policy,
    config: RolloutConfig,
    on_done: Callable[[Trajectory], None] | None = None,
) -> Played:
    """Runs all jobs and says what they cost; see `harness_sdk.rollout.rollout` for the arguments."""
    began = time.monotonic()
    trajectories = await rollout(jobs, env, policy, config, on_done)
    return Played(trajectories, AgentCost.of(trajectories, time.monotonic() - began))
