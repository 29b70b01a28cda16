"""WHALE: weights and harness in turn (arXiv 2609.00196). ``python -m optimizers.whale --env chess``.

    θ ← RSFT(θ; h)            a weight phase, the harness frozen
    h ← Meta-Harness(h; θ)    a harness phase, the weights frozen

`Run` is the whole algorithm as straight code over units of work that the run directory journals, so that a killed run
resumes by walking through the same code. The controls (weight-only, harness-only, stagewise) are the same code with
other phases. Steps are a `optimizers.weights.protocol.WeightUpdate` and a
`optimizers.search.protocol.HarnessSearch`; when phases end is
`optimizers.run.schedule`.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import asdict, dataclass
from typing import Any, Protocol, runtime_checkable

from harness_sdk.floor import floor
from harness_sdk.loader import LoadedHarness
from harness_sdk.policies.base import TrainablePolicy
from harness_sdk.rollout import RolloutConfig, jobs_for
from harness_sdk.sandbox import confinement
from harness_sdk.session import HarnessError
from optimizers.archive.records import Entry, HarnessScore
from optimizers.archive.store import Archive
from optimizers.config import ConfigError, RunConfig
from optimizers.proposers.protocol import Proposal, Proposer
from optimizers.record.ledger import AgentCost, Ledger
from optimizers.record.played import Played, play
from optimizers.record.rundir import METRICS, RunDir
from optimizers.report.data import ReportError
from optimizers.report.page import write_report
from optimizers.run.display import Display
from optimizers.run.evaluation import evaluate, gain, warning
from optimizers.run.outcomes import PairEvaluation, Result, WeightStep
from optimizers.run.plan import budget, kinds, require_tasks
from optimizers.run.schedule import Phase, harness_over, weights_over
from optimizers.search.build import build_search
from optimizers.search.protocol import Bench, Outcome, Place
from optimizers.search.scoring import Scoring, score
from optimizers.weights.prompts import PromptSampler
from optimizers.weights.protocol import WeightUpdate
from whale_env.core import EnvHandle
from whale_env.slices import task_slice


@runtime_checkable
class Sleeper(Protocol):
    """A backend that can give its memory to training."""

    def sleep(self, *, keep_weights: bool = True) -> None:
        """Gives memory back until new weights come."""
        ...


@dataclass(frozen=True, slots=True)
class Parts:
    """What a run works with.

    Attributes:
        h0: The harness to begin with.
        proposer: Writes candidates.
        policy: Samples.
        update: Learns; None if the method has no weight phase.
    """

    h0: LoadedHarness
    proposer: Proposer
    policy: TrainablePolicy
    update: WeightUpdate | None


class Run:
    """One run of an optimiser over (weights, harness) pairs."""

    def __init__(self, config: RunConfig, run: RunDir, env: EnvHandle, parts: Parts, display: Display) -> None:
        """Prepares; weights are as the last finished step left them, and nothing is sampled yet.

        Args:
            config: What to do.
            run: Where it is kept.
            env: A handle on all splits. Optimisation gets a sealed one; only evaluation opens the test split.
            parts: What it works with.
            display: Shows progress.
        """
        h0, proposer = parts.h0, parts.proposer
        self.config, self.run, self.display = config, run, display
        self._open_env, self._env = env, env.sealed()
        self._h0 = h0
        self._archive, self._ledger = Archive(run), Ledger(run)
        self._archive.cut_back()
        require_tasks(config, env)
        self._budget = budget(config, env)
        self._bench = Bench.of(config.search, config.seed, self._env, self._archive, proposer, h0)
        self._search = build_search(config.search.method, self._bench)
        self._test = task_slice(env.tasks("test"), config.evaluation.tasks, config.seed)
        if "weights" in kinds(config):
            train = task_slice(env.tasks("train"), config.train_tasks, config.seed)
            self._prompts = PromptSampler(train, config.weights.prompts, config.seed)
        self._policy, self._update = parts.policy, parts.update
        self.harness = h0
        self.version = 0
        self._unit_began = time.monotonic()
        self._load_weights()

    def _load_weights(self) -> None:
        steps = self.run.done("weights/")
        if self._update is None or not steps:
            return
        version = max(int(key.rsplit("/", 1)[1]) for key in steps)
        self._update.load(self.run.path / "checkpoints" / f"step-{version:06d}")
        self._policy.load_weights(self._update.weights(), version)

    async def play(self) -> Result:
        """Runs or resumes to the end.

        Returns:
            The result, as written to ``result.json``.
        """
        self._archive.add(Entry(self._h0.id, self._h0.name, None, "the starting harness", "none", 0, 0), self._h0)
        base = await self._evaluation("base")
        rows: list[PairEvaluation] = []
        rewards: list[float] = []
        done: list[tuple[Phase, int]] = []
        while phase := self._budget.next(done):
            took = await (self._weight_phase(phase) if phase.kind == "weights" else self._harness_phase(phase))
            done.append((phase, took))
            rows.append(await self._evaluation(phase.name))
            rewards.append(await self._search_score(phase.name))
        final = rows[-1] if rows else base
        result = Result(
            env=self.config.env,
            method=self.config.method,
            seed=self.config.seed,
            base=base,
            phases=tuple(rows),
            final=final,
            selected=rows[rewards.index(max(rewards))] if rows else base,
            gain=gain(base, final),
            harness=self.harness.id,
            weights_version=self.version,
            caged=confinement().available,
            spent=self._ledger.totals(),
            seconds=self.run.seconds(),
        )
        self.run.write_json("result.json", result.to_json())
        self._report()
        return result

    def _report(self) -> None:
        try:
            self.display.line(f"report: {write_report(self.run.path)}")
        except ReportError as error:
            self.display.line(f"no report.html: {error}")

    # Weights

    async def _weight_phase(self, phase: Phase) -> int:
        """Runs a phase; returns the steps it took."""
        per_epoch, schedule = self._prompts.steps_per_epoch, self.config.schedule
        assert self._update is not None
        if self.config.weights.reset_optimizer and f"weights/{phase.cycle}/{self.version + 1}" not in self.run.done():
            self._update.reset()
        rewards: list[float] = []
        while len(rewards) < phase.most and (phase.whole or not weights_over(rewards, per_epoch, schedule)):
            version = self.version + 1
            key = f"weights/{phase.cycle}/{version}"
            fresh = key not in self.run.done()
            label = f"{phase.name} step {len(rewards) + 1}" + (f"/{phase.most}" if phase.whole else "")
            update = self._update
            done = await self._unit(key, lambda v=version, p=phase, n=label, u=update: self._weight_step(v, p, n, u))
            step = WeightStep.from_json(done)
            self.version = version
            rewards.append(step.reward)
            if fresh:
                self._forget_checkpoints()
                self.display.line(f"{label}: {step}")
                if not step.stats.accepted:
                    self.display.line(f"{label}: warning: nothing was accepted, the weights stay as they are")
        return len(rewards)

    async def _weight_step(self, version: int, phase: Phase, label: str, update: WeightUpdate) -> dict[str, Any]:
        self.display.unit(label)
        jobs = jobs_for(self.harness, self._prompts.batch(version - 1), self.config.weights.samples)
        played = await play(jobs, self._env, self._policy, self._rollouts(f"weights/{version}"), self.display.rollout)
        self._book(phase.name, played)
        self._policy.forget()  # the cache is of the old weights, and training needs the memory
        if self.config.backend.sleep and isinstance(self._policy, Sleeper):
            self._policy.sleep(keep_weights=False)  # new ones come below
        step = WeightStep.of(played.trajectories, update.update(played.trajectories, version)).to_json()
        with self.run.folder(f"checkpoints/step-{version:06d}") as folder:
            update.save(folder)
        self._policy.load_weights(update.weights(), version)
        self._log(phase, {"step": version, "harness": self.harness.id} | step)
        return step

    def _forget_checkpoints(self) -> None:
        """Keeps the newest checkpoint; called once the journal names it."""
        for folder in sorted((self.run.path / "checkpoints").glob("step-*"))[:-1]:
            shutil.rmtree(folder, ignore_errors=True)

    # Harness

    async def _harness_phase(self, phase: Phase) -> int:
        """Runs a phase; returns the iterations it took."""
        search, most = self.config.search, phase.most
        outcomes: list[Outcome] = []

        def over() -> bool:
            best = [outcome.best for outcome in outcomes]
            return len(best) > most or (not phase.whole and harness_over(best, self.config.schedule))

        while not over():
            iteration = len(outcomes)  # 0 scores the incoming harness, what candidates are compared with
            key = f"harness/{phase.cycle}/{iteration}"
            label = f"{phase.name} iteration {iteration}" + (f"/{most}" if phase.whole else "")
            at = Place(phase.cycle, iteration, self.version, self.harness.id, most, outcomes)
            proposals: list[Proposal] = []
            if iteration:
                if self._usd_left() <= 0 and f"{key}/propose" not in self.run.done():
                    self.display.line(f"{label}: the proposer's budget of ${search.proposer.usd_in_all:.2f} is spent")
                    return most  # no later phase could propose either
                stored = await self._unit(f"{key}/propose", lambda p=phase, a=at: self._propose(p, a))
                proposals = [Proposal(**data) for data in stored["candidates"]]
                if stored["ended"] and f"{key}/score" not in self.run.done():
                    self.display.line(f"{label}: {stored['ended']}")
            fresh = f"{key}/score" not in self.run.done()
            done = await self._unit(
                f"{key}/score", lambda p=phase, a=at, c=proposals, n=label: self._iteration(p, a, c, n)
            )
            outcome = Outcome.from_json(done)
            if fresh:
                self._tell(label, outcome)
            outcomes = [*outcomes, outcome]
            self.harness = self._bench.harnesses.load(outcome.accepted)
        return len(outcomes) - 1

    async def _propose(self, phase: Phase, at: Place) -> dict[str, Any]:
        round_ = f"{at.cycle}-{at.iteration}"
        proposed = await self._search.propose(at, self.run.path / "proposals" / round_, self._usd_left())
        self._ledger.proposer(phase.name, proposed.cost, round_)
        return {"candidates": [asdict(candidate) for candidate in proposed.candidates], "ended": proposed.ended}

    def _usd_left(self) -> float:
        return self.config.search.proposer.usd_in_all - self._ledger.totals()["proposer"].get("usd", 0.0)

    async def _iteration(self, phase: Phase, at: Place, proposals: list[Proposal], label: str) -> dict[str, Any]:
        self.display.unit(label)
        scoring = Scoring(self._bench.harnesses, self._env, self._policy, self._rollouts, self.display.rollout)
        outcome = await self._search.iterate(at, proposals, scoring)
        self._ledger.agent(phase.name, AgentCost.total(scoring.costs))
        for one in outcome.scored:
            self._log(phase, {"iteration": at.iteration, "harness": one.id} | asdict(one.score))
        return outcome.to_json()

    def _tell(self, label: str, outcome: Outcome) -> None:
        for refusal in outcome.refused:
            self.display.line(f"{label}: refused {refusal.name}: {refusal.why}")
        for one in outcome.scored:
            failures = ", ".join(f"{kind} {count}" for kind, count in one.score.failures.items())
            told = f"search reward {one.score.reward:.3f} over {one.score.rollouts} rollouts"
            why = outcome.why.get(one.id, "")
            self.display.line(
                f"{label}: {one.name} ({one.id}): {told}"
                + (f" ({failures})" if failures else "")
                + (f"; {why}" if why else "")
            )
        if outcome.accepted != self.harness.id:
            entry = self._archive.entry(outcome.accepted)
            self.display.line(f"{label}: accepted {entry.name} ({entry.id}): search reward {outcome.best:.3f}")

    # Evaluation

    async def _evaluation(self, name: str) -> PairEvaluation:
        key = f"evaluation/{name}"
        fresh = key not in self.run.done()
        evaluated = await self._unit(key, lambda: self._evaluate(name))
        row = PairEvaluation.from_json(evaluated | await self._unit(f"floor/{self.harness.id}", self._floor))
        if fresh:
            self.display.line(f"test after {name}: {row}")
        return row

    async def _evaluate(self, name: str) -> dict[str, Any]:
        self.display.unit(f"test {name}")
        # The same seeds for every pair: what differs between two evaluations is the pair.
        config, k = self._rollouts("test"), self.config.evaluation.k
        summary, played = await evaluate(
            self._open_env, self.harness, self._policy, self._test, k, config, self.display.rollout
        )
        trouble = warning(played.trajectories)
        if name == "base" and set(summary.failures) == {"harness_error"} and trouble:
            raise ConfigError(f"the starting harness {self.harness.name} does not work: {trouble}")
        if trouble:
            self.display.line(f"test {name}: warning: {trouble}")
        self._book(f"test-{name}", played)
        pair = {"phase": name, "harness": self.harness.id, "weights_version": self.version}
        return summary.to_json() | pair

    async def _floor(self) -> dict[str, Any]:
        """Measures what the harness earns without a model's skill; it is the same for all weights."""
        self.display.unit(f"floor of {self.harness.name}")
        try:
            found = await floor(self.harness, self._env, self._env.tasks("search"), h0=self._h0)
        except HarnessError as error:
            self.display.line(f"the floor of {self.harness.name} could not be measured: {error}")
            return {}
        return {"floor": found.reward, "floor_policy": found.policy, "floor_tasks": found.tasks}

    async def _search_score(self, name: str) -> float:
        """Scores the current pair on the search split with fresh seeds: what pairs are selected by."""

        async def measured() -> float:
            self.display.unit(f"search {name}")
            scored, cost = await score(
                [self.harness],
                self._env,
                self._policy,
                (self._bench.tasks, self.config.search.samples),
                self._rollouts("selection"),
                on_done=self.display.rollout,
            )
            self._ledger.agent(f"selection-{name}", cost)
            return HarnessScore.of(scored[self.harness.id], self.version).reward

        return float(await self._unit(f"selection/{name}", measured))

    # Common

    async def _unit(self, key: str, work: Any) -> Any:
        try:
            return self.run.result(key)
        except KeyError:
            began = self._unit_began = time.monotonic()
            self._policy.forget()  # a resumed run has an empty cache, so every unit begins with one
            with self.run.guarded():
                result = await work()
            return self.run.finish(key, result, time.monotonic() - began)

    def _rollouts(self, phase: str) -> RolloutConfig:
        return self.config.agent.rollouts(self.config.seed, phase)

    def _log(self, phase: Phase, record: dict[str, Any]) -> None:
        """Logs a line of metrics with when it was written, and how long its unit of work took till then."""
        times = {"time": time.time(), "seconds": round(time.monotonic() - self._unit_began, 3)}
        self.run.append(METRICS, {"phase": phase.name, "cycle": phase.cycle} | record | times)

    def _book(self, name: str, played: Played) -> None:
        """Books what rollouts cost, and keeps them."""
        self._ledger.agent(name, played.cost)
        for trajectory in played.trajectories:
            self.run.append(f"trajectories/{name}.jsonl", trajectory.to_json())
