"""Selection rules on outcome tables, the re-test, and the evaluation cache: without a language model."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
import riddles  # noqa: F401  # registers riddles/Riddles-v0
from hypothesis import given, settings
from hypothesis import strategies as st

from harness_sdk.randomness import derive_seed
from harness_sdk.trajectory import Trajectory
from optimizers.archive.records import OutcomeTable
from optimizers.config import PairedConfig
from optimizers.run.evaluation import Gain, gain, summary
from optimizers.search.acceptance import Accepted, Argmax, Decision, Paired, argmax
from optimizers.search.comparison import compare
from optimizers.search.retest import level, look, nominate, retest, slices
from optimizers.search.scoring import tabled
from optimizers.statistics import holm, sign_flip, sign_test
from whale_env import Score, Task

TASKS = [Task(f"t{i}", "toy", "search") for i in range(40)]


def row(task: Task, harness: str, index: int, reward: float | None) -> Trajectory:
    return Trajectory(task, harness, index, 0, (), (), Score(reward, None if reward else "wrong"))


def table(harness: str, rewards: Sequence[float], turns: float = 1.0, tokens: float = 1.0) -> OutcomeTable:
    return OutcomeTable(harness, {(f"t{i}", 0): reward for i, reward in enumerate(rewards)}, turns, tokens)


def scorer(skills: Mapping[str, Callable[[Task], float | None]]) -> Callable[..., object]:
    """A score callable over harnesses that solve a task with known probability (None: an infrastructure failure)."""

    async def score(
        ids: Sequence[str], tasks: Sequence[Task], samples: int, label: str
    ) -> Mapping[str, Sequence[Trajectory]]:
        found: dict[str, list[Trajectory]] = {name: [] for name in ids}
        for name in ids:
            for task, index in itertools.product(tasks, range(samples)):
                chance = skills[name](task)
                toss = random.Random(derive_seed(name, task.id, index, label)).random()
                found[name].append(row(task, name, index, None if chance is None else float(toss < chance)))
        return found

    return score


def test_argmax_takes_the_best_mean_and_the_incumbent_keeps_ties() -> None:
    tables = [table("a", [1, 0, 0]), table("b", [1, 1, 0], turns=3), table("c", [0, 1, 1], turns=2)]
    assert argmax(tables, "a") == "c"  # the same reward in fewer turns
    assert argmax(tables, "b") == "b"
    assert argmax([*tables[:2], replace(tables[2], turns=3.0, tokens=0.5)], "a") == "c"
    assert argmax([table("x", [])], "x") == argmax([], "x") == "x"  # nothing competes
    assert argmax([table("y", [1, 1])], "x") == "x"  # and nothing can be compared with x


def test_few_unknown_rewards_are_compared_on_common_rollouts_and_many_do_not_compete() -> None:
    lost = [("t0", 0)]
    half = OutcomeTable("half", {(f"t{i}", 0): 1.0 for i in range(1)}, unknown=[(f"t{i}", 0) for i in range(1, 64)])
    assert argmax([table("h0", [0.5] * 64), half], "h0") == "h0"  # one known of 64 proves nothing
    hard = replace(table("h0", [0] + [1] * 63))
    spared = OutcomeTable("spared", {(f"t{i}", 0): 1.0 for i in range(1, 64)}, unknown=lost)
    assert spared.competes and spared.mean > hard.mean and argmax([hard, spared], "h0") == "h0"
    ten = OutcomeTable("ten", {(f"t{i}", 0): 1.0 for i in range(9)}, unknown=[("t9", 0)])
    assert not ten.competes and argmax([table("h0", [0] * 10), ten], "h0") == "h0"
    same = asyncio.run(Paired(PairedConfig(), TASKS).accept(Decision("h0", [table("h0", [0] * 10), ten], 2, 6), None))  # type: ignore[arg-type]
    assert same == Accepted("h0") == asyncio.run(Argmax().accept(Decision("h0", [ten], 2, 6), None))  # type: ignore[arg-type]


def test_one_rollout_a_task_is_mcnemars_exact_test() -> None:
    for better, worse in ((0, 0), (1, 0), (5, 1), (9, 2), (3, 8), (60, 40)):
        n = better + worse
        tail = sum(math.comb(n, k) for k in range(better, n + 1)) / 2**n
        assert sign_flip([1] * better + [-1] * worse + [0] * 7) == pytest.approx(tail)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(-4, 4), max_size=7))
def test_the_sign_flip_test_counts_all_patterns(differences: list[int]) -> None:
    patterns = list(itertools.product((1, -1), repeat=len(differences)))
    sums = [sum(sign * abs(value) for sign, value in zip(signs, differences, strict=True)) for signs in patterns]
    expected = sum(total >= sum(differences) for total in sums) / len(patterns)
    assert sign_flip(differences) == pytest.approx(expected)


def test_comparisons_pair_the_same_rollouts_and_leave_unknown_rewards_out() -> None:
    mine = OutcomeTable.of("c", [row(TASKS[0], "c", 0, 1.0), row(TASKS[0], "c", 1, 1.0), row(TASKS[1], "c", 0, None)])
    theirs = OutcomeTable.of("i", [row(TASKS[0], "i", 0, 0.0), row(TASKS[1], "i", 0, 0.0), row(TASKS[2], "i", 0, 1.0)])
    found = compare(mine, theirs)
    assert (found.tasks, found.pairs, found.gain, found.p) == (1, 1, 1.0, 0.5)
    assert compare(mine, table("i", [])).p == 1.0 and mine.mean == 1.0
    halves = compare(table("c", [0.5] * 6), table("i", [0.25] * 6))
    assert halves.p == pytest.approx(1 / 64) and halves.gain == 0.25


def test_rollouts_of_one_task_are_not_counted_as_independent() -> None:
    one_task = {("t0", index): 1.0 for index in range(50)}
    found = compare(OutcomeTable("c", one_task), OutcomeTable("i", {key: 0.0 for key in one_task}))
    assert found.p == 0.5 and found.gain == 1.0


def test_holms_correction() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.9]) == [1.0, 1.0] and holm([]) == []


def test_two_evaluations_are_compared_on_common_known_rollouts() -> None:
    half_unknown = [row(task, "a", 0, 1.0 if number % 2 else None) for number, task in enumerate(TASKS[:16])]
    whole = [row(task, "b", 0, 1.0) for task in TASKS[:16]]
    before, after = summary(half_unknown, 1, 1.0), summary(whole, 1, 1.0)
    assert before.by_task["t0"] == [None] and before.tasks == 8 and before.unknown == 8
    assert gain(before, after) == Gain(0.0, 1.0)  # an unknown reward is no 0
    better = [row(task, "b", index, float(index)) for task in TASKS[:4] for index in range(2)]
    none = [row(task, "a", index, 0.0) for task in TASKS[:4] for index in range(2)]
    assert gain(summary(none, 2, 1.0), summary(better, 2, 1.0)) == Gain(0.5, 1 / 16)


def test_the_two_sided_sign_test_is_exact() -> None:
    assert sign_test(0, 0) == sign_test(3, 3) == 1.0
    assert sign_test(7, 0) == pytest.approx(2 / 128) and sign_test(1, 9) == pytest.approx(22 / 1024)


def test_nominations_need_a_gain_and_are_not_repeated() -> None:
    incumbent = table("i", [1, 0, 0, 0, 0, 0])
    tables = [incumbent, table("a", [1, 1, 1, 0, 0, 0]), table("b", [1, 1, 0, 0, 0, 0]), table("same", [0, 1, 0, 0, 0])]
    found = nominate(tables, "i")
    assert found.nominee == "a" and [c.candidate for c in found.comparisons[:2]] == ["a", "b"]
    assert found.comparisons[0].adjusted == pytest.approx(3 * found.comparisons[0].p)
    assert nominate(tables, "i", {"a"}).nominee == "b"
    assert nominate(tables, "i", {"a", "b"}).nominee is None  # no gain: the incumbent keeps ties
    assert nominate(tables, "i", screen=0.2).nominee is None
    with pytest.raises(ValueError, match="'x' is not scored"):
        nominate(tables, "x")


def test_a_phase_spends_its_level_over_the_decisions_left() -> None:
    assert level(0.1, 0.0, 5) == pytest.approx(0.02)
    spent = 0.0
    for left in (5, 4, 3, 2, 1):
        spent += level(0.1, spent, left)
    assert spent == pytest.approx(0.1) and level(0.1, spent, 3) == pytest.approx(0.0, abs=1e-12)
    assert level(0.1, 0.0, 1) == 0.1  # all of it is left when nothing was refused


def test_the_retest_confirms_a_real_gain_and_refuses_a_lucky_one() -> None:
    score = scorer({"h0": lambda task: 0.3, "good": lambda task: 0.7, "lucky": lambda task: 0.3})
    good = asyncio.run(retest("good", "h0", (TASKS, ()), tabled(score), 0.02))  # type: ignore[arg-type]
    assert good.accepted and good.spent == 0.0 and len(good.looks) == 1 and good.rollouts == 2 * 5 * 40
    lucky = [
        asyncio.run(retest("lucky", "h0", (TASKS, ()), tabled(score), 0.02, label=f"r{i}"))  # type: ignore[arg-type]
        for i in range(10)
    ]
    assert sum(r.accepted for r in lucky) == 0 and lucky[0].spent == 0.02
    assert min(len(r.looks) for r in lucky) == 1  # hopeless ones end at once


def test_the_holdout_shows_what_holds_on_the_searched_tasks_only() -> None:
    searched, held = slices(TASKS, 0.25, seed=1)
    assert len(held) == 10 and slices(TASKS, 0.25, seed=1) == (searched, held) and slices(TASKS, 0)[1] == []
    known = {task.id for task in searched}
    score = scorer({"h0": lambda task: 0.2, "overfit": lambda task: 0.9 if task.id in known else 0.2})
    found = asyncio.run(retest("overfit", "h0", (searched, held), tabled(score), 0.02))  # type: ignore[arg-type]
    assert found.overfit is not None and found.overfit > 0.3 and found.comparison.tasks == 40
    assert found.to_json()["overfit"] == found.overfit
    with pytest.raises(ValueError, match=r"1\.5"):
        slices(TASKS, 1.5)


def test_infrastructure_failures_are_not_scored_in_a_retest() -> None:
    score = scorer({"h0": lambda task: 0.0, "down": lambda task: None})
    found = asyncio.run(retest("down", "h0", (TASKS, ()), tabled(score), 0.05))  # type: ignore[arg-type]
    assert not found.accepted and found.comparison.pairs == 0 and found.looks == (1.0,)


def test_looks_keep_to_the_level() -> None:
    config = PairedConfig(rounds=3, early=0.1)
    assert look(0.005, 0, 0.05, config) is True and look(0.006, 0, 0.05, config) is None
    assert look(0.6, 1, 0.05, config) is False and look(0.6, 2, 0.05, config) is False
    assert look(0.04, 2, 0.05, config) is True and look(0.041, 2, 0.05, config) is False
    assert [PairedConfig(rollouts=100).samples(n) for n in (24, 100, 256)] == [5, 1, 1]
    for bad in ({"alpha": 0.0}, {"rounds": 0}, {"early": 0.5, "rounds": 3}, {"screen": 2.0}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            PairedConfig(**bad)  # type: ignore[arg-type]
