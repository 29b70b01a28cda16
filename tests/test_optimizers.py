"""Schedules, the run directory, the archive, the offline proposer and one harness phase, without a language model."""

from __future__ import annotations

import asyncio
import errno
import json
from dataclasses import replace
from pathlib import Path

import pytest
import riddles  # noqa: F401  # registers riddles/Riddles-v0
from test_rollout import play, trusted

from harness_sdk import Harness, ScriptedPolicy, load, validate
from harness_sdk.check import behaviour
from harness_sdk.loader import load_source
from optimizers import meta_harness
from optimizers.archive import Archive, Entry, HarnessScore
from optimizers.config import ScheduleConfig
from optimizers.evaluate import interval, summary
from optimizers.ledger import AgentCost, Ledger, ProposerCost
from optimizers.offline_proposer import OfflineProposer, mechanisms, merit
from optimizers.proposer import Brief, Proposal, ScriptedProposer
from optimizers.proposers.checks import checker
from optimizers.recipes import Facts, Recipe
from optimizers.rundir import RunDir, RunDirError, read_lines
from optimizers.schedule import harness_over, phases, weights_over
from optimizers.templates import render
from reference_harnesses import BASELINES
from whale_env import handle
from whale_env.core import EnvHandle

GOOD = """from harness_sdk import Harness


class Good(Harness):
    system = "Be brief."
"""


def names(method: str, cycles: int) -> list[str]:
    return [phase.name for phase in phases(method, cycles)]  # type: ignore[arg-type]


def test_all_methods_have_the_same_budgets() -> None:
    whale = ["weights-1", "harness-1", "weights-2", "harness-2", "weights-3"]
    assert names("whale", 3) == names("adaptive", 3) == whale
    assert names("weight-only", 3) == whale[::2] and names("harness-only", 3) == whale[1::2]
    assert names("stagewise", 3) == whale[::2] + whale[1::2]


def test_an_adaptive_weight_phase_ends_when_the_window_stops_improving() -> None:
    config = ScheduleConfig(window=0.2, min_epochs=0.2, patience=0.2, max_epochs=2.0)  # at 10 steps: 2, 2, 2, 20

    def over(rewards: list[float]) -> bool:
        return weights_over(rewards, 10, config)

    assert not over([0.1]) and not over([0.1, 0.1, 0.1])
    assert over([0.1, 0.1, 0.1, 0.1])  # the first full window was the best, two more came
    rising = [i / 100 for i in range(19)]
    assert not any(over(rising[:n]) for n in range(20)) and over([i / 100 for i in range(20)])
    assert not over([0.5, 0.5, 0.1, 0.1][:3])
    assert not over([0.1, 0.1, 0.1, 0.1 + 1e-9])  # any strict improvement counts


def test_an_adaptive_harness_phase_ends_by_patience_after_the_minimum() -> None:
    config = ScheduleConfig(min_iterations=3, iteration_patience=2, max_iterations=6)
    assert not harness_over([0.1, 0.1], config) and harness_over([0.1, 0.1, 0.1], config)
    assert not harness_over([0.1, 0.2, 0.2], config) and harness_over([0.1, 0.2, 0.2, 0.2], config)
    assert harness_over([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], config)


def test_the_run_directory_journals_resumes_and_cuts_logs_back(tmp_path: Path) -> None:
    run = RunDir.open(tmp_path / "run", {"a": 1}, resume=False)
    run.append("metrics.jsonl", {"n": 1})
    assert run.finish("one", {"x": (1, 2)}, 0.5) == {"x": [1, 2]}
    run.append("metrics.jsonl", {"n": 2})  # of a unit that is never finished
    run.append("ledger.jsonl", {"spent": 2})
    with (run.path / "journal.jsonl").open("a") as file:
        file.write('{"key": "tw')  # the writer was killed
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
    with pytest.raises(RunDirError, match=r"journal\.jsonl:1 is damaged"):
        RunDir.open(path, {"a": 1, "b": 2}, resume=True)


def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDir.open(tmp_path / "run", {}, resume=False)
    run.write_json("kept.json", {"old": True})

    def full(self: Path, *args: object, **kwargs: object) -> None:
        self.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
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
    solved, failed = play(Harness, ["<answer>2</answer>"])[0], play(Harness, ["no"])[0]
    for number, name in enumerate("abc"):
        harness = replace(trusted(Harness), id=name, source=GOOD)
        archive.add(Entry(name, name, None, "", "", 1, number), harness)
    archive.record("a", [solved, failed], 1)
    archive.record("b", [solved, solved], 0)
    archive.record("c", [failed, solved], 1)
    assert archive.ids() == ["a", "b", "c"]
    assert archive.best(1, "c")[0] == "c" and archive.best(1, "a")[0] == "a"
    assert archive.best(1, "b")[1].reward == 0.5
    archive.record("b", [solved, replace(solved, index=1)], 1)
    assert archive.best(1, "a")[0] == "b"
    assert len(archive.trajectories("b", 1)) == 2 and archive.source("a") == GOOD
    archive.write_frontier(1, "b")
    frontier = json.loads((run.path / "frontier.json").read_text())
    assert frontier["harnesses"][0]["id"] == "b" and frontier["accepted"] == "b"


def test_unknown_rewards_do_not_count_in_scores_and_evaluations() -> None:
    solved = play(Harness, ["<answer>2</answer>"])[0]
    lost = replace(solved, score=replace(solved.score, reward=None, failure="env_error"))
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


DOMAINS = {
    "chess": {"tiers": ["1"]},
    "math": {"tiers": ["1"]},
    "searchqa": {"hops": 1},
    "riddles/Riddles-v0": {},
}


@pytest.mark.parametrize("name", DOMAINS)
def test_proposals_are_valid_seeded_new_and_play_soundly(tmp_path: Path, name: str) -> None:
    env = handle(name, DOMAINS[name]).sealed()
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
            sound = asyncio.run(behaviour(harness, env, env.tasks("search")[:2]))
            assert sound.ok, f"{proposal.source}\n{sound}"
    assert len(seen) >= 10


@pytest.mark.parametrize("name", DOMAINS)
def test_every_mechanism_alone_writes_a_sound_harness(name: str) -> None:
    env = handle(name, DOMAINS[name]).sealed()
    facts = Facts.of(env.prototype.tools, [env.open(task, 0)[1] for task in env.tasks("search")[:4]])
    base = Recipe(system="Do well.", max_tokens_per_turn=4096)
    for mechanism in mechanisms(facts):
        recipe = mechanism.change(replace(base, inform=next(iter(facts.informing), "")), facts)
        if recipe is not None:
            harness = load_source(render(recipe, facts, mechanism.name, "Tried."), env=env.prototype.domain.spec.name)
            sound = asyncio.run(behaviour(harness, env, env.tasks("search")[:1]))
            assert sound.ok, f"{harness.source}\n{sound}"


def test_the_diagnosis_decides_what_is_proposed(tmp_path: Path) -> None:
    env = handle("chess", {"tiers": ["1"]}).sealed()
    unread = {p.traits["added"][-1] for p in propose(brief(tmp_path / "a", env, {"truncated": 64}))}
    wrong = {p.traits["added"][-1] for p in propose(brief(tmp_path / "b", env, {"wrong": 64}))}
    assert "ReadChoices" in unread and "ReadChoices" not in wrong and "MarkedFirst" in wrong


def test_facts_are_read_off_shapes_not_names() -> None:
    env = handle("chess", {"tiers": ["1"]})
    shown = [env.open(task, 0)[1] for task in env.tasks("train")[:4]]
    facts = Facts.of(env.prototype.tools, shown)
    assert (facts.tool, facts.argument, facts.choices, facts.marked) == ("move", "uci", "legal_moves", "san")
    riddle = EnvHandle("riddles/Riddles-v0", {})
    facts = Facts.of(riddle.prototype.tools, [riddle.open(riddle.tasks("train")[0], 0)[1]])
    assert (facts.tool, facts.argument, facts.choices) == ("answer", "text", None)


def test_recipes_carry_the_texts_of_the_harness_they_begin_from() -> None:
    recipe = Recipe.read(load("reference_harnesses.chess:ChessH0").source)
    assert "chess puzzle" in recipe.system and "<move>" in recipe.instructions and recipe.max_tokens_per_turn == 24
    assert Recipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe
    source = render(recipe, Facts("move", "uci"), "Again", "Nothing new.")
    assert validate(source, "chess").ok


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
    admitted = meta_harness.admit(proposed, archive, "riddles", checker(env, env.tasks("search")[:3]))
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
    admitted = meta_harness.admit([proposal], archive, "riddles", checker(env, env.tasks("search")[:3]))
    candidates, rejected = asyncio.run(admitted)
    assert not candidates and f"[{finding}]" in rejected[0].why


def test_candidates_are_scored_on_the_same_tasks_with_the_same_seeds() -> None:
    env = EnvHandle("riddles/Riddles-v0", {}).sealed()
    one, other = load_source(GOOD), load_source(GOOD.replace("brief", "long"))
    tasks = env.tasks("search")[:3]
    policy = ScriptedPolicy(["<answer>2</answer>"])
    from harness_sdk import RolloutConfig

    scored, cost = asyncio.run(meta_harness.score([one, other], env, policy, (tasks, 2), RolloutConfig()))
    assert cost.rollouts == 12 and cost.unknown == 0
    seeds = [[(t.task.id, t.index, t.seed) for t in scored[h.id]] for h in (one, other)]
    assert seeds[0] == seeds[1] and len(seeds[0]) == 6
    assert sum(t.reward or 0 for t in scored[one.id]) == 2  # only 1 + 1 is 2
