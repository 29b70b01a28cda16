"""Best-of-N: what selection gains from noise alone, without a proposer or a change (a control)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from optimizers.archive.records import OutcomeTable
from optimizers.search.scoring import Scorer
from whale_env.types import Task


@dataclass(frozen=True, slots=True)
class BestOf:
    """What selection makes of noise alone.

    Attributes:
        means: Mean reward of the same harness under each seed.
        best: The largest: what picking the best of so many reports.
        mean: Their mean: what the harness is worth.
        rollouts: Rollouts it took.
    """

    means: tuple[float, ...]
    best: float
    mean: float
    rollouts: int

    @property
    def excess(self) -> float:
        """The gain that is reported where there is none (the winner's curse)."""
        return self.best - self.mean

    def to_json(self) -> Mapping[str, object]:
        """Returns the numbers as JSON data."""
        return {"means": list(self.means), "best": self.best, "mean": self.mean, "excess": self.excess}


async def best_of(harness: str, tasks: Sequence[Task], samples: int, count: int, score: Scorer) -> BestOf:
    """Scores one harness again and again with other seeds, as if each time were a candidate: no proposer, no change.

    Args:
        harness: Its id.
        tasks: The search tasks.
        samples: Rollouts per task.
        count: How many candidates a search of the same budget would score.
        score: Rolls out.

    Raises:
        ValueError: ``count`` is not positive, or no reward is known.
    """
    if count < 1:
        raise ValueError(f"count is {count}; at least 1 scoring is needed")
    tables, rollouts = [], 0
    for number in range(count):
        played = (await score([harness], tasks, samples, f"best-of/{number}"))[harness]
        tables.append(OutcomeTable.of(harness, played))
        rollouts += len(played)
    means = tuple(table.mean for table in tables if table.rewards)
    if not means:
        raise ValueError(f"none of {rollouts} rollouts of {harness} has a known reward")
    return BestOf(means, max(means), fmean(means), rollouts)
