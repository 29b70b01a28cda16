"""The plug point of the weight phase: a `WeightUpdate` learns from all rollouts of one step.

``--weights.update module:Class`` names one of your own; it is built with the model (transformers, float32, on
the device that trains) and `WeightsConfig`. The default is `optimizers.weights.rsft`. Rollouts come from
`optimizers.run.whale`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from harness_sdk.trajectory import Sample, Trajectory
from optimizers.config import WeightsConfig
from whale_env.errors import InputError, WhaleError


class NoTokenIdsError(InputError):
    """Rollouts cannot be learnt from: the policy gave text without the exact ids that it sampled."""


class DivergedError(WhaleError, ArithmeticError):
    """Training came to nothing: gradient after gradient was not finite."""


@dataclass(frozen=True, slots=True)
class UpdateStats:
    """What an update made of one step's rollouts.

    Attributes:
        accepted: Rollouts that were learnt from.
        updates: Optimiser steps taken; 0 leaves the weights as they are.
        loss: Loss at the first optimiser step, or None.
        grad_norm: Largest gradient norm, or None.
        tokens: Model tokens that were learnt from, once for each pass.
        skipped: Optimiser steps that were left out because their gradient was not finite.
    """

    accepted: int = 0
    updates: int = 0
    loss: float | None = None
    grad_norm: float | None = None
    tokens: int = 0
    skipped: int = 0


class WeightUpdate(Protocol):
    """Learns from rollouts, and keeps the weights and whatever the optimiser remembers."""

    def update(self, trajectories: Sequence[Trajectory], seed: int) -> UpdateStats:
        """Learns from one step.

        Args:
            trajectories: All rollouts of the step, failed ones too, those of a task next to each other. A reward of
                None is unknown: never learn from it. `samples_of` gives the exact ids.
            seed: For what is random.
        """
        ...

    def weights(self) -> Mapping[str, Any]:
        """Returns the weights by parameter name, as the policy is to sample with."""
        ...

    def save(self, folder: Path) -> None:
        """Writes weights (``model.safetensors``) and optimiser state into an existing folder."""
        ...

    def load(self, folder: Path) -> None:
        """Reads what `save` wrote, to go on as if nothing had happened."""
        ...

    def reset(self) -> None:
        """Forgets what the optimiser remembers; a new phase begins."""
        ...


def samples_of(trajectory: Trajectory) -> list[Sample]:
    """Returns what can be learnt of a rollout: its samples that hold an id which the model sampled.

    Raises:
        NoTokenIdsError: The policy gave text without its token ids.
    """
    if any(not call.token_ids for call in trajectory.calls):
        raise NoTokenIdsError(
            "this policy gives no token ids, and training uses exact ids only; use TransformersPolicy, VLLMPolicy, or "
            "OpenAIPolicy with a server that returns token ids"
        )
    return [sample for sample in trajectory.samples() if any(sample.mask[1:])]


class IdleUpdate:
    """Learns nothing and remembers what it was shown: for tests, and to see a run without training."""

    def __init__(self, model: Any, config: WeightsConfig) -> None:
        """Takes over a model."""
        self._model = model
        self.seen: list[Trajectory] = []

    def update(self, trajectories: Sequence[Trajectory], seed: int) -> UpdateStats:
        """Remembers the rollouts."""
        self.seen += trajectories
        return UpdateStats()

    def weights(self) -> Mapping[str, Any]:
        """Returns the weights as they came."""
        return {name: parameter.detach() for name, parameter in self._model.named_parameters()}

    def save(self, folder: Path) -> None:
        """Has nothing to write that `load` would need."""

    def load(self, folder: Path) -> None:
        """Has nothing to read."""

    def reset(self) -> None:
        """Has nothing to forget."""
