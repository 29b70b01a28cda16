"""The plug point of harness search: a `Proposer` reads the archive and writes candidate sources.

What it may read is in `Brief`: the archive, and public observations of search tasks. What it returns is source text;
nothing it writes runs before it has passed the validator, nor outside the cage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from optimizers.archive import Archive
from optimizers.ledger import ProposerCost
from whale_env.types import Observation, ToolSpec


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
    """

    env: str
    tools: tuple[ToolSpec, ...]
    observations: tuple[Observation, ...]
    archive: Archive
    incumbent: str
    weights_version: int
    count: int
    seed: int


@dataclass(frozen=True, slots=True)
class Proposal:
    """One candidate.

    Attributes:
        name: Short name, for people.
        source: Python source with one `harness_sdk.Harness` subclass.
        parent: Id of the harness it derives from.
        axis: Which part of a harness it changes (prompt, observation, parsing, feedback, history, budget).
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
    """A round's candidates and what they cost."""

    candidates: tuple[Proposal, ...]
    cost: ProposerCost = field(default_factory=ProposerCost)


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
