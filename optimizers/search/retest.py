"""The re-test: a nominee and the incumbent play again on fresh rollouts, and only what those confirm is accepted.

With a few hundred noisy rollouts and several candidates the best of them is often only the luckiest (the winner's
curse). So a candidate is nominated on the (task, index) outcomes that it has in common with the incumbent, and tested
on rollouts that took no part in choosing it. The rule made of it is `optimizers.search.acceptance.Paired`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from harness_sdk.randomness import derive_seed
from optimizers.archive.records import OutcomeTable
from optimizers.config import PairedConfig
from optimizers.search.comparison import Comparison, compare
from optimizers.search.scoring import TableScorer
from optimizers.statistics import holm
from whale_env.types import Task


@dataclass(frozen=True, slots=True)
class Nomination:
    """What the first scoring says.

    Attributes:
        nominee: The candidate worth a re-test, or None.
        comparisons: All candidates against the incumbent, the largest gain first.
    """

    nominee: str | None
    comparisons: tuple[Comparison, ...]


def nominate(
    tables: Sequence[OutcomeTable], incumbent: str, excluded: Collection[str] = (), screen: float = 0.5
) -> Nomination:
    """Picks the candidate to test again: the largest paired gain, if it passes the screen.

    Args:
        tables: Harnesses scored at the current weights, the incumbent among them.
        incumbent: The accepted harness.
        excluded: Harnesses that may not be nominated: those that failed a re-test at these weights.
        screen: Largest p-value that is worth a re-test.

    Raises:
        ValueError: The incumbent has no table.
    """
    by_id = {table.harness: table for table in tables}
    if incumbent not in by_id:
        raise ValueError(f"the incumbent {incumbent!r} is not scored at these weights; score it first")
    rivals = [table for table in tables if table.harness != incumbent and table.harness not in excluded]
    found = [compare(table, by_id[incumbent]) for table in rivals]
    adjusted = holm([comparison.p for comparison in found])
    found = [replace(comparison, adjusted=p) for comparison, p in zip(found, adjusted, strict=True)]
    found.sort(key=lambda c: (-c.gain, by_id[c.candidate].turns, by_id[c.candidate].tokens, c.candidate))
    best = next((c for c in found if c.pairs), None)
    chosen = best.candidate if best is not None and best.gain > 0 and best.p <= screen else None
    return Nomination(chosen, tuple(found))


def level(alpha: float, spent: float, left: int) -> float:
    """Returns the level of the next re-test of a phase, so that all its re-tests together keep to ``alpha``.

    What is left is shared out evenly over the decisions left. A re-test that accepts gives its share back (the fallback
    procedure, Wiens 2003): the caller adds `Retest.spent` after each.

    Args:
        alpha: Level of the whole phase.
        spent: Sum of what its re-tests have spent.
        left: Decisions that may still come, this one included.
    """
    return max(0.0, alpha - spent) / max(left, 1)


@dataclass(frozen=True, slots=True)
class Retest:
    """What fresh rollouts say of a nominee.

    Attributes:
        nominee: Its id.
        accepted: Whether it replaces the incumbent.
        level: The level it was tested at.
        looks: p-value after each round.
        comparison: All fresh rollouts, holdout tasks included.
        searched: Gain on the tasks that the search sees, fresh rollouts.
        holdout: Gain on the tasks held out, or None if none are.
        rollouts: Rollouts it took, both harnesses together, infrastructure failures included.
    """

    nominee: str
    accepted: bool
    level: float
    looks: tuple[float, ...]
    comparison: Comparison
    searched: float
    holdout: float | None
    rollouts: int

    @property
    def spent(self) -> float:
        """What counts against the phase's level: nothing after an acceptance."""
        return 0.0 if self.accepted else self.level

    @property
    def overfit(self) -> float | None:
        """How much of the gain holds only on the tasks that the search sees (None without a holdout)."""
        return None if self.holdout is None else self.searched - self.holdout

    def to_json(self) -> dict[str, Any]:
        """Returns the re-test as JSON data."""
        return {**asdict(self), "looks": list(self.looks), "spent": self.spent, "overfit": self.overfit}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Retest:
        """Rebuilds a re-test from `to_json`."""
        known = {name: data[name] for name in cls.__dataclass_fields__}
        comparison = Comparison.from_json(data["comparison"])
        return cls(**{**known, "looks": tuple(data["looks"]), "comparison": comparison})


async def retest(
    nominee: str,
    incumbent: str,
    tasks: tuple[Sequence[Task], Sequence[Task]],
    score: TableScorer,
    at: float,
    config: PairedConfig | None = None,
    label: str = "retest",
) -> Retest:
    """Plays nominee and incumbent again, with seeds that no earlier scoring has used, and decides.

    Only fresh rollouts count, so that having been the best of many does not help: one hypothesis is tested on data that
    took no part in choosing it. After each round but the last, ``early`` of the level is spent; all of the looks
    together keep to ``at`` by the union bound. Holdout tasks count like the others and show overfitting besides.

    Args:
        nominee: Id of the candidate.
        incumbent: Id of the accepted harness.
        tasks: Tasks that the search sees, and tasks held out from it (may be empty).
        score: Rolls out.
        at: Level of this test (`level`).
        config: Rounds and rollouts.
        label: Seeds derive from it; different for each re-test.
    """
    config = config or PairedConfig()
    searched, held = tasks
    fresh = {harness: OutcomeTable(harness, {}) for harness in (nominee, incumbent)}
    looks: list[float] = []
    rollouts, accepted, samples = 0, False, config.samples(len(searched) + len(held))
    for number in range(config.rounds):
        played = await score([nominee, incumbent], [*searched, *held], samples, f"{label}/{number}")
        for harness, table in fresh.items():
            fresh[harness] = table.with_round(played[harness], number, samples)
            rollouts += played[harness].played
        result = compare(fresh[nominee], fresh[incumbent])
        looks.append(result.p)
        verdict = look(result.p, number, at, config)
        accepted = verdict is True
        if verdict is not None:
            break
    ids = {task.id for task in searched}, {task.id for task in held}
    gains = [compare(fresh[nominee].on(part), fresh[incumbent].on(part)).gain for part in ids]
    return Retest(nominee, accepted, at, tuple(looks), result, gains[0], gains[1] if held else None, rollouts)


def look(p: float, number: int, at: float, config: PairedConfig) -> bool | None:
    """Decides after one round of a re-test.

    Args:
        p: One-sided p-value of all fresh rollouts so far.
        number: The round, from 0.
        at: Level of the whole re-test.
        config: Rounds, shares and futility.

    Returns:
        True accepts, False does not, None plays another round.
    """
    if number == config.rounds - 1:
        return p <= at * (1 - config.early * (config.rounds - 1))
    if p <= at * config.early:
        return True
    return False if p > config.futility else None


def slices(tasks: Sequence[Task], share: float, seed: int = 0) -> tuple[list[Task], list[Task]]:
    """Splits search tasks into those that the search sees and a holdout slice, the same for the same seed.

    Args:
        tasks: The tasks.
        share: Share of tasks held out, from 0 to below 1.
        seed: The run's seed.

    Raises:
        ValueError: The share is out of range.
    """
    if not 0 <= share < 1:
        raise ValueError(f"a holdout share of {share} is not from 0 to below 1")
    order = sorted(tasks, key=lambda task: derive_seed("holdout", seed, task.id))
    held = {task.id for task in order[: round(share * len(tasks))]}
    return [task for task in tasks if task.id not in held], [task for task in tasks if task.id in held]
