"""Which harness is accepted: one `Acceptance`, chosen by ``--search.selection``.

`Argmax` takes the best mean reward, the rule of arXiv 2609.00196. `Paired` survives noise: it takes only what a test on
fresh rollouts confirms (`optimizers.search.retest`). Under either a table competes only if nearly all of its rollouts
are known, harnesses are compared on the rollouts that all of them know, and where the incumbent itself does not compete
nothing can be compared with it: it stays. How rollouts are saved when a candidate is hopeless is
`optimizers.search.racing`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from optimizers.archive.records import OutcomeTable, common
from optimizers.config import PairedConfig, SearchConfig
from optimizers.search.retest import Retest, level, nominate, retest
from optimizers.search.scoring import TableScorer
from whale_env.types import Task


@dataclass(frozen=True, slots=True)
class Decision:
    """What is decided on at the end of an iteration.

    Attributes:
        incumbent: The accepted harness.
        tables: What all harnesses earned that were scored whole at the current weights.
        iteration: Counts from 1 within the phase; 0 has scored the incumbent only.
        most: Iterations that the phase may have.
        retests: Re-tests of the phase so far.
        label: Seeds of fresh rollouts derive from it; different for each decision.
    """

    incumbent: str
    tables: Sequence[OutcomeTable]
    iteration: int
    most: int
    retests: Sequence[Retest] = ()
    label: str = "retest"


@dataclass(frozen=True, slots=True)
class Accepted:
    """What was decided.

    Attributes:
        harness: Id of the accepted one, new or not.
        why: Reasons by harness id, where the scores alone do not tell.
        retest: The re-test, if there was one.
    """

    harness: str
    why: Mapping[str, str] = field(default_factory=dict)
    retest: Retest | None = None


class Acceptance(Protocol):
    """A rule of acceptance."""

    async def accept(self, decision: Decision, play: TableScorer) -> Accepted:
        """Decides.

        Args:
            decision: What is known.
            play: Rolls harnesses out once more, where the rule needs it.
        """
        ...


def argmax(tables: Sequence[OutcomeTable], incumbent: str) -> str:
    """Returns the harness with the best mean reward; ties: the incumbent, fewer turns, fewer tokens.

    Args:
        tables: All harnesses scored at the current weights.
        incumbent: The accepted harness. It stays where it does not compete.
    """
    competing = common([table for table in tables if table.competes])
    if incumbent not in {table.harness for table in competing}:
        return incumbent
    best = max(competing, key=lambda t: (t.mean, t.harness == incumbent, -t.turns, -t.tokens, t.harness))
    return best.harness


class Argmax:
    """Accepts the best mean reward among harnesses scored at the current weights."""

    async def accept(self, decision: Decision, play: TableScorer) -> Accepted:
        """Decides by the scores alone."""
        return Accepted(argmax(decision.tables, decision.incumbent))


class Paired:
    """Accepts what a paired test on fresh rollouts confirms; a whole phase keeps to one level."""

    def __init__(self, config: PairedConfig, searched: Sequence[Task], held: Sequence[Task] = ()) -> None:
        """Takes its settings.

        Args:
            config: How careful it is.
            searched: Tasks that scoring sees.
            held: Tasks that only the re-test sees.
        """
        self._config, self._tasks = config, (searched, held)

    async def accept(self, decision: Decision, play: TableScorer) -> Accepted:
        """Nominates a candidate, and has it and the incumbent played again."""
        config, incumbent = self._config, decision.incumbent
        competing = [table for table in decision.tables if table.competes]
        if decision.iteration == 0 or incumbent not in {table.harness for table in competing}:
            return Accepted(incumbent)
        failed = {test.nominee for test in decision.retests if not test.accepted}
        nominee = nominate(competing, incumbent, failed, config.screen).nominee
        if nominee is None:
            return Accepted(incumbent)
        spent = sum(test.spent for test in decision.retests)
        share = level(config.alpha, spent, decision.most - decision.iteration + 1)
        tested = await retest(nominee, incumbent, self._tasks, play, share, config, decision.label)
        told = f"re-test on {tested.rollouts} fresh rollouts: {tested.comparison.gain:+.3f}, p = {tested.looks[-1]:.4f}"
        return Accepted(nominee if tested.accepted else incumbent, {nominee: told}, tested)


def acceptance(config: SearchConfig, searched: Sequence[Task], held: Sequence[Task] = ()) -> Acceptance:
    """Returns the rule that the configuration asks for.

    Args:
        config: The search's configuration.
        searched: Tasks that scoring sees.
        held: Tasks held out from it.
    """
    return Paired(config.paired, searched, held) if config.selection == "paired" else Argmax()
