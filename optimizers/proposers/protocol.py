"""The plug point of harness search: a `Proposer` reads the archive and writes candidate sources.

What it may read is in `Brief`: the archive, and public observations of search tasks. What it returns is source text;
nothing it writes runs before it has passed the validator, nor outside the cage. Proposers that ask a language model
are in `optimizers.proposers`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from harness_sdk.loader import LoadedHarness
from optimizers.archive.store import Archive
from optimizers.record.ledger import ProposerCost
from whale_env.errors import InputError
from whale_env.types import Observation, ToolSpec


class ProposerSetupError(InputError):
    """A proposer cannot work as it is set up (no key, unknown model, no cage); one line that says what to change."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What validator and behaviour checks say of a source.

    Attributes:
        ok: Whether it may be scored.
        text: The report, from which it can be repaired.
        harness: The harness, loaded, or None if it does not validate.
    """

    ok: bool
    text: str
    harness: LoadedHarness | None = None

    @property
    def id(self) -> str:
        """Its harness id, empty if it does not validate."""
        return self.harness.id if self.harness else ""


Check: TypeAlias = Callable[[str], Awaitable[Verdict]]
"""Judges a source without a model (`optimizers.search.checks.checker` makes one)."""


@dataclass(frozen=True, slots=True)
class Brief:
    """What a proposer is asked.

    Attributes:
        env: The domain's name.
        tools: Its primitives.
        observations: First observations of some search tasks.
        archive: All harnesses so far, with scores and trajectories.
        incumbent: Id of the accepted harness.
        weights_version: Scores at this version count.
        count: Candidates wanted.
        seed: Seed of this round.
        check: Judges a source before it is handed in. Proposers that ask a model need it.
        folder: Where this round's conversation is kept, so that a killed run goes on with it. The same proposers
            need it.
        usd_left: Money that may still be spent.
        restriction: What candidates must keep to besides; the check holds them to it. "" is nothing.
    """

    env: str
    tools: tuple[ToolSpec, ...]
    observations: tuple[Observation, ...]
    archive: Archive
    incumbent: str
    weights_version: int
    count: int
    seed: int
    check: Check | None = None
    folder: Path | None = None
    usd_left: float = math.inf
    restriction: str = ""


@dataclass(frozen=True, slots=True)
class Proposal:
    """One candidate.

    Attributes:
        name: Short name, for people.
        source: Python source with one `harness_sdk.Harness` subclass.
        parent: Id of the harness it derives from.
        axis: Which part of a harness it changes (prompt, observation, parsing, feedback, history, budget, tools).
        hypothesis: What should get better, and why.
        traits: The proposer's own record, kept in the archive and given back to it.
    """

    name: str
    source: str
    parent: str | None
    axis: str
    hypothesis: str
    traits: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Proposed:
    """A round's candidates and what they cost.

    Attributes:
        candidates: What was written.
        cost: What was spent, for nothing too.
        ended: Why the round ended, in words for people; empty if there is nothing to say.
    """

    candidates: tuple[Proposal, ...]
    cost: ProposerCost = field(default_factory=ProposerCost)
    ended: str = ""


def first_new(brief: Brief, written: Iterable[tuple[str, Proposal]]) -> Proposed:
    """Takes the first candidates that have no score at these weights: how a proposer without a model ends its round.

    Args:
        brief: The round.
        written: Harness id and proposal, in order; no more are drawn than are needed.
    """
    tried = brief.archive.scored_at(brief.weights_version) | {brief.incumbent}
    found: list[Proposal] = []
    for harness_id, proposal in written:
        if harness_id not in tried:
            tried.add(harness_id)
            found.append(proposal)
            if len(found) == brief.count:
                break
    return Proposed(tuple(found), ProposerCost(conversations=1))


class Proposer(Protocol):
    """Writes candidates."""

    async def propose(self, brief: Brief) -> Proposed:
        """Writes up to ``brief.count`` candidates.

        Returns:
            What it has; fewer, or none, is no error.
        """
        ...


class ScriptedProposer:
    """A proposer that hands out given sources, in order: for tests."""

    def __init__(self, rounds: Sequence[Sequence[str]]) -> None:
        """Takes the sources of each round."""
        self._rounds = [list(sources) for sources in rounds]

    async def propose(self, brief: Brief) -> Proposed:
        """Returns the next round's sources."""
        sources = self._rounds.pop(0) if self._rounds else []
        return Proposed(tuple(Proposal(f"scripted-{i}", s, brief.incumbent, "any", "") for i, s in enumerate(sources)))
