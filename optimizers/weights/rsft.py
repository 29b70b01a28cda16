"""RSFT, the weight phase: sample G rollouts per task under the current pair, keep what the verifier accepts, learn it.

One step of online rejection-sampling fine-tuning, and the sampler of tasks. Gradients and master weights are
`optimizers.weights.trainer`; phases and schedules are `optimizers.run`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any, Protocol

from harness_sdk.loader import LoadedHarness
from harness_sdk.policies.base import Policy
from harness_sdk.randomness import derive_seed
from harness_sdk.rollout import RolloutConfig, jobs_for, rollout
from harness_sdk.trajectory import Sample, Trajectory
from optimizers.config import WeightsConfig
from optimizers.record.ledger import AgentCost
from whale_env.core import EnvHandle
from whale_env.types import Task

if TYPE_CHECKING:  # it loads torch, which a command's help and errors need not wait for
    from optimizers.weights.trainer import UpdateStats


class WeightUpdate(Protocol):
    """The plug point of the weight phase: learns from accepted samples."""

    def update(self, samples: Sequence[Sample]) -> UpdateStats:
        """Takes one optimiser step on all samples together."""
        ...


class PromptSampler:
    """Goes through the train split in a seeded order, epoch after epoch, across phases and cycles.

    A pure function of the step: no task comes twice within an epoch, and a resumed run needs no state.
    """

    def __init__(self, tasks: Sequence[Task], size: int, seed: int) -> None:
        """Prepares the order.

        Args:
            tasks: The train split.
            size: Tasks in a batch; at most all of them.
            seed: The run's seed.
        """
        if not tasks:
            raise ValueError("the train split is empty")
        self._tasks = list(tasks)
        self._size = min(size, len(self._tasks))
        self._seed = seed

    @property
    def steps_per_epoch(self) -> int:
        """Batches in one epoch."""
        return -(-len(self._tasks) // self._size)

    def batch(self, step: int) -> list[Task]:
        """Returns the tasks of a step; an epoch's last batch may be smaller."""
        epoch, index = divmod(step, self.steps_per_epoch)
        order = list(self._tasks)
        random.Random(derive_seed(self._seed, "prompts", epoch)).shuffle(order)
        return order[index * self._size : (index + 1) * self._size]


@dataclass(frozen=True, slots=True)
class StepResult:
    """One RSFT step.

    Attributes:
        reward: Mean verifier reward of the rollouts whose reward is known.
        rollouts: Rollouts, unknown ones included.
        accepted: Rollouts that were learnt from.
        updates: Optimiser steps taken (0 when nothing was accepted).
        loss: Mean negative log-probability per accepted model token at the first optimiser step, or None.
        grad_norm: Largest gradient norm, or None.
        tokens: Accepted model tokens.
    """

    reward: float
    rollouts: int
    accepted: int
    updates: int
    loss: float | None
    grad_norm: float | None
    tokens: int

    def to_json(self) -> dict[str, Any]:
        """Returns the result as JSON data."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Rollouts:
    """The rollouts of a step and what they cost."""

    trajectories: list[Trajectory]
    cost: AgentCost


def require_token_ids(policy: Policy) -> None:
    """Checks before any rollout that a policy can be trained on.

    Raises:
        ValueError: It gives no token ids, or takes no new weights; the message says what to use instead.
    """
    check = getattr(policy, "require_token_ids", None)
    if check is not None:
        check()


async def collect(
    env: EnvHandle,
    harness: LoadedHarness,
    policy: Policy,
    tasks: Sequence[Task],
    samples: int,
    config: RolloutConfig,
    on_done: Callable[[Trajectory], None] | None = None,
) -> Rollouts:
    """Samples G rollouts per task from the frozen snapshot under the current harness."""
    began = time.monotonic()
    trajectories = await rollout(jobs_for(harness, tasks, samples), env, policy, config, on_done)
    return Rollouts(trajectories, AgentCost.of(trajectories, time.monotonic() - began))


def learn(trajectories: Sequence[Trajectory], update: WeightUpdate, config: WeightsConfig, seed: int) -> StepResult:
    """Learns from the accepted rollouts (reward 1) of one step.

    Args:
        trajectories: All rollouts of the step; unknown rewards are left out, never trained on.
        update: Takes optimiser steps.
        config: Minibatch size and passes.
        seed: Orders the minibatches.

    Returns:
        What happened. With nothing accepted there is no update; the step counts all the same.

    Raises:
        ValueError: The policy gave text without its token ids.
    """
    known = [t.reward for t in trajectories if t.reward is not None]
    accepted = [t for t in trajectories if t.reward == 1.0]
    if any(not call.token_ids for t in accepted for call in t.calls):
        raise ValueError(
            "this policy gives no token ids, and training uses exact ids only; use TransformersPolicy, VLLMPolicy, or "
            "OpenAIPolicy with a server that returns token ids"
        )
    stats: list[UpdateStats] = []
    for epoch in range(config.sft_epochs):
        order = list(accepted)
        random.Random(derive_seed(seed, "minibatches", epoch)).shuffle(order)
        for start in range(0, len(order), config.minibatch):
            batch = [sample for t in order[start : start + config.minibatch] for sample in t.samples()]
            batch = [sample for sample in batch if any(sample.mask[1:])]
            if batch:
                stats.append(update.update(batch))
    return StepResult(
        reward=fmean(known) if known else 0.0,
        rollouts=len(trajectories),
        accepted=len(accepted),
        updates=len(stats),
        loss=stats[0].loss if stats else None,
        grad_norm=max(s.grad_norm for s in stats) if stats else None,
        tokens=sum(s.tokens for s in stats),
    )
