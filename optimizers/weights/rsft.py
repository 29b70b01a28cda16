"""RSFT, the default weight update: keep the rollouts that the verifier accepts, and learn them.

Online rejection-sampling fine-tuning. Which minibatches make one optimiser step is decided here; gradients and master
weights are `optimizers.weights.trainer`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from harness_sdk.randomness import derive_seed
from harness_sdk.trajectory import Trajectory
from optimizers.config import WeightsConfig
from optimizers.weights.protocol import UpdateStats, samples_of
from optimizers.weights.trainer import OptimizerStep, Trainer


class RSFTUpdate:
    """Maximum likelihood on accepted rollouts (reward 1), a few passes in minibatches."""

    def __init__(self, model: Any, config: WeightsConfig) -> None:
        """Takes over a model.

        Args:
            model: A causal language model of transformers in float32.
            config: Minibatches, passes, and how an optimiser step is taken.
        """
        self.trainer = Trainer(model, config.trainer)
        self._config = config

    def update(self, trajectories: Sequence[Trajectory], seed: int) -> UpdateStats:
        """Learns the accepted rollouts of one step; with nothing accepted the weights stay as they are.

        Raises:
            NoTokenIdsError: The policy gave text without its token ids.
            DivergedError: Gradient after gradient is not finite.
        """
        accepted = [samples_of(trajectory) for trajectory in trajectories if trajectory.reward == 1.0]
        steps: list[OptimizerStep] = []
        for epoch in range(self._config.sft_epochs):
            order = list(accepted)
            random.Random(derive_seed(seed, "minibatches", epoch)).shuffle(order)
            for start in range(0, len(order), self._config.minibatch):
                batch = [sample for samples in order[start : start + self._config.minibatch] for sample in samples]
                if batch:
                    steps.append(self.trainer.step(batch))
        return summed(len(accepted), steps)

    def weights(self) -> Mapping[str, Tensor]:
        """Returns the master weights by parameter name."""
        return self.trainer.weights()

    def save(self, folder: Path) -> None:
        """Writes weights and optimiser state."""
        self.trainer.save(folder)

    def load(self, folder: Path) -> None:
        """Reads what `save` wrote."""
        self.trainer.load(folder)

    def reset(self) -> None:
        """Forgets the moments of AdamW."""
        self.trainer.reset_optimizer()


def summed(accepted: int, steps: Sequence[OptimizerStep]) -> UpdateStats:
    """Sums optimiser steps up.

    Args:
        accepted: Rollouts that were learnt from.
        steps: What the trainer did with them.
    """
    taken = [step for step in steps if not step.skipped]
    return UpdateStats(
        accepted,
        len(taken),
        loss=taken[0].loss if taken else None,
        grad_norm=max(step.grad_norm for step in taken) if taken else None,
        tokens=sum(step.tokens for step in taken),
        skipped=len(steps) - len(taken),
    )
