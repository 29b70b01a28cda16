"""Meta-Harness, the harness phase: a proposer writes harness source, the search split scores it, the best is accepted.

`MetaHarness.iterate` is one iteration at frozen weights: admit what the proposer wrote, score it, all candidates
through one engine, and select. The archive is `optimizers.archive`, proposers are `optimizers.proposers`, the rules by
which one is accepted `optimizers.search.selection`; phases are `optimizers.run.whale`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from harness_sdk.loader import LoadedHarness, load_source
from harness_sdk.policies.base import Policy
from harness_sdk.rollout import RolloutConfig, jobs_for, rollout
from harness_sdk.trajectory import Trajectory
from optimizers.archive.records import Entry, Iteration, Refusal
from optimizers.archive.store import Archive
from optimizers.config import RunConfig
from optimizers.proposers.protocol import Check, Proposal
from optimizers.record.ledger import AgentCost
from optimizers.run.schedule import Phase
from optimizers.search.checks import checker
from optimizers.search.racing import race
from optimizers.search.selection import Scorer, level, nominate, retest, slices
from whale_env.core import EnvHandle
from whale_env.types import Task

CHECKED = 3
"""Search tasks on which a candidate's behaviour is checked before any model call."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A proposal that passed the validator and the behaviour checks."""

    proposal: Proposal
    harness: LoadedHarness


async def admit(
    proposals: Sequence[Proposal], archive: Archive, env: str, check: Check, *, allow_uncaged: bool = False
) -> tuple[list[Candidate], list[Refusal]]:
    """Judges proposals and drops those the archive holds already. Nothing here costs a model call.

    Args:
        proposals: What a proposer wrote.
        archive: Harnesses that need no second trial.
        env: The domain's name.
        check: Validator and behaviour checks (`optimizers.search.checks.checker`).
        allow_uncaged: Whether candidates may run without a cage where the kernel has none.

    Returns:
        Candidates and refusals; every proposal is in exactly one of the two.
    """
    seen = set(archive.ids())
    candidates: list[Candidate] = []
    refused: list[Refusal] = []
    for proposal in proposals:
        verdict = await check(proposal.source)
        why = verdict.text if not verdict.ok else ""
        if verdict.ok and verdict.id in seen:
            why = f"the archive holds this source already ({verdict.id})"
        if why:
            names = proposal.parent, proposal.axis, proposal.hypothesis
            refused.append(Refusal(proposal.name, proposal.source, why, *names))
            continue
        seen.add(verdict.id)
        candidates.append(Candidate(proposal, load_source(proposal.source, env=env, allow_uncaged=allow_uncaged)))
    return candidates, refused


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a run an iteration stands.

    Attributes:
        phase: Its phase.
        iteration: Counts from 1 within the phase; the first scores the incoming harness.
        version: Version of the frozen weights.
        most: Iterations that the phase may have.
        before: Outcomes of the phase's earlier iterations.
    """

    phase: Phase
    iteration: int
    version: int
    most: int
    before: Sequence[Mapping[str, Any]] = ()


class MetaHarness:
    """Scores and selects harnesses on the search split.

    Attributes:
        tasks: The examples.
        searched: Those that scoring sees.
        held: Those that only a re-test sees.
        check: Judges proposals, and remembers what was sound.
    """

    def __init__(
        self,
        config: RunConfig,
        env: EnvHandle,
        archive: Archive,
        rollouts: Callable[[str], RolloutConfig],
    ) -> None:
        """Prepares.

        Args:
            config: The run's configuration.
            env: A sealed handle.
            archive: Where harnesses are kept.
            rollouts: Gives the way to roll out under a label.
        """
        self._config, self._env, self._archive = config, env, archive
        self._rollouts = rollouts
        tasks = env.tasks("search")
        if not tasks:
            raise ValueError(f"{config.env} has no task in its search split")
        self.tasks = tasks[: config.search.examples or None]
        self.check = checker(env, self.tasks[:CHECKED], allow_uncaged=config.search.allow_uncaged)
        share = config.search.holdout if config.search.selection == "paired" else 0.0
        self.searched, self.held = slices(self.tasks, share, config.seed)
        self._known: dict[str, LoadedHarness] = {}

    def load(self, harness_id: str) -> LoadedHarness:
        """Returns a harness of the archive."""
        if harness_id not in self._known:
            source, allowed = self._archive.source(harness_id), self._config.search.allow_uncaged
            self.know(load_source(source, env=self._env.prototype.domain.spec.name, allow_uncaged=allowed))
        return self._known[harness_id]

    def know(self, harness: LoadedHarness) -> None:
        """Makes a harness known that need not be loaded from the archive, such as a trusted one."""
        self._known[harness.id] = harness

    async def iterate(
        self,
        policy: Policy,
        incumbent: str,
        proposals: Sequence[Proposal],
        at: Place,
        on_done: Callable[[Trajectory], None] | None = None,
    ) -> tuple[dict[str, Any], AgentCost]:
        """Runs one iteration.

        Args:
            policy: The frozen weights.
            incumbent: Id of the accepted harness.
            proposals: What the proposer wrote; none in the first iteration.
            at: Where the run stands.
            on_done: Called with each finished trajectory.

        Returns:
            The outcome, JSON data (``accepted``, ``best``, ``scored``, ``refused``, ``retest``), and what it cost.
        """
        search = self._config.search
        costs: list[AgentCost] = []
        play = self._scorer(policy, at.version, costs, on_done)
        name = self._env.prototype.domain.spec.name
        candidates, refused = await admit(
            proposals, self._archive, name, self.check, allow_uncaged=search.allow_uncaged
        )
        for candidate in candidates:
            self.know(candidate.harness)
        names = [candidate.harness.id for candidate in candidates] if at.iteration > 1 else [incumbent]
        label, stopped = f"search/{at.version}", dict[str, str]()
        if search.racing and at.iteration > 1 and names:
            table = self._archive.table(incumbent, at.version)
            raced = await race(names, table, self.searched, search.samples, play, label=(label, self._config.seed))
            played, stopped = raced.trajectories, dict(raced.stopped)
        else:
            played = dict(await play(names, self.searched, search.samples, label))  # type: ignore[arg-type]
        for candidate in candidates:
            self._archive.add(entry_of(candidate, at.phase.cycle, at.iteration), candidate.harness)
        scores = {x: self._archive.record(x, played[x], at.version, stopped.get(x, "")) for x in names}
        accepted, why, tested = await self._select(play, incumbent, at)
        why |= {harness_id: f"stopped early: {reason}" for harness_id, reason in stopped.items()}
        self._archive.conclude(
            Iteration(at.phase.cycle, at.iteration, at.version, incumbent, accepted, names, refused, why)
        )
        best = self._archive.entry(accepted).scores[at.version]
        outcome = {
            "accepted": accepted,
            "best": best.reward,
            "scored": [{"id": x, "name": self._archive.entry(x).name, **asdict(scores[x])} for x in names],
            "refused": [{"name": refusal.name, "why": refusal.why} for refusal in refused],
            "why": why,
            "retest": tested,
        }
        return outcome, AgentCost.total(costs)

    async def _select(
        self, play: Scorer, incumbent: str, at: Place
    ) -> tuple[str, dict[str, str], dict[str, Any] | None]:
        """Returns what is accepted, reasons by harness id, and the re-test if there was one."""
        if self._config.search.selection == "argmax":
            return self._archive.best(at.version, incumbent)[0], {}, None
        entries = [e for e in self._archive.entries() if at.version in e.scores and e.scores[at.version].competes]
        tables = [self._archive.table(entry.id, at.version) for entry in entries]
        if at.iteration == 1 or incumbent not in [table.harness for table in tables]:
            return incumbent, {}, None
        config = self._config.search.paired
        tests = [outcome["retest"] for outcome in at.before if outcome.get("retest")]
        failed = {test["nominee"] for test in tests if not test["accepted"]}
        nominee = nominate(tables, incumbent, failed, config.screen).nominee
        if nominee is None:
            return incumbent, {}, None
        share = level(config.alpha, sum(test["spent"] for test in tests), at.most - at.iteration + 1)
        label = f"retest/{at.version}/{at.iteration}"
        tested = await retest(nominee, incumbent, (self.searched, self.held), play, share, config, label)
        seen = f"re-test on {tested.rollouts} fresh rollouts: {tested.comparison.gain:+.3f}, p = {tested.looks[-1]:.4f}"
        return (nominee if tested.accepted else incumbent), {nominee: seen}, tested.to_json()

    def _scorer(
        self, policy: Policy, version: int, costs: list[AgentCost], on_done: Callable[[Trajectory], None] | None
    ) -> Scorer:
        async def play(
            ids: Sequence[str], tasks: Sequence[Task], samples: int, label: str
        ) -> Mapping[str, Sequence[Trajectory]]:
            harnesses = [self.load(harness_id) for harness_id in ids]
            played, cost = await score(harnesses, self._env, policy, (tasks, samples), self._rollouts(label), on_done)
            costs.append(cost)
            return played

        return play


async def score(
    harnesses: Sequence[LoadedHarness],
    env: EnvHandle,
    policy: Policy,
    on: tuple[Sequence[Task], int],
    config: RolloutConfig,
    on_done: Callable[[Trajectory], None] | None = None,
) -> tuple[dict[str, list[Trajectory]], AgentCost]:
    """Rolls several harnesses out on the same tasks with the same seeds, all at once.

    Args:
        harnesses: The harnesses.
        env: The environment.
        policy: The model.
        on: The tasks, and how many rollouts of each.
        config: How to roll out.
        on_done: Called with each finished trajectory.

    Returns:
        The trajectories by harness id, and what they cost.
    """
    began = time.monotonic()
    tasks, samples = on
    jobs = [job for harness in harnesses for job in jobs_for(harness, tasks, samples)]
    trajectories = await rollout(jobs, env, policy, config, on_done)
    by_harness: dict[str, list[Trajectory]] = {harness.id: [] for harness in harnesses}
    for trajectory in trajectories:
        by_harness[trajectory.harness].append(trajectory)
    return by_harness, AgentCost.of(trajectories, time.monotonic() - began)


def entry_of(candidate: Candidate, cycle: int, iteration: int) -> Entry:
    """Returns the archive's record of a new candidate."""
    proposal = candidate.proposal
    return Entry(
        candidate.harness.id,
        proposal.name,
        proposal.parent,
        proposal.hypothesis,
        proposal.axis,
        cycle,
        iteration,
        proposal.traits,
    )
