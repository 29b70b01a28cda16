"""Schedules, the run directory, the archive, the offline proposer and one harness phase, without a language model."""

from __future__ import annotations

import asyncio
import errno
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, get_args

import gymnasium as gym
import pytest
import riddles  # noqa: F401  # registers riddles/Riddles-v0
from test_rollout import play, trusted

from harness_sdk import Harness, Job, Message, ScriptedPolicy, load, rollout, validate
from harness_sdk.check import behaviour
from harness_sdk.loader import load_source
from harness_sdk.trajectory import Trajectory
from optimizers.archive.records import Entry, HarnessScore
from optimizers.archive.store import Archive
from optimizers.config import BudgetConfig, ConfigError, Method, ScheduleConfig, preset
from optimizers.proposers.offline.proposer import OfflineProposer, mechanisms, merit
from optimizers.proposers.offline.recipes import Facts, Recipe
from optimizers.proposers.offline.templates import render
from optimizers.proposers.protocol import Brief, Proposal, ScriptedProposer
from optimizers.record.ledger import AgentCost, Ledger, ProposerCost
from optimizers.record.rundir import RunDir, RunDirError
from optimizers.run.evaluation import interval, summary
from optimizers.run.plan import budget, optimised, planned
from optimizers.run.schedule import Budget, Phase, harness_over, weights_over
from optimizers.search.acceptance import argmax
from optimizers.search.checks import checker
from optimizers.search.meta_harness import admit
from optimizers.search.scoring import score
from reference_harnesses import BASELINES
from whale_env import DomainSpec, Observation, Outcome, Score, Task, ToolCall, ToolEnv, ToolSpec, handle, said_verbatim
from whale_env.core import EnvHandle
from whale_env.json_lines import DamagedLogError, read_lines
from whale_env.types import Split

GOOD = """from harness_sdk import Harness


class Good(Harness):
    system = "Be brief."
"""


def spends(method: str, steps: int, iterations: int, **options: int) -> Budget:
    known = {"candidates": 3, "incoming": 0, "phase_steps": 44, "phase_iterations": 6, "shortest": 15} | options
    return Budget(method, steps, 3 * iterations, **known)  # type: ignore[arg-type]


def told(budget: Budget) -> str:
    return " ".join(f"{phase.kind[0]}{phase.most}" for phase in budget.phases())


def test_phases_alternate_and_the_last_of_a_kind_takes_what_is_left() -> None:
    assert told(spends("whale", 132, 12)) == told(spends("fst", 132, 12)) == "w44 h6 w44 h6 w44"
    assert told(spends("whale", 296, 40)) == "w44 h6 w44 h6 w44 h6 w44 h6 w44 h6 w44 h10 w32"
    assert told(spends("whale", 296, 8)) == "w44 h6 w44 h2 w208"
    assert told(spends("whale", 44, 0)) == "w44" and told(spends("whale", 44, 6)) == "w44 h6"
    assert told(spends("stagewise", 200, 32)) == "w200 h32"
    assert told(spends("weight-only", 100, 0)) == "w44 w44 w12" and told(spends("harness-only", 0, 40)) == "h40"


@pytest.mark.parametrize("seed", range(20))
def test_adaptive_spends_both_totals_whatever_its_phases_do(seed: int) -> None:
    chance, budget = random.Random(seed), spends("adaptive", 296, 40, phase_steps=148, phase_iterations=15)
    done: list[tuple[Phase, int]] = []
    while phase := budget.next(done):
        least = 16 if phase.kind == "weights" else 6
        done.append((phase, phase.most if phase.whole else min(phase.most, chance.randint(least, 60))))
    assert sum(count for phase, count in done if phase.kind == "weights") == 296
    assert sum(count for phase, count in done if phase.kind == "harness") == 40
    assert done[-1][0].kind == "weights" and done[-1][0].whole


PAPER = {  # steps an epoch; steps and iterations in all; steps of a fixed weight phase
    "searchqa": (18_946, 296, 40, 44),
    "math": (17_917, 420, 60, 42),
    "chess": (16_384, 256, 40, 38),
}


@pytest.mark.parametrize("env", sorted(PAPER))
@pytest.mark.parametrize("method", get_args(Method))
def test_the_paper_preset_has_the_papers_totals(env: str, method: Method) -> None:
    tasks, steps, iterations, fixed = PAPER[env]
    config = replace(preset("paper", env), method=method)
    splits = {"train": tasks, "search": 256, "test": 240}
    rows = planned(config, Splits(splits))  # type: ignore[arg-type]
    trained = sum(count for name, count in rows if name.endswith(" steps"))
    assert trained == (0 if method == "harness-only" else steps * 256 * 8)
    counts = [int(name.split()[-2]) for name, _ in rows if name.endswith(" iterations")]
    assert sum(counts) == (0 if method == "weight-only" else iterations)
    if method in ("whale", "fst"):
        assert f"weights-1: {fixed} steps" in dict(rows) and dict(rows)["harness-1: 6 iterations"] == 4608 + 256
    if method == "stagewise":
        assert [name for name, _ in rows[1::3]] == [f"weights-1: {steps} steps", f"harness-1: {iterations} iterations"]


def test_stagewise_runs_are_two_phases() -> None:
    for env, epochs, iterations, steps in (("searchqa", 2.7, 32, 200), ("math", 4.3, 33, 301)):
        config = replace(preset("paper", env), method="stagewise", budget=BudgetConfig(epochs, iterations))
        found = budget(config, Splits({"train": PAPER[env][0], "search": 256, "test": 9}))  # type: ignore[arg-type]
        assert told(found) == f"w{steps} h{iterations}"


@pytest.mark.parametrize(("env", "total"), [("chess", 2976), ("math", 1344), ("searchqa", 1344)])
@pytest.mark.parametrize("method", get_args(Method))
def test_all_methods_take_the_same_rollouts_on_the_laptop(method: Method, env: str, total: int) -> None:
    splits = Splits({"train": 400, "search": 100, "test": 100})
    assert optimised(planned(replace(preset("laptop", env), method=method), splits)) == total  # type: ignore[arg-type]


def test_a_budget_that_pays_for_nothing_is_refused() -> None:
    config = replace(preset("laptop", "chess"), budget=BudgetConfig(rollouts=10))
    with pytest.raises(ConfigError, match="a step takes 96 rollouts, an iteration 288 besides 96"):
        budget(config, Splits({"train": 400, "search": 100, "test": 100}))  # type: ignore[arg-type]


class Splits:
    """Splits of given sizes."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self._sizes = sizes

    def tasks(self, split: Split) -> list[Task]:
        return [Task(f"{split}-{number}", "toy", split) for number in range(self._sizes[split])]


def stop(rewards: Sequence[float], steps_per_epoch: int) -> int:
    """Returns the step after which a weight phase with the default thresholds ends, 0 if the series is too short."""
    config = ScheduleConfig()
    return next((s for s in range(1, len(rewards) + 1) if weights_over(rewards[:s], steps_per_epoch, config)), 0)


RISE = [i / 100 for i in range(25)]


@pytest.mark.parametrize(
    ("rewards", "end"),
    [  # at 10 steps an epoch: a window of 2, more than 2 steps, a patience of 2, at most 20
        ([0.1] * 9, 3),  # the first step is the best, two more came
        ([0.5, 0.3, 0.4, 0.9], 3),  # prefix means .5, .4, .35
        ([0.3, 0.5, 0.3, 0.3, 0.3], 4),  # .3, .4, .4: a tie is no improvement
        ([0.3, 0.5, 0.3, 0.5 + 1e-9, 0.3, 0.3], 6),
        ([0.3, 0.5, 0.3 + 1e-9, 0.5, 0.5, 0.3, 0.3], 7),  # any strict improvement counts: at 3, at 5
        ([0.1, 0.2, 0.3, 0.3, 0.3, 0.3], 6),
        (RISE, 20),
        ([0.5, 0.4], 0),
    ],
)
def test_an_adaptive_weight_phase_ends_when_the_window_stops_improving(rewards: list[float], end: int) -> None:
    assert stop(rewards, 10) == end


@pytest.mark.parametrize("steps_per_epoch", [64, 70, 74])
def test_flat_noise_ends_a_phase_soon(steps_per_epoch: int) -> None:
    noise = random.Random(steps_per_epoch)
    lengths = [stop([noise.gauss(0.3, 0.02) for _ in range(200)], steps_per_epoch) for _ in range(300)]
    assert 0.22 <= median(lengths) / steps_per_epoch <= 0.30


@pytest.mark.parametrize(
    ("best", "over"),
    [  # the incoming harness, then six iterations at least and two without a new best
        ([0.1] * 6, False),
        ([0.1] * 7, True),
        ([0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.2], False),
        ([0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.2, 0.2], False),
        ([0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.2, 0.2, 0.2], True),
        (RISE[:15], False),
        (RISE[:16], True),  # fifteen beyond the incoming harness
    ],
)
def test_an_adaptive_harness_phase_ends_by_patience_after_the_minimum(best: list[float], over: bool) -> None:
    assert harness_over(best, ScheduleConfig()) == over


def test_the_run_directory_journals_resumes_and_cuts_logs_back(tmp_path: Path) -> None:
    run = RunDir.open(tmp_path / "run", {"a": 1}, resume=False)
    run.append("metrics.jsonl", {"n": 1})
    assert run.finish("one", {"x": (1, 2)}, 0.5) == {"x": [1, 2]}
    run.append("metrics.jsonl", {"n": 2})  # of a unit that is never finished
    run.append("ledger.jsonl", {"spent": 2})
    with (run.path / "journal.jsonl").open("ab") as file:
        file.write('{"key": "twé'.encode()[:-1])  # the writer was killed, within a character
    again = RunDir.open(tmp_path / "run", {"a": 1}, resume=True)
    assert again.done() == ["one"] and again.result("one") == {"x": [1, 2]} and again.seconds() == 0.5
    assert [line["n"] for line in read_lines(run.path / "metrics.jsonl")] == [1]
    assert [line["spent"] for line in read_lines(run.path / "ledger.jsonl")] == [2]  # what was spent stays spent
    again.finish("two", None, 0.1)
    assert RunDir.open(tmp_path / "run", {"a": 1}, resume=True).done() == ["one", "two"]


def test_run_directories_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with pytest.raises(RunDirError, match="holds no run"):
        RunDir.open(path, {"a": 1}, resume=True)
    RunDir.open(path, {"a": 1, "b": 2}, resume=False)
    with pytest.raises(RunDirError, match="give --resume"):
        RunDir.open(path, {"a": 1, "b": 2}, resume=False)
    with pytest.raises(RunDirError, match="another config: b is 2 there, 3 here"):
        RunDir.open(path, {"a": 1, "b": 3}, resume=True)
    damaged = path / "journal.jsonl"
    damaged.write_text('nonsense\n{"key": "x"}\n{"key": "y"}\n')
    with pytest.raises(DamagedLogError, match=r"journal\.jsonl:1 is damaged"):
        RunDir.open(path, {"a": 1, "b": 2}, resume=True)


def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir.open(tmp_path / "run", {}, resume=False)
    run.write_json("kept.json", {"old": True})

    def full(self: Path, *args: object, **kwargs: object) -> None:
        self.touch()  # the name still fits
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(RunDirError, match=r"No space left.*--resume"):
        run.write_json("kept.json", {"old": False})
    with pytest.raises(RunDirError, match="No space left"), run.folder("checkpoint") as folder:
        (folder / "weights").write_text("x")
    monkeypatch.undo()
    assert json.loads((run.path / "kept.json").read_text()) == {"old": True}
    assert not [p for p in run.path.rglob("*") if "tmp" in p.name or "checkpoint" in p.name]


def test_the_ledgers_never_mix(tmp_path: Path) -> None:
    run = RunDir.open(tmp_path / "run", {}, resume=False)
    ledger = Ledger(run)
    ledger.agent("weights-1", AgentCost(4, 1, 100, 20, 1.5))
    ledger.agent("test", AgentCost(6, 0, 50, 30, 0.5))
    ledger.proposer("harness-1", ProposerCost(conversations=1, usd=0.25))
    totals = ledger.totals()
    assert (totals["agent"]["rollouts"], totals["agent"]["seconds"]) == (10, 2.0)
    assert totals["proposer"]["usd"] == 0.25 and "rollouts" not in totals["proposer"]


def test_scores_of_other_weights_never_compete_and_the_incumbent_keeps_ties(tmp_path: Path) -> None:
    run = RunDir.open(tmp_path / "run", {}, resume=False)
    archive = Archive(run)
    solved, failed = play(Harness, ["<answer>2</answer>"])[0], replace(play(Harness, ["no"])[0], index=1)
    for number, name in enumerate("abc"):
        harness = replace(trusted(Harness), id=name, source=GOOD)
        archive.add(Entry(name, name, None, "", "", 1, number), harness)
    archive.record("a", [solved, failed], 1)
    archive.record("b", [solved, solved], 0)
    archive.record("c", [failed, solved], 1)
    assert archive.ids() == ["a", "b", "c"]
    assert argmax(archive.tables(1), "c") == "c" and argmax(archive.tables(1), "a") == "a"
    archive.record("b", [solved, replace(solved, index=1)], 1)
    assert argmax(archive.tables(1), "a") == "b"
    assert len(archive.trajectories("b", 1)) == 2 and archive.source("a") == GOOD
    archive.write_frontier(1, "b")
    frontier = json.loads((run.path / "frontier.json").read_text())
    assert frontier["harnesses"][0]["id"] == "b" and frontier["accepted"] == "b"


def test_unknown_rewards_do_not_count_in_scores_and_evaluations() -> None:
    solved = play(Harness, ["<answer>2</answer>"])[0]
    lost = replace(solved, index=1, score=replace(solved.score, reward=None, failure="env_error"))
    assert HarnessScore.of([solved, lost], 0).reward == 1.0 and HarnessScore.of([solved, lost], 0).rollouts == 1
    evaluation = summary([solved, lost], 2, 1.0)
    assert (evaluation.mean, evaluation.tasks, evaluation.unknown, evaluation.rollouts) == (1.0, 1, 1, 2)


def test_intervals() -> None:
    low, high = interval([0.0] * 32)
    assert low == 0.0 and 0.10 < high < 0.12
    assert interval([1.0] * 32)[1] == 1.0
    low, high = interval([0.0, 1.0] * 50)
    assert 0.38 < low < 0.42 and 0.58 < high < 0.62 and interval([0.0, 1.0] * 50) == (low, high)


# The offline proposer


def brief(tmp_path: Path, env: EnvHandle, failures: dict[str, int]) -> Brief:
    archive = Archive(RunDir.open(tmp_path / "run", {}, resume=False))
    domain = env.prototype.domain.spec.name
    h0 = load(BASELINES.get(domain, "harness_sdk.harness:Harness"))
    score = HarnessScore(0, 0.0, sum(failures.values()), 1.0, 1.0, failures)
    archive.add(Entry(h0.id, h0.name, None, "", "", 0, 0, {}, {0: score}), h0)
    shown = tuple(env.open(task, 0)[1] for task in env.tasks("search")[:4])
    return Brief(domain, env.prototype.tools, shown, archive, h0.id, 0, 3, seed=1)


def propose(given: Brief) -> tuple[Proposal, ...]:
    return asyncio.run(OfflineProposer().propose(given)).candidates


class Survey:
    """Asks for something, to be committed as a value of some schema: a domain whose answers are not text."""

    def __init__(self, schema: dict[str, Any], answer: object) -> None:
        self._answer = answer
        found = {"type": "object", "properties": {"found": schema}, "required": ["found"]}
        about = {"type": "object", "properties": {"about": {"type": "string"}}, "required": ["about"]}
        answer = ToolSpec("answer", "Gives what was found.", found, commits=True)
        self.spec = DomainSpec("survey", (answer, ToolSpec("ask", "Tells more.", about)))

    def tasks(self, split: Split) -> Sequence[Task]:
        return [Task(f"{split}-{i}", "survey", split) for i in range(4)]

    def start(self, task: Task, seed: int) -> Finding:
        return Finding(task.id, self._answer)


class Finding:
    def __init__(self, place: str, answer: object) -> None:
        self._place, self._answer, self._given = place, answer, None

    def observe(self) -> Observation:
        return Observation(f"What is found at {self._place}?", {"listed": [{"name": "oak"}, {"name": "elm"}]})

    def apply(self, call: ToolCall) -> Outcome:
        if call.name == "ask":
            return Outcome(self.observe())
        self._given = call.arguments["found"]
        return Outcome(self.observe(), done=True)

    def said(self, call: ToolCall, text: str) -> bool:
        return said_verbatim(call, text)

    def score(self) -> Score:
        if self._given is None:
            return Score(0.0, "budget")
        right = self._given == self._answer and type(self._given) is type(self._answer)
        return Score(1.0) if right else Score(0.0, "wrong")


def survey(split: Split = "train", render_mode: str | None = None, **asked: Any) -> ToolEnv:
    return ToolEnv(Survey(**asked), split=split, render_mode=render_mode)


if "survey/Survey-v0" not in gym.registry:
    gym.register("survey/Survey-v0", entry_point=survey)

WORDS = ["red", "dark red", "Blue"]
SURVEYS: dict[str, dict[str, Any]] = {
    "integer": {"schema": {"type": "integer"}, "answer": 1234},
    "number": {"schema": {"type": "number"}, "answer": 9.92},
    "boolean": {"schema": {"type": "boolean"}, "answer": False},
    "words": {"schema": {"type": "string", "enum": WORDS}, "answer": "dark red"},
    "untyped words": {"schema": {"enum": WORDS}, "answer": "Blue"},
    "numbers": {"schema": {"type": "integer", "enum": [1, 2, 12]}, "answer": 12},
    "list": {"schema": {"type": "array", "items": {"type": "integer"}}, "answer": [1, 2]},
}
DOMAINS: dict[str, dict[str, Any]] = {
    "chess": {"tiers": ["1"]},
    "math": {"tiers": ["1"]},
    "searchqa": {"hops": 1},
    "riddles/Riddles-v0": {},
    **SURVEYS,
}


def named(name: str) -> EnvHandle:
    return handle("survey/Survey-v0" if name in SURVEYS else name, DOMAINS[name]).sealed()


@pytest.mark.parametrize("name", [name for name in DOMAINS if name not in ("untyped words", "numbers", "list")])
def test_proposals_are_valid_seeded_new_and_play_soundly(tmp_path: Path, name: str) -> None:
    env = named(name)
    domain = env.prototype.domain.spec.name
    given = brief(tmp_path, env, {"format": 30, "truncated": 34})
    first = propose(given)
    assert [p.source for p in first] == [p.source for p in propose(given)] and len(first) == 3
    seen = set()
    for round_ in range(6):  # until it runs dry, never the same source twice
        for proposal in propose(replace(given, seed=round_)):
            report = validate(proposal.source, domain)
            assert report.ok, report
            harness = load_source(proposal.source, env=domain)
            assert harness.id not in seen and proposal.hypothesis and proposal.axis
            seen.add(harness.id)
            score = HarnessScore(0, 0.0, 64, 1.0, 1.0, {"wrong": 10 + round_, "format": 40})
            names = proposal.name, proposal.parent, proposal.hypothesis, proposal.axis
            entry = Entry(harness.id, *names, 1, round_, proposal.traits, {0: score})
            given.archive.add(entry, harness)
            sound = asyncio.run(behaviour(harness, env, env.tasks("search")[:2], with_floor=False))
            assert sound.ok, f"{proposal.source}\n{sound}"
    assert len(seen) >= 10


@pytest.mark.parametrize("name", DOMAINS)
def test_every_mechanism_alone_writes_a_sound_harness(name: str) -> None:
    env = named(name)
    facts = Facts.of(env.prototype.tools, [env.open(task, 0)[1] for task in env.tasks("search")[:4]])
    base = Recipe(system="Do well.", max_tokens_per_turn=4096)
    for mechanism in mechanisms(facts):
        recipe = mechanism.change(replace(base, inform=next(iter(facts.informing), "")), facts)
        if recipe is not None:
            harness = load_source(render(recipe, facts, mechanism.name, "Tried."), env=env.prototype.domain.spec.name)
            with_floor = bool(facts.choices)  # only where answers are listed could an order give one away
            sound = asyncio.run(behaviour(harness, env, env.tasks("search")[:1], with_floor=with_floor))
            assert sound.ok, f"{harness.source}\n{sound}"


def facts_of(env: EnvHandle) -> Facts:
    return Facts.of(env.prototype.tools, [env.open(task, 0)[1] for task in env.tasks("search")])


def answered(name: str, changed: Sequence[str], *replies: str, **recipe: Any) -> Trajectory:
    """Plays the harness that some mechanisms write, with what the model replies in turn."""
    env = named(name)
    facts = facts_of(env)
    by_name = {mechanism.name: mechanism for mechanism in mechanisms(facts)}
    made: Recipe | None = Recipe(**recipe)
    for mechanism in changed:
        assert made is not None
        made = by_name[mechanism].change(made, facts)
    assert made is not None
    harness = load_source(render(made, facts, "Answered", "Tried."), env="survey")

    def reply(messages: Sequence[Message]) -> str:
        return replies[min(sum(message["role"] == "user" for message in messages), len(replies)) - 1]

    return asyncio.run(rollout([Job(harness, env.tasks("search")[0])], env, ScriptedPolicy(reply)))[0]


def committed(trajectory: Trajectory) -> list[object]:
    return [call.arguments["found"] for turn in trajectory.turns for call in turn.calls]


def value(name: str) -> str:
    return str(SURVEYS[name]["answer"])


@pytest.mark.parametrize("name", [name for name in SURVEYS if name != "list"])
def test_every_mechanism_solves_tasks_whose_answers_are_no_text(name: str) -> None:
    env = named(name)
    for mechanism in mechanisms(facts_of(env)):
        closing = f"{value(name)}</answer>"
        reply = closing if mechanism.name == "OpenTag" else f"<answer>{closing}"
        assert answered(name, [mechanism.name], reply, max_tokens_per_turn=512).reward == 1.0, mechanism.name


@pytest.mark.parametrize(
    ("name", "reply"),
    [
        ("integer", "There are 12 of 3m each and more, so I count 1234."),
        ("integer", "**1234** metres"),
        ("integer", "It is 1,234."),
        ("integer", "0001234"),
        ("number", "9.920"),
        ("number", "<answer>9.9200</answer>"),
        ("integer", "<answer>1234 metres</answer> of 2 kinds"),
        ("number", "2.5 and 7.42 make 9.92."),
        ("number", "About $9.92"),
        ("boolean", "It is FALSE."),
        ("boolean", "false, clearly false"),
        ("words", "I see a Dark  Red one"),
        ("words", "<answer>It is dark red!</answer>"),
        ("untyped words", "blue"),
        ("numbers", "12, I think"),
    ],
)
def test_a_value_without_its_tag_is_read_as_what_the_schema_asks_for(name: str, reply: str) -> None:
    reading = "ReadNumber" if name in ("integer", "number", "numbers") else "ReadOption"
    done = answered(name, [reading], reply)
    assert committed(done) == [SURVEYS[name]["answer"]] and done.reward == 1.0


@pytest.mark.parametrize(
    ("name", "reply", "why"),
    [
        ("integer", "<answer>1234meters</answer>", "stands alone"),
        ("integer", "There are 3. <answer>1234m</answer>", "stands alone"),
        ("integer", "x1234 or 1234/5 or 3.1234.5 or \u22121234 or 12,34 or 2^1234", "stands alone"),
        ("integer", "1234.5", "whole number"),
        ("integer", "9" * 5000, "stands alone"),
        ("integer", "nothing", "stands alone"),
        ("number", "9.92m", "stands alone"),
        ("number", "nan or Infinity or 9.92e999", "stands alone"),
        ("boolean", "true or false", "exactly one of true, false"),
        ("boolean", "untrue", "exactly one"),
        ("words", "red or dark red", "exactly one"),
        ("words", "reddish", "exactly one"),
    ],
)
@pytest.mark.parametrize("opened", [False, True])
def test_what_cannot_be_read_as_the_schema_asks_is_no_answer_and_no_violation(
    name: str, reply: str, why: str, opened: bool
) -> None:
    reading = "OpenTag" if opened else "ReadNumber" if name in ("integer", "number") else "ReadOption"
    if opened and "<answer>" in reply:
        reply = reply.split("<answer>")[1]
    right = f"{value(name)}</answer>" if opened else value(name)
    done = answered(name, [reading], reply, right, max_tokens_per_turn=6000)
    assert done.turns[0].failure is not None and done.turns[0].failure.kind == "format"
    assert why in done.turns[0].failure.reason
    assert committed(done) == [SURVEYS[name]["answer"]] and done.reward == 1.0  # nothing is lost: the next try counts


def test_what_an_argument_can_be_decides_how_it_is_read() -> None:
    names = {name: {mechanism.name for mechanism in mechanisms(facts_of(named(name)))} for name in SURVEYS}
    reads = {name: {word for word in found if word.startswith("Read")} for name, found in names.items()}
    for name in SURVEYS:
        read = {"integer": {"ReadNumber"}, "number": {"ReadNumber"}, "numbers": {"ReadNumber"}, "list": set()}
        assert reads[name] == read.get(name, {"ReadOption"})
    assert "WorkedExamples" in names["integer"] and "WorkedExamples" not in names["words"] | names["list"]
    assert facts_of(named("list")).kind == "other" and facts_of(named("words")).options["dark red"] == "dark red"


@pytest.mark.parametrize(
    ("parameters", "argument", "kind"),
    [
        ({"properties": {"why": {"type": "string"}, "n": {"type": "integer"}}, "required": ["n"]}, "n", "integer"),
        ({"properties": {"n": {"type": "integer"}, "why": {"type": "string"}}}, "why", "string"),
        ({"properties": {"x": {}}, "required": ["x"]}, "x", "string"),
        ({"properties": {"x": {"enum": [1, 2.5]}}, "required": ["x"]}, "x", "number"),
        ({"properties": {"x": {"enum": ["a", 1]}}, "required": ["x"]}, "x", "other"),
        ({"properties": {"x": {"type": "string", "enum": ["a", "A"]}}, "required": ["x"]}, "x", "string"),
        ({"properties": {"x": {"type": "number"}, "y": {"type": "number"}}, "required": ["x", "y"]}, "x", "other"),
        ({"properties": {}}, "", "other"),
        ({}, "", "other"),
    ],
)
def test_the_argument_that_a_reply_gives_is_the_required_one(
    parameters: dict[str, Any], argument: str, kind: str
) -> None:
    tool = ToolSpec("answer", "Answers.", {"type": "object", **parameters}, commits=True)
    facts = Facts.of([tool], [Observation("What?")])
    assert (facts.argument, facts.kind) == (argument, kind)


def test_the_diagnosis_decides_what_is_proposed(tmp_path: Path) -> None:
    env = handle("chess", {"tiers": ["1"]}).sealed()
    unread = {p.traits["added"][-1] for p in propose(brief(tmp_path / "a", env, {"truncated": 64}))}
    wrong = {p.traits["added"][-1] for p in propose(brief(tmp_path / "b", env, {"wrong": 64}))}
    assert "AskForChoice" in unread and "Vote" in wrong and "Vote" not in unread


def test_facts_are_read_off_shapes_not_names() -> None:
    env = handle("chess", {"tiers": ["1"]})
    shown = [env.open(task, 0)[1] for task in env.tasks("train")[:4]]
    facts = Facts.of(env.prototype.tools, shown)
    assert (facts.tool, facts.argument, facts.choices) == ("move", "uci", "legal_moves")
    assert (facts.notations, facts.facts) == (("uci", "san"), ("side_to_move", "fen"))
    riddle = EnvHandle("riddles/Riddles-v0", {})
    facts = Facts.of(riddle.prototype.tools, [riddle.open(riddle.tasks("train")[0], 0)[1]])
    assert (facts.tool, facts.argument, facts.choices) == ("answer", "text", None)


def chess_facts() -> tuple[EnvHandle, Facts]:
    env = handle("chess", {"themes": ["mateIn1"], "max_legal": 20}).sealed()
    return env, Facts.of(env.prototype.tools, [env.open(task, 0)[1] for task in env.tasks("search")[:8]])


def test_recipes_carry_what_the_harness_does_that_they_begin_from() -> None:
    _, facts = chess_facts()
    recipe = Recipe.read(load("reference_harnesses.chess:ChessH0").source, facts)
    assert "chess puzzle" in recipe.system and "legal moves" in recipe.instructions and recipe.max_tokens_per_turn == 8
    assert (recipe.view, recipe.reading, recipe.retry) == ("san", "choices", "fresh")
    assert Recipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe
    source = render(recipe, Facts("move", "uci"), "Again", "Nothing new.")
    assert validate(source, "chess").ok
    assert Recipe.read(load("reference_harnesses.math:MathH0").source, facts).reading == "tags"


def test_a_vote_takes_what_most_replies_name_and_shows_another_order_at_each_call() -> None:
    env, facts = chess_facts()
    h0 = Recipe.read(load("reference_harnesses.chess:ChessH0").source, facts)
    recipe = replace(h0, votes=5, order="shuffled", layout="lines", context=False)
    voting = load_source(render(recipe, facts, "Votes", "Votes."), env="chess")
    task = env.tasks("search")[0]
    moves = [item["san"] for item in env.open(task, 0)[1].data["legal_moves"]]

    def ask() -> Trajectory:
        (played,) = asyncio.run(rollout([Job(voting, task)], env, ScriptedPolicy(lambda _: said.pop(0))))
        return played

    said = [moves[1], "none", f"I play {moves[0]}", moves[0], moves[1]]
    split = ask()
    assert len(split.calls) == 5 and split.turns[-1].calls[0].arguments["uci"] == uci_of(env, task, moves[1])
    prompts = [call.messages[-1]["content"] for call in split.calls]
    assert len(set(prompts)) == 5 and len({"".join(sorted(prompt)) for prompt in prompts}) == 1
    said = [moves[0]] * 3
    assert len(ask().calls) == 3
    said = ["none"] * 5 + [moves[0]]
    late = ask()
    assert late.turns[4].failure is not None and late.turns[5].calls


def uci_of(env: EnvHandle, task: Task, san: str) -> str:
    listed = env.open(task, 0)[1].data["legal_moves"]
    return next(item["uci"] for item in listed if item["san"] == san)


def test_merit_counts_reward_and_how_far_failures_came() -> None:
    def score(reward: float, **failures: int) -> HarnessScore:
        return HarnessScore(0, reward, 10, 1.0, 1.0, failures)

    ranked = [score(0.0, format=10), score(0.0, illegal=10), score(0.1, wrong=9), score(0.5, format=5)]
    assert sorted(ranked, key=merit) == ranked


# One harness phase


def test_bad_proposals_cost_themselves_only(tmp_path: Path) -> None:
    archive = Archive(RunDir.open(tmp_path / "run", {}, resume=False))
    two = GOOD + "\n\nclass Other(Harness):\n    pass\n"
    bad = ["", "nonsense(", two, "import os\n" + GOOD, "x = 1", "#" * 10_000_000]
    rounds = ScriptedProposer([[*bad, GOOD, GOOD]])
    env = EnvHandle("riddles/Riddles-v0", {}).sealed()
    proposed = asyncio.run(rounds.propose(Brief("riddles", (), (), archive, "h0", 0, 3, 0))).candidates
    admitted = admit(proposed, archive, 0, checker(env, env.tasks("search")[:3]))
    candidates, rejected = asyncio.run(admitted)
    assert [c.harness.name for c in candidates] == ["Good"] and len(rejected) == len(bad) + 1
    assert all(item.why for item in rejected) and "already" in rejected[-1].why


ANSWERS = """from harness_sdk import Harness, ToolCall


class Answers(Harness):
    def parse(self, completion, episode):
        return [ToolCall("answer", {"text": "2"})]
"""

FORGETS = """from harness_sdk import Harness


class Forgets(Harness):
    def pack(self, episode):
        return [{"role": "user", "content": episode.turns[0].completion.text}]
"""


@pytest.mark.parametrize(("source", "finding"), [(ANSWERS, "violation"), (FORGETS, "hook-error")])
def test_candidates_that_misbehave_are_turned_away_before_any_model_call(
    tmp_path: Path, source: str, finding: str
) -> None:
    archive = Archive(RunDir.open(tmp_path / "run", {}, resume=False))
    env = EnvHandle("riddles/Riddles-v0", {}).sealed()
    proposal = Proposal("bad", source, "h0", "parsing", "")
    admitted = admit([proposal], archive, 0, checker(env, env.tasks("search")[:3]))
    candidates, rejected = asyncio.run(admitted)
    assert not candidates and f"[{finding}]" in rejected[0].why


def test_candidates_are_scored_on_the_same_tasks_with_the_same_seeds() -> None:
    env = EnvHandle("riddles/Riddles-v0", {}).sealed()
    one, other = load_source(GOOD), load_source(GOOD.replace("brief", "long"))
    tasks = env.tasks("search")[:3]
    policy = ScriptedPolicy(["<answer>2</answer>"])
    from harness_sdk import RolloutConfig

    scored, cost = asyncio.run(score([one, other], env, policy, (tasks, 2), RolloutConfig()))
    assert cost.rollouts == 12 and cost.unknown == 0
    seeds = [[(t.task.id, t.index, t.seed) for t in scored[h.id]] for h in (one, other)]
    assert seeds[0] == seeds[1] and len(seeds[0]) == 6
    assert sum(t.reward or 0 for t in scored[one.id]) == 2  # only 1 + 1 is 2
