"""A weight update of one's own in 40 lines: group-relative policy gradient (GRPO), one step on each batch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from harness_sdk.trajectory import Trajectory
from optimizers.config import WeightsConfig
from optimizers.weights.protocol import UpdateStats, samples_of
from optimizers.weights.trainer import Trainer


class GRPO:
    def __init__(self, model: Any, config: WeightsConfig) -> None:
        self.trainer = Trainer(model, config.trainer)

    def update(self, trajectories: Sequence[Trajectory], seed: int) -> UpdateStats:
        groups: dict[str, list[Trajectory]] = defaultdict(list)
        for trajectory in trajectories:
            if trajectory.reward is not None:
                groups[trajectory.task.id].append(trajectory)
        samples, advantages = [], []
        for group in groups.values():
            rewards = [trajectory.reward or 0.0 for trajectory in group]
            mean, spread = fmean(rewards), pstdev(rewards)
            for trajectory, reward in zip(group, rewards, strict=True):
                if spread:
                    samples += (mine := samples_of(trajectory))
                    advantages += [(reward - mean) / spread] * len(mine)
        if not samples:
            return UpdateStats()
        step = self.trainer.step(samples, advantages)
        return UpdateStats(len(samples), 1, step.loss, step.grad_norm, step.tokens)

    def weights(self) -> Mapping[str, Any]:
        return self.trainer.weights()

    def save(self, folder: Path) -> None:
        self.trainer.save(folder)

    def load(self, folder: Path) -> None:
        self.trainer.load(folder)

    def reset(self) -> None:
        self.trainer.reset_optimizer()
