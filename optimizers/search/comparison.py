"""Two harnesses on the rollouts that both have: the gain, and how likely chance alone makes it as large.

Which of them is accepted is `optimizers.search.acceptance`; the tests are `optimizers.statistics`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from optimizers.archive.records import OutcomeTable
from optimizers.statistics import sign_flip

GRID = 1000
"""Rewards that are not whole numbers are compared to this many parts of 1."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A candidate against the incumbent on the rollouts that both have.

    Attributes:
        candidate: Its id.
        tasks: Tasks with at least one pair of known rewards.
        pairs: (task, index) pairs with both rewards known.
        better: Tasks on which the candidate earned more.
        worse: Tasks on which it earned less.
        gain: Mean reward difference over pairs.
        p: One-sided exact p-value of `optimizers.statistics.sign_flip`.
        adjusted: ``p`` after Holm's correction for all candidates compared at once.
    """

    candidate: str
    tasks: int
    pairs: int
    better: int
    worse: int
    gain: float
    p: float
    adjusted: float

    def to_json(self) -> dict[str, Any]:
        """Returns the comparison as JSON data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Comparison:
        """Rebuilds a comparison from `to_json`."""
        return cls(**data)


def compare(candidate: OutcomeTable, incumbent: OutcomeTable) -> Comparison:
    """Compares two harnesses on the same (task, index) rollouts.

    A rollout whose reward only one of them has says nothing and is left out. With one rollout per task the p-value is
    the exact McNemar test, else the exact sign-flip permutation test over tasks: tasks are the independent units, so
    what a task's rollouts share counts once.
    """
    by_task: dict[str, list[float]] = defaultdict(list)
    for key, reward in candidate.rewards.items():
        if key in incumbent.rewards:
            by_task[key[0]].append(reward - incumbent.rewards[key])
    sums = [sum(values) for values in by_task.values()]
    pairs = sum(len(values) for values in by_task.values())
    p = sign_flip(_whole(sums))
    gain = sum(sums) / pairs if pairs else 0.0
    better, worse = sum(s > 0 for s in sums), sum(s < 0 for s in sums)
    return Comparison(candidate.harness, len(sums), pairs, better, worse, gain, p, p)


def _whole(sums: Sequence[float]) -> list[int]:
    if all(float(value).is_integer() for value in sums):
        return [int(value) for value in sums]
    return [round(value * GRID) for value in sums]
