"""Racing: the bound holds, hopeless candidates stop, survivors have the outcomes of full scoring."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from test_selection import TASKS, row, scorer

from optimizers.archive.records import OutcomeTable
from optimizers.search.racing import RacingConfig, hopeless, losers, race, shuffled, task_means


def test_what_cannot_catch_up_is_hopeless_whatever_the_confidence() -> None:
    assert hopeless([-1.0] * 6, 11, 0.5, 1e-300)  # six behind, five left
    assert not hopeless([-1.0] * 5, 11, 0.5, 1e-300)
    assert not hopeless([], 10, 0.5, 0.1) and hopeless([], 0, 0.5, 0.1)


def test_the_bound_is_wrong_about_winners_at_most_alpha_of_the_time() -> None:
    rng = np.random.default_rng(0)
    need, alpha, wrong, trials = 1.0, 0.2, 0, 120
    ends = np.array([1.0] * 21 + [-1.0] * 20 + [0.0] * 23)  # the sum is just what is needed
    for _ in range(trials):
        seen = rng.permutation(ends)
        wrong += any(hopeless(seen[:t], len(seen), need, alpha) for t in range(4, len(seen), 4))
    assert 0 < wrong <= alpha * trials


def test_a_larger_need_is_never_harder_to_refute() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        seen = rng.choice([-1.0, 0.0, 1.0], size=30, p=[0.4, 0.4, 0.2])
        verdicts = [hopeless(seen, 60, need, 0.1) for need in np.arange(-20.0, 20.0, 0.5)]
        assert verdicts == sorted(verdicts)


def test_a_clearly_worse_candidate_is_refuted_long_before_the_end() -> None:
    rng = np.random.default_rng(2)
    seen = rng.permutation([-1.0] * 80 + [1.0] * 16 + [0.0] * 160)
    first = next(t for t in range(1, 257) if hopeless(seen[:t], 256, 1.0, 0.05))
    assert first < 100


def test_candidates_lose_to_the_incumbent_or_to_a_rival_but_not_to_each_other_in_a_tie() -> None:
    order = [f"t{i}" for i in range(40)]
    half = order[:20]
    solved, failed = dict.fromkeys(half, 1.0), dict.fromkeys(half, 0.0)
    found = losers({"a": failed, "b": solved, "c": solved}, dict.fromkeys(order, 0.0), order, 1.0, 0.1)
    assert set(found) == {"a"} and "against b after 20 of 40" in found["a"]
    found = losers({"a": failed}, dict.fromkeys(order, 1.0), order, 1.0, 0.1)
    assert "-1.000 against the incumbent" in found["a"]


def test_a_race_stops_the_hopeless_and_leaves_survivors_as_full_scoring_would() -> None:
    score = scorer({"h0": lambda t: 0.5, "bad": lambda t: 0.0, "good": lambda t: 0.9, "down": lambda t: None})
    full = asyncio.run(score(["h0", "good"], TASKS, 2, "search"))  # type: ignore[arg-type, misc]
    incumbent = OutcomeTable.of("h0", full["h0"])
    raced = asyncio.run(
        race(["bad", "good", "down"], incumbent, TASKS, 2, score, RacingConfig(batches=10), ("search", 3))  # type: ignore[arg-type]
    )
    assert "bad" in raced.stopped and "good" not in raced.stopped
    assert OutcomeTable.of("good", raced.trajectories["good"]).rewards == OutcomeTable.of("good", full["good"]).rewards
    assert "down" not in raced.stopped or raced.trajectories["down"][0].reward is None
    assert raced.rollouts + raced.saved == 3 * 40 * 2 and raced.saved > 0
    seen = [t.task.id for t in raced.trajectories["bad"][::2]]
    assert sorted(seen) == sorted(task.id for task in shuffled(TASKS, 3)[: len(seen)])


def test_the_order_is_common_seeded_and_shuffled() -> None:
    assert shuffled(TASKS, 1) == shuffled(TASKS[::-1], 1) != shuffled(TASKS, 2)
    assert shuffled(TASKS, 1) != TASKS


def test_means_are_over_known_rewards() -> None:
    rows = [row(TASKS[0], "a", 0, 1.0), row(TASKS[0], "a", 1, 0.0), row(TASKS[1], "a", 0, None)]
    assert task_means(OutcomeTable.of("a", rows)) == {"t0": 0.5}


@pytest.mark.parametrize("bad", [{"alpha": 0.0}, {"batches": 0}])
def test_settings_are_checked(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        RacingConfig(**bad)  # type: ignore[arg-type]
