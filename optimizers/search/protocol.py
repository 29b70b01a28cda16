"""The plug point of the harness phase: a `HarnessSearch` proposes, scores and accepts harnesses at frozen weights.

``--search.method module:Class`` names one; `optimizers.search.meta_harness.MetaHarness` is the default. It gets a
`Bench`, and is asked for one iteration at a time: first to propose, then to score and accept. What either returns is
journaled, so that a killed run neither pays nor rolls out twice. When a phase ends is the run's business
(`optimizers.run.schedule`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from harness_sdk.loader import LoadedHarness
from optimizers.archive.records import HarnessScore, Refusal
from optimizers.archive.store import Archive
from optimizers.config import ConfigError, SearchConfig
from optimizers.proposers.protocol import Check, Proposal, Proposed, Proposer
from optimizers.search.checks import checker
from optimizers.search.retest import Retest
from optimizers.search.scoring import Harnesses, Scorer
from whale_env.core import EnvHandle
from whale_env.slices import task_slice
from whale_env.types import Task

CHECKED = 3
"""Search tasks on which a candidate's behaviour is checked before any model call."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What a search works with.

    Attributes:
        config: The search's configuration.
        seed: The run's seed.
        env: A sealed handle: it cannot open the test split.
        tasks: The examples.
        archive: All harnesses so far; what is tried is filed there.
        harnesses: The same, loaded; a candidate must be known there before it can be scored.
        proposer: Writes candidates.
        check: Judges a source, and loads it.
    """

    config: SearchConfig
    seed: int
    env: EnvHandle
    tasks: Sequence[Task]
    archive: Archive
    harnesses: Harnesses
    proposer: Proposer
    check: Check

    @classmethod
    def of(
        cls, config: SearchConfig, seed: int, env: EnvHandle, archive: Archive, proposer: Proposer, h0: LoadedHarness
    ) -> Bench:
        """Sets a bench up.

        Args:
            config: The search's configuration.
            seed: The run's seed.
            env: A sealed handle.
            archive: Where harnesses are kept.
            proposer: Writes candidates.
            h0: The harness that the run begins with; it may be trusted.
        """
        tasks = task_slice(env.tasks("search"), config.examples, seed)
        if not tasks:
            raise ConfigError(f"{env.name} has no task in its search split")
        harnesses = Harnesses(archive, env.prototype.domain.spec.name, allow_uncaged=config.allow_uncaged)
        harnesses.know(h0)
        check = checker(env, tasks[:CHECKED], allow_uncaged=config.allow_uncaged)
        return cls(config, seed, env, tasks, archive, harnesses, proposer, check)


@dataclass(frozen=True, slots=True)
class Scored:
    """A harness that an iteration scored."""

    id: str
    name: str
    score: HarnessScore


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an iteration did.

    Attributes:
        accepted: Id of the harness that is accepted now.
        best: Its search reward at these weights.
        scored: What was scored, in order.
        refused: What was not; their sources are in the archive.
        why: The selection rule's reasons by id, where the scores do not tell.
        retest: The re-test, if there was one.
    """

    accepted: str
    best: float
    scored: Sequence[Scored] = ()
    refused: Sequence[Refusal] = ()
    why: Mapping[str, str] = field(default_factory=dict)
    retest: Retest | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the outcome as JSON data."""
        return {
            "accepted": self.accepted,
            "best": self.best,
            "scored": [{"id": one.id, "name": one.name, **asdict(one.score)} for one in self.scored],
            "refused": [{"name": refusal.name, "why": refusal.why} for refusal in self.refused],
            "why": dict(self.why),
            "retest": self.retest and self.retest.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Outcome:
        """Rebuilds an outcome from `to_json`; the sources of what was refused are in the archive only."""
        return cls(
            data["accepted"],
            data["best"],
            tuple(_scored(dict(one)) for one in data["scored"]),
            tuple(Refusal(one["name"], "", one["why"]) for one in data["refused"]),
            data["why"],
            Retest.from_json(data["retest"]) if data["retest"] else None,
        )


def _scored(data: dict[str, Any]) -> Scored:
    return Scored(data.pop("id"), data.pop("name"), HarnessScore(**data))


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a run an iteration stands.

    Attributes:
        cycle: Counts from 1; each has one harness phase.
        iteration: 0 scores the incoming harness; those that propose count from 1.
        version: Version of the frozen weights.
        incumbent: Id of the accepted harness.
        most: Iterations that the phase may have, besides scoring the incoming harness.
        before: Outcomes of the phase's earlier iterations, the scoring of the incoming harness among them.
    """

    cycle: int
    iteration: int
    version: int
    incumbent: str
    most: int
    before: Sequence[Outcome] = ()


class HarnessSearch(Protocol):
    """A search over harness sources. A class of one's own is made with a `Bench`, as ``Class(bench)``."""

    async def propose(self, at: Place, folder: Path, usd_left: float) -> Proposed:
        """Writes candidates; costs no rollout. Not asked in iteration 0.

        Args:
            at: Where the run stands.
            folder: Where a conversation may be kept, so that a killed run goes on with it.
            usd_left: Money that may still be spent.
        """
        ...

    async def iterate(self, at: Place, proposals: Sequence[Proposal], score: Scorer) -> Outcome:
        """Scores candidates and accepts one, or keeps the incumbent.

        Args:
            at: Where the run stands.
            proposals: What was proposed; none in iteration 0, which scores the incumbent.
            score: Rolls out at the frozen weights; what it takes is counted.
        """
        ...
