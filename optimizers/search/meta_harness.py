"""Meta-Harness, the harness phase: a proposer writes harness source, the search split scores it, the best is accepted.

`MetaHarness.iterate` is one iteration at frozen weights: admit what the proposer wrote, score it, all candidates
through one engine, and select. The archive is `optimizers.archive`, proposers are `optimizers.proposers`, the rule by
which one is accepted `optimizers.search.acceptance`; phases are `optimizers.run.whale`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness_sdk.loader import LoadedHarness
from harness_sdk.randomness import derive_seed
from harness_sdk.trajectory import Trajectory
from optimizers.archive.records import Entry, Iteration, Refusal
from optimizers.archive.store import Archive
from optimizers.proposers.protocol import Brief, Check, Proposal, Proposed
from optimizers.search.acceptance import Decision, acceptance
from optimizers.search.protocol import Bench, Outcome, Place, Scored
from optimizers.search.racing import race
from optimizers.search.retest import slices
from optimizers.search.scoring import Scorer, tabled

SHOWN = 8
"""First observations of search tasks that a proposer is shown."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A proposal that passed the validator and the behaviour checks."""

    proposal: Proposal
    harness: LoadedHarness

    def entry(self, cycle: int, iteration: int) -> Entry:
        """Returns the archive's record of it."""
        wrote = self.proposal
        told = wrote.name, wrote.parent, wrote.hypothesis, wrote.axis
        return Entry(self.harness.id, *told, cycle, iteration, wrote.traits)


async def admit(
    proposals: Sequence[Proposal], archive: Archive, version: int, check: Check
) -> tuple[list[Candidate], list[Refusal]]:
    """Judges proposals and drops those that are scored already. Nothing here costs a model call.

    Args:
        proposals: What a proposer wrote.
        archive: Harnesses so far. One that other weights have scored may be tried again.
        version: The frozen weights.
        check: Validator and behaviour checks (`optimizers.search.checks.checker`).

    Returns:
        Candidates and refusals; every proposal is in exactly one of the two.
    """
    seen = archive.scored_at(version)
    candidates: list[Candidate] = []
    refused: list[Refusal] = []
    for proposal in proposals:
        verdict = await check(proposal.source)
        harness, why = verdict.harness, verdict.text
        if verdict.ok and harness is not None and harness.id not in seen:
            seen.add(harness.id)
            candidates.append(Candidate(proposal, harness))
            continue
        if verdict.ok and harness is not None:
            why = f"this source is scored at these weights already ({harness.id})"
        refused.append(
            Refusal(proposal.name, proposal.source, why, proposal.parent, proposal.axis, proposal.hypothesis)
        )
    return candidates, refused


class MetaHarness:
    """Scores and selects harnesses on the search split.

    Attributes:
        searched: Examples that scoring sees.
        held: Those that only a re-test sees.
    """

    def __init__(self, bench: Bench) -> None:
        """Takes what it works with."""
        self._bench, self._config = bench, bench.config
        share = self._config.holdout if self._config.selection == "paired" else 0.0
        self.searched, self.held = slices(bench.tasks, share, bench.seed)
        self._acceptance = acceptance(self._config, self.searched, self.held)

    async def propose(self, at: Place, folder: Path, usd_left: float) -> Proposed:
        """Has the proposer write candidates."""
        env = self._bench.env
        brief = Brief(
            env=env.prototype.domain.spec.name,
            tools=env.prototype.tools,
            observations=tuple(env.open(task, 0)[1] for task in self.searched[:SHOWN]),
            archive=self._bench.archive,
            incumbent=at.incumbent,
            weights_version=at.version,
            count=self._config.candidates,
            seed=derive_seed(self._bench.seed, "proposals", at.cycle, at.iteration),
            check=self._bench.check,
            folder=folder,
            usd_left=usd_left,
        )
        return await self._bench.proposer.propose(brief)

    async def iterate(self, at: Place, proposals: Sequence[Proposal], score: Scorer) -> Outcome:
        """Admits, scores and selects."""
        archive = self._bench.archive
        candidates, refused = await admit(proposals, archive, at.version, self._bench.check)
        for candidate in candidates:
            self._bench.harnesses.know(candidate.harness)
        names = [candidate.harness.id for candidate in candidates]
        played, stopped = await self._play(names, at, score)
        for candidate in candidates:
            archive.add(candidate.entry(at.cycle, at.iteration), candidate.harness)
        scores = {x: archive.record(x, rollouts, at.version, stopped.get(x, "")) for x, rollouts in played.items()}
        tests = [outcome.retest for outcome in at.before if outcome.retest]
        label = f"retest/{at.version}/{at.iteration}"
        decision = Decision(at.incumbent, archive.tables(at.version), at.iteration, at.most, tests, label)
        decided = await self._acceptance.accept(decision, tabled(score))
        why = {**decided.why, **{x: f"stopped early: {reason}" for x, reason in stopped.items()}}
        archive.conclude(
            Iteration(
                at.cycle, at.iteration, at.version, at.incumbent, decided.harness, list(played), tuple(refused), why
            )
        )
        best = archive.entry(decided.harness).scores[at.version].reward
        scored = tuple(Scored(x, archive.entry(x).name, scores[x]) for x in played)
        return Outcome(decided.harness, best, scored, tuple(refused), why, decided.retest)

    async def _play(
        self, names: Sequence[str], at: Place, score: Scorer
    ) -> tuple[Mapping[str, Sequence[Trajectory]], Mapping[str, str]]:
        """Rolls candidates out, and the incumbent where it has no score at these weights that competes.

        Returns:
            Rollouts by harness id, and why some were stopped early.
        """
        label, samples = f"search/{at.version}", self._config.samples
        score_of = self._bench.archive.entry(at.incumbent).scores.get(at.version)
        if at.iteration == 0 or score_of is None or not score_of.competes:
            names = [*names, at.incumbent]
        elif self._config.racing and names:
            table = self._bench.archive.table(at.incumbent, at.version)
            raced = await race(names, table, self.searched, samples, score, label=(label, self._bench.seed))
            return raced.trajectories, raced.stopped
        return await score(names, self.searched, samples, label), {}
