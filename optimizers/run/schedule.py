"""Which phase comes when, and when an adaptive phase is over. Pure functions of training signals; no test score."""

from __future__ import annotations

from collections.abc import Sequence
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
        most: Steps or iterations that it may have.
        whole: Whether it has them all, whatever an adaptive rule says: what no later phase could spend.
    """

    kind: Literal["weights", "harness"]
    cycle: int
    most: int
    whole: bool = True

    @property
    def name(self) -> str:
        """``weights-1``, ``harness-1`` and so on."""
        return f"{self.kind}-{self.cycle}"


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run may spend in all, and how large a phase may be.

    Attributes:
        method: Who spends it.
        steps: Weight steps in all.
        scorings: Harnesses scored in all.
        candidates: Harnesses scored in an iteration.
        incoming: What scoring a phase's incoming harness counts: 1, or 0 where it comes on top.
        phase_steps: Most steps of one phase.
        phase_iterations: Most iterations of one phase.
        shortest: Steps that a weight phase should have at least.
    """

    method: Method
    steps: int
    scorings: int
    candidates: int
    incoming: int
    phase_steps: int
    phase_iterations: int
    shortest: int

    def next(self, done: Sequence[tuple[Phase, int]]) -> Phase | None:
        """Returns the next phase, or None once all is spent.

        WHALE and FST alternate. Harness phases stand between weight phases, so the last of them takes what iterations
        are left, and the run ends after weights. Stagewise does all of one before the other; harness-only is one phase.

        Args:
            done: The phases so far, and the steps or iterations that each took.
        """
        steps = self.steps - sum(count for phase, count in done if phase.kind == "weights")
        searches = [count for phase, count in done if phase.kind == "harness"]
        left = self.scorings - sum(self.incoming + count * self.candidates for count in searches)
        iterations = max(0, (left - self.incoming) // self.candidates)
        weights, harness = len(done) - len(searches) + 1, len(searches) + 1
        if steps <= 0 and iterations <= 0:
            return None
        if steps <= 0:
            return Phase("harness", harness, iterations)
        if self.method == "weight-only":
            return Phase("weights", weights, min(self.phase_steps, steps))
        if iterations <= 0 or self.method == "stagewise":
            return Phase("weights", weights, steps)
        adaptive = self.method == "adaptive"
        if done and done[-1][0].kind == "weights":
            if steps <= (2 * self.shortest if adaptive else self.phase_steps):
                return Phase("harness", harness, iterations)
            return Phase("harness", harness, min(self.phase_iterations, iterations), not adaptive)
        room = max(1, steps - self.shortest) if adaptive else steps
        return Phase("weights", weights, min(self.phase_steps, room), not adaptive)

    def phases(self) -> list[Phase]:
        """Returns all phases, each as long as it may be."""
        found: list[Phase] = []
        while phase := self.next([(one, one.most) for one in found]):
            found.append(phase)
        return found


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
