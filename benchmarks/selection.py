"""What a selection rule accepts: ``python -m benchmarks.selection``.

Simulates harness phases with candidates of known skill, and counts how often each rule replaces the incumbent by a
harness that is truly worse, what it truly gains, and how many rollouts that takes; and what racing saves at equal
decisions. Rewards are coin flips: a task has a difficulty, a harness a skill and likes and dislikes among tasks. One
cross-check plays the re-test and a race through the real rollout loop. Ends with status 1 when a figure misses its
bound. Real proposers have gaps of their own: the setting is printed with the figures.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from benchmarks import command
from harness_sdk.harness import Harness
from harness_sdk.loader import LoadedHarness
from harness_sdk.policies.base import Generation, Request
from harness_sdk.rollout import RolloutConfig
from harness_sdk.session import LocalSession
from harness_sdk.trajectory import Trajectory
from harness_sdk.types import Completion
from optimizers.archive.records import OutcomeTable
from optimizers.config import PairedConfig
from optimizers.search.acceptance import Acceptance, Argmax, Decision, Paired
from optimizers.search.racing import RacingConfig, losers, race, task_means
from optimizers.search.retest import Retest, nominate, retest
from optimizers.search.scoring import score, tabled
from whale_env import DomainSpec, Observation, Outcome, Score, Task, ToolCall, ToolEnv, ToolSpec, said_verbatim
from whale_env.core import EnvHandle
from whale_env.types import Split

Array = npt.NDArray[np.float64]

CANDIDATES, ITERATIONS = 3, 5
"""Candidates an iteration; the incumbent is scored before the first."""
DIFFICULTY, TASTE, KINSHIP = 1.5, 0.8, 0.8
"""Spread of task difficulty and of a harness's taste for tasks (logits); correlation of a child's taste with its
parent's."""
PROPOSERS = {"able": 0.2, "weak": 0.1}
"""Share of candidates that truly help, by +0.03 to +0.15. `NEUTRAL` more change next to nothing (normal, 0.01),
`BROKEN` lose 60 to 100 % of the parent's reward, the rest hurt by 0.01 to 0.15."""
NEUTRAL, BROKEN = 0.3, 0.2
WORSE, LUCKY, SPENT, AGREE = 0.05, 0.30, 0.60, 0.97
"""Bounds: paired's and argmax's share of phases that accept a worse harness, racing's rollouts, equal decisions."""


@dataclass(frozen=True)
class Setting:
    """One kind of harness phase.

    Attributes:
        examples: Search tasks.
        samples: Rollouts per task.
        skill: True mean reward of the first harness.
        proposer: Who proposes.
        bound: Whether gain and saving must meet their bounds here (with few examples they cannot).
    """

    examples: int
    samples: int
    skill: float
    proposer: str
    bound: bool = False


SETTINGS = (
    Setting(24, 2, 0.3, "able"),
    Setting(64, 2, 0.3, "able"),
    Setting(256, 1, 0.3, "able", True),
    Setting(256, 1, 0.1, "able", True),
    Setting(256, 1, 0.3, "weak", True),
)


def _logits() -> tuple[Array, Array]:
    """Tabulates true skill over the logit it comes from: the mean over difficulty and taste."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(41)
    logits = np.linspace(-12, 12, 800)
    spread = math.hypot(DIFFICULTY, TASTE) * nodes
    skills = (weights / (1 + np.exp(-(logits[:, None] + spread)))).sum(axis=1) / weights.sum()
    return logits, skills


LOGITS, SKILLS = _logits()


@dataclass(frozen=True)
class Agent:
    """A harness of known skill.

    Attributes:
        name: Its id.
        skill: True mean reward over all tasks there could be.
        taste: What each task of this phase adds, in logits.
    """

    name: str
    skill: float
    taste: Array

    def child(self, name: str, helps: float, rng: np.random.Generator) -> Agent:
        """Returns a candidate derived from this harness."""
        kind = rng.random()
        if kind < helps:
            gap = rng.uniform(0.03, 0.15)
        elif kind < helps + NEUTRAL:
            gap = rng.normal(0.0, 0.01)
        else:
            gap = -rng.uniform(0.01, 0.15) if kind < 1 - BROKEN else -self.skill * rng.uniform(0.6, 1.0)
        skill = float(np.clip(self.skill + gap, 0.003, 0.95))
        own = rng.standard_normal(len(self.taste))
        return Agent(name, skill, KINSHIP * self.taste + math.sqrt(1 - KINSHIP**2) * TASTE * own)


class World:
    """One repetition: tasks, candidates and coin flips, the same for each rule as long as its decisions are."""

    def __init__(self, setting: Setting, seed: int) -> None:
        rng = np.random.default_rng([seed, 0])
        self.setting, self.seed = setting, seed
        self.tasks = [Task(f"task-{i}", "coins", "search") for i in range(setting.examples)]
        self._difficulty = DIFFICULTY * rng.standard_normal(setting.examples)
        self.first = Agent("h0", setting.skill, TASTE * rng.standard_normal(setting.examples))

    def candidates(self, parent: Agent, iteration: int) -> list[Agent]:
        """Returns what the proposer writes in an iteration."""
        rng = np.random.default_rng([self.seed, 1, iteration])
        helps = PROPOSERS[self.setting.proposer]
        return [parent.child(f"i{iteration}c{i}", helps, rng) for i in range(CANDIDATES)]

    def score(self, agent: Agent, samples: int, label: str) -> OutcomeTable:
        """Rolls an agent out on all tasks, with seeds that derive from a label."""
        chance = 1 / (1 + np.exp(-(np.interp(agent.skill, SKILLS, LOGITS) - self._difficulty + agent.taste)))
        name, phase = (int.from_bytes(text.encode(), "big") for text in (agent.name, label))
        flips = np.random.default_rng([self.seed, 2, name, phase]).random((samples, len(self.tasks))) < chance
        keys = ((task.id, index) for index in range(samples) for task in self.tasks)
        return OutcomeTable(agent.name, dict(zip(keys, flips.astype(float).ravel().tolist(), strict=True)))


@dataclass(frozen=True)
class Phase:
    """What one simulated harness phase did.

    Attributes:
        gain: True skill of the last harness less that of the first.
        worse: Whether a harness was accepted that is truly worse than the one it replaced.
        lost: Whether the last harness is truly worse than the first.
        accepted: Acceptances.
        scored: Rollouts of first scorings.
        full: Rollouts that first scorings take without racing.
        retested: Rollouts of re-tests.
        agreed: Share of iterations whose nominee is that of full scoring.
    """

    gain: float
    worse: bool
    lost: bool
    accepted: int
    scored: int
    full: int
    retested: int
    agreed: float


async def lucky(world: World, samples: int) -> Phase:
    """Plays a phase by `Argmax`."""
    return await played(world, Argmax(), samples, None)


async def careful(world: World, config: PairedConfig, racing: RacingConfig | None) -> Phase:
    """Plays a phase by `Paired`."""
    return await played(world, Paired(config, world.tasks), world.setting.samples, racing)


async def played(world: World, rule: Acceptance, samples: int, racing: RacingConfig | None) -> Phase:
    """Plays a phase as `optimizers.search.meta_harness` does, with the same rule on simulated outcomes."""
    incumbent, agents = world.first, {world.first.name: world.first}
    tables = {incumbent.name: world.score(incumbent, samples, "search")}
    scored = full = tables[incumbent.name].played
    worse, accepted, agreed = False, 0, 0
    retests: list[Retest] = []

    async def again(ids: Sequence[str], tasks: Sequence[Task], samples: int, label: str) -> Mapping[str, OutcomeTable]:
        return {name: world.score(agents[name], samples, label) for name in ids}

    for iteration in range(1, ITERATIONS + 1):
        fresh = {agent.name: agent for agent in world.candidates(incumbent, iteration)}
        agents |= fresh
        new = [world.score(agent, samples, "search") for agent in fresh.values()]
        full += sum(table.played for table in new)
        if racing is None:
            scored += sum(table.played for table in new)
        else:
            kept, cost = raced(world, new, tables[incumbent.name], racing)
            scored += cost
            known, failed = list(tables.values()), {test.nominee for test in retests if not test.accepted}
            both = [nominate([*known, *some], incumbent.name, failed).nominee for some in (new, kept)]
            agreed += both[0] == both[1]
            new = kept
        tables |= {table.harness: table for table in new}
        decision = Decision(
            incumbent.name, list(tables.values()), iteration, ITERATIONS, retests, f"retest/{iteration}"
        )
        decided = await rule.accept(decision, again)
        retests += [decided.retest] if decided.retest else []
        chosen = agents[decided.harness]
        worse |= chosen.skill < incumbent.skill
        accepted += chosen is not incumbent
        incumbent = chosen
    gain = incumbent.skill - world.first.skill
    retested = sum(test.rollouts for test in retests)
    shares = agreed / ITERATIONS if racing else 1.0
    return Phase(gain, worse, gain < 0, accepted, scored, full, retested, shares)


def raced(
    world: World, tables: Sequence[OutcomeTable], incumbent: OutcomeTable, config: RacingConfig
) -> tuple[list[OutcomeTable], int]:
    """Plays a race as `optimizers.search.racing.race` does; returns the survivors, and the rollouts of all."""
    order = [task.id for task in world.tasks]
    random.Random(world.seed).shuffle(order)
    samples, size = world.setting.samples, -(-len(order) // config.batches)
    means, known = {table.harness: task_means(table) for table in tables}, task_means(incumbent)
    so_far: dict[str, dict[str, float]] = {name: {} for name in means}
    spent = 0
    for start in range(0, len(order), size):
        end = min(start + size, len(order))
        spent += len(so_far) * (end - start) * samples
        if end == len(order) or not so_far:
            break
        for name, rows in so_far.items():
            rows.update((task, means[name][task]) for task in order[start:end])
        for name in losers(so_far, known, order, 1 / samples, config.alpha):
            del so_far[name]
    return [table for table in tables if table.harness in so_far], spent


@dataclass(frozen=True)
class Row:
    """A rule in a setting, over all repetitions (standard error of the gain in ``error``)."""

    rule: str
    worse: float
    lost: float
    gain: float
    error: float
    accepted: float
    rollouts: float
    scored: float
    agreed: float

    @classmethod
    def of(cls, rule: str, phases: Sequence[Phase]) -> Row:
        """Sums phases up."""
        gains = [phase.gain for phase in phases]
        return cls(
            rule,
            fmean(phase.worse for phase in phases),
            fmean(phase.lost for phase in phases),
            fmean(gains),
            stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else 0.0,
            fmean(phase.accepted for phase in phases),
            fmean(phase.scored + phase.retested for phase in phases),
            fmean(phase.scored / phase.full for phase in phases),
            fmean(phase.agreed for phase in phases),
        )


async def simulate(setting: Setting, repetitions: int, seed: int) -> list[Row]:
    """Plays all rules in a setting, each on the same worlds."""
    worlds = [World(setting, seed + i) for i in range(repetitions)]
    config, racing = PairedConfig(), RacingConfig()
    once = Row.of("argmax", [await lucky(world, setting.samples) for world in worlds])
    paired = Row.of("paired", [await careful(world, config, None) for world in worlds])
    both = Row.of("paired, raced", [await careful(world, config, racing) for world in worlds])
    more = math.ceil(setting.samples * both.rollouts / once.rollouts)
    equal = Row.of(f"argmax, {more} rollouts a task", [await lucky(world, more) for world in worlds])
    return [once, equal, paired, both]


def missed(setting: Setting, rows: Sequence[Row]) -> list[str]:
    """Returns the bounds that a setting misses."""
    once, _, paired, both = rows
    found = [f"{row.rule} accepts worse in {row.worse:.1%}" for row in (paired, both) if row.worse > WORSE]
    if once.worse <= LUCKY:
        found.append(f"argmax accepts worse in {once.worse:.1%} only")
    for row in (paired, both):
        if row.gain < once.gain - 2 * math.hypot(row.error, once.error):
            found.append(f"{row.rule} gains {row.gain:+.3f}, argmax {once.gain:+.3f}")
    if both.scored > SPENT or both.agreed < AGREE:
        found.append(f"racing spends {both.scored:.0%}, {both.agreed:.1%} equal decisions")
    return found


# The cross-check: the same drivers as in a run, on a toy domain through the real rollout loop

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


class Coins:
    """A domain whose tasks are all solved by the word heads."""

    spec = DomainSpec("coins", (ToolSpec("answer", "Gives the answer.", TEXT, commits=True),))

    def tasks(self, split: Split) -> Sequence[Task]:
        """Returns 64 tasks."""
        return [Task(f"{split}-{i}", "coins", split) for i in range(64)]

    def start(self, task: Task, seed: int) -> Coin:
        """Begins one."""
        return Coin()


class Coin:
    """One toss."""

    def __init__(self) -> None:
        self._said = ""

    def observe(self) -> Observation:
        """Returns the question."""
        return Observation("Heads or tails?")

    def apply(self, call: ToolCall) -> Outcome:
        """Takes the answer."""
        self._said = str(call.arguments["text"])
        return Outcome(self.observe(), done=True)

    def said(self, call: ToolCall, text: str) -> bool:
        """Whether the policy said it."""
        return said_verbatim(call, text)

    def score(self) -> Score:
        """Heads wins."""
        return Score(1.0) if self._said == "heads" else Score(0.0, "wrong")


def coins_env(split: Split = "train", render_mode: str | None = None) -> ToolEnv:
    """Makes the environment."""
    return ToolEnv(Coins(), split=split, render_mode=render_mode)


class Skilled:
    """A policy whose chance of heads is the number in the system text."""

    async def generate(self, request: Request) -> Generation:
        """Tosses a coin seeded by the request."""
        skill = float(request.messages[0]["content"].split()[-1])
        word = "heads" if random.Random(request.seed).random() < skill else "tails"
        return Generation(Completion(f"<answer>{word}</answer>", "stop", (), 4))


def skilled(skill: float) -> LoadedHarness:
    """Returns a harness with that system text."""

    class WithSkill(Harness):
        system = f"Skill {skill}"

    async def opened(seed: int) -> LocalSession:
        return LocalSession(WithSkill())

    return LoadedHarness(f"skill-{skill}", "WithSkill", "", True, opened)


async def cross_check(seed: int) -> list[str]:
    """Races and re-tests harnesses of known skill through the real loop; returns what went wrong."""
    if "coins/Coins-v0" not in gym.registry:
        gym.register("coins/Coins-v0", entry_point="benchmarks.selection:coins_env")
    env = EnvHandle("coins/Coins-v0", {}).sealed()
    tasks = env.tasks("search")
    known = {harness.id: harness for harness in (skilled(s) for s in (0.3, 0.05, 0.32, 0.6))}
    config = RolloutConfig(seed=seed, max_turns=1)

    async def play(
        ids: Sequence[str], tasks: Sequence[Task], samples: int, label: str
    ) -> Mapping[str, Sequence[Trajectory]]:
        chosen = [known[name] for name in ids]
        return (await score(chosen, env, Skilled(), (tasks, samples), replace(config, phase=label)))[0]

    incumbent = OutcomeTable.of("skill-0.3", (await play(["skill-0.3"], tasks, 2, "search"))["skill-0.3"])
    names = [name for name in known if name != "skill-0.3"]
    result = await race(names, incumbent, tasks, 2, play, label=("search", seed))
    tables = [OutcomeTable.of(name, result.trajectories[name]) for name in names if name not in result.stopped]
    nominee = nominate([*tables, incumbent], "skill-0.3").nominee
    wrong = [] if nominee == "skill-0.6" else [f"nominated {nominee}, not skill-0.6"]
    wrong += [] if "skill-0.05" in result.stopped else ["the race did not stop skill-0.05"]
    good = await retest("skill-0.6", "skill-0.3", (tasks, ()), tabled(play), 0.02)
    bad = await retest("skill-0.05", "skill-0.3", (tasks, ()), tabled(play), 0.02)
    wrong += [] if good.accepted and not bad.accepted else ["the re-test accepted the wrong one"]
    print(
        f"real rollouts: race {result.rollouts} of {result.rollouts + result.saved}, stopped {len(result.stopped)} of "
        f"{len(names)}; re-test of +0.3 accepted after {good.rollouts}, of -0.25 refused after {bad.rollouts}"
    )
    return wrong


def main() -> int:
    """Runs the benchmark; returns the exit status."""
    parser = command.parser("selection", "What a selection rule accepts.")
    parser.add_argument("--repetitions", type=int, default=200, help="phases a rule and setting (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="their seed (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    if options.repetitions < 1:
        parser.error(f"--repetitions is {options.repetitions}; at least 1 is needed")
    began = time.perf_counter()
    failed = asyncio.run(cross_check(options.seed))
    print(f"paired: {PairedConfig()}\nracing: {RacingConfig()}")
    print(f"candidates: {NEUTRAL:.0%} change next to nothing, {BROKEN:.0%} are broken, some help, the rest hurt")
    print(f"{CANDIDATES} candidates, {ITERATIONS} decisions a phase, {options.repetitions} phases each")
    found: list[dict[str, Any]] = []
    for setting in SETTINGS:
        rows = asyncio.run(simulate(setting, options.repetitions, options.seed))
        print(
            f"\n{setting.examples} examples x {setting.samples}, h0 solves {setting.skill:.0%}, {setting.proposer} "
            f"proposer ({PROPOSERS[setting.proposer]:.0%} of candidates help)"
        )
        print(
            "rule                       accepts worse  ends worse  true gain         accepts  rollouts  scored  equal"
        )
        for row in rows:
            print(
                f"{row.rule:<26} {row.worse:>13.1%} {row.lost:>11.1%}  {row.gain:+.3f} +- {row.error:.3f} "
                f"{row.accepted:>9.2f} {row.rollouts:>9,.0f} {row.scored:>7.0%} {row.agreed:>6.1%}"
            )
        problems = missed(setting, rows)
        for problem in problems:
            print(f"{'MISSED' if setting.bound else 'too few examples for it'}: {problem}")
        failed += problems if setting.bound else []
        found.append({"setting": asdict(setting), "rules": [asdict(row) for row in rows], "missed": problems})
    print(f"\n{time.perf_counter() - began:.0f} s")
    for problem in failed:
        print(f"MISSED: {problem}")
    if options.json:
        options.json.write_text(json.dumps({"repetitions": options.repetitions, "settings": found}, indent=2) + "\n")
    return int(bool(failed))


if __name__ == "__main__":
    command.finish(main)
