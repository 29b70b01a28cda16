"""Which phase comes when, and when an adaptive phase is over. Pure functions of training signals; no test score."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from optimizers.config import Method, ScheduleConfig


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of a run.

    Attributes:
        kind: What is optimised while the other is frozen.
        cycle: Counts from 1.
    """

    kind: Literal["weights", "harness"]
    cycle: int

    @property
    def name(self) -> str:
        """``weights-1``, ``harness-1`` and so on."""
        return f"{self.kind}-{self.cycle}"


def phases(method: Method, cycles: int) -> list[Phase]:
    """Returns the phases of a method, all with the same budgets: ``cycles`` weight and ``cycles - 1`` harness phases.

    WHALE alternates and its last cycle ends after the weights; the controls leave one kind out, or do all of one
    before the other (stagewise). FST alternates too, but its search may change prompt texts only.
    """

    def both() -> Iterator[Phase]:
        for cycle in range(1, cycles + 1):
            yield Phase("weights", cycle)
            if cycle < cycles:
                yield Phase("harness", cycle)

    plan = list(both())
    weights = [phase for phase in plan if phase.kind == "weights"]
    harness = [phase for phase in plan if phase.kind == "harness"]
    match method:
        case "weight-only":
            return weights
        case "harness-only":
            return harness
        case "stagewise":
            return weights + harness
        case _:
            return plan


def weights_over(rewards: Sequence[float], steps_per_epoch: int, config: ScheduleConfig) -> bool:
    """Whether an adaptive weight phase is over.

    It ends after more than ``min_epochs``, once the mean reward over the window has set no new best of the phase for
    ``patience``. The window counts before it is full too, as the mean of what there is; any strict improvement counts.

    Args:
        rewards: Mean verifier reward of each step of this phase.
        steps_per_epoch: Turns epochs into steps.
        config: The thresholds.
    """
    window, least, patience, most = (
        max(1, round(epochs * steps_per_epoch))
        for epochs in (config.window, config.min_epochs, config.patience, config.max_epochs)
    )
    if len(rewards) >= most:
        return True
    means = [fmean(rewards[max(0, end - window) : end]) for end in range(1, len(rewards) + 1)]
    return len(rewards) > least and _since_best(means) >= patience


def harness_over(best: Sequence[float], config: ScheduleConfig) -> bool:
    """Whether an adaptive harness phase is over.

    Args:
        best: The archive's best search reward at the frozen weights: once the incoming harness is scored, and after
            each iteration.
        config: The thresholds.
    """
    made = len(best) - 1
    if made >= config.max_iterations:
        return True
    return made >= config.min_iterations and _since_best(best) >= config.iteration_patience


def _since_best(values: Sequence[float]) -> int:
    """Returns how many values came after the last strict improvement of the maximum."""
    return len(values) - 1 - values.index(max(values))
