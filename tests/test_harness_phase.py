"""One harness phase through the real loop, with a scripted policy: selection, racing, kept rollouts, the archive."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import riddles  # noqa: F401  # registers riddles/Riddles-v0

from harness_sdk import Harness, RolloutConfig, ScriptedPolicy
from harness_sdk.loader import load_source
from harness_sdk.policies.base import Generation, Policy, Request
from harness_sdk.types import Message
from optimizers.archive.records import Entry
from optimizers.archive.store import Archive
from optimizers.config import (
    BackendConfig,
    BudgetConfig,
    ConfigError,
    EvaluationConfig,
    PairedConfig,
    RunConfig,
    SearchConfig,
)
from optimizers.proposers.protocol import Proposal, ScriptedProposer
from optimizers.record.rundir import RunDir
from optimizers.run import start
from optimizers.search.meta_harness import MetaHarness
from optimizers.search.protocol import Bench, Outcome, Place
from optimizers.search.scoring import Scoring
from whale_env.core import EnvHandle

SOURCE = """from harness_sdk import Harness


class Rated(Harness):
    system = "{word}"
    max_turns = 1
"""


SMALL = PairedConfig(rollouts=10, rounds=2)
"""A re-test of two short rounds."""


def skilled(messages: Sequence[Message]) -> str:
    """Solves the first so many riddles: as many as the system text says."""
    skill = int(messages[0]["content"])
    number = int(messages[-1]["content"].split()[2])
    return f"<answer>{2 * number if number < skill else -1}</answer>"


class Search:
    """A search at weights version 0, from a harness that solves three of ten."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.env = EnvHandle("riddles/Riddles-v0", {}).sealed()
        config = SearchConfig(examples=10, samples=1, **options)
        self.run = RunDir.open(path / "run", {}, resume=(path / "run").exists())
        self.archive = Archive(self.run)
        self.h0 = load_source(SOURCE.format(word=3))
        self.archive.add(Entry(self.h0.id, "h0", None, "", "", 0, 0), self.h0)
        self.bench = Bench.of(config, 0, self.env, self.archive, ScriptedProposer([]), self.h0)
        self.search = MetaHarness(self.bench)
        self.outcomes: list[Outcome] = []
        self.accepted = self.h0.id

    def scoring(self, policy: Policy) -> Scoring:
        return Scoring(self.bench.harnesses, self.env, policy, lambda label: RolloutConfig(phase=label))

    def place(self) -> Place:
        return Place(1, len(self.outcomes), 0, self.accepted, 2, self.outcomes)

    def iterate(self, *skills: int) -> tuple[dict[str, Any], int]:
        """Runs the next iteration over candidates of given skills; returns its outcome and the rollouts it took."""
        scoring = self.scoring(ScriptedPolicy(skilled))
        proposals = [
            Proposal(f"skill-{skill}", SOURCE.format(word=skill), self.h0.id, "prompt", "") for skill in skills
        ]
        outcome = asyncio.run(self.search.iterate(self.place(), proposals, scoring))
        data = json.loads(json.dumps(outcome.to_json()))
        self.outcomes.append(Outcome.from_json(data))
        assert self.outcomes[-1].to_json() == data
        self.accepted = outcome.accepted
        return data, sum(cost.rollouts for cost in scoring.costs)

    def name(self) -> str:
        return self.archive.entry(self.accepted).name


def test_argmax_takes_the_best_and_keeps_the_incumbent_on_ties(tmp_path: Path) -> None:
    search = Search(tmp_path)
    outcome, rollouts = search.iterate()
    assert (outcome["best"], rollouts, search.name()) == (0.3, 10, "h0")
    outcome, rollouts = search.iterate(2, 8, 5)
    assert (outcome["best"], rollouts, search.name()) == (0.8, 30, "skill-8")
    outcome, _ = search.iterate(8, 7)  # skill-8 again is the same source
    assert search.name() == "skill-8" and [r["name"] for r in outcome["refused"]] == ["skill-8"]
    index = (search.archive.folder / "index.md").read_text()
    assert "skill-8" in index and len(search.archive.summary()) == 1 + 3 + 2


def test_a_harness_of_the_archive_is_scored_again_at_other_weights(tmp_path: Path) -> None:
    search = Search(tmp_path)
    search.iterate()
    search.iterate(2, 8)
    proposals = [Proposal("again", SOURCE.format(word=2), search.h0.id, "prompt", "")]
    for iteration, expected in ((0, ["skill-8"]), (1, ["skill-2"]), (2, [])):
        at = Place(2, iteration, 5, search.accepted, 2, [])
        given = proposals if iteration else []
        outcome = asyncio.run(search.search.iterate(at, given, search.scoring(ScriptedPolicy(skilled))))
        assert [one.name for one in outcome.scored] == expected
    assert "scored at these weights already" in outcome.refused[0].why
    assert set(search.archive.entry(search.archive.ids()[-1]).scores) <= {0, 5}


def test_paired_selection_takes_what_fresh_rollouts_confirm(tmp_path: Path) -> None:
    search = Search(tmp_path, selection="paired", paired=SMALL)
    search.iterate()
    outcome, rollouts = search.iterate(9, 2)
    assert search.name() == "skill-9" and outcome["retest"]["accepted"] and rollouts > 20
    assert outcome["retest"]["comparison"]["gain"] == pytest.approx(0.6)
    outcome, _ = search.iterate(4, 1)
    assert search.name() == "skill-9" and outcome["retest"] is None  # nothing was better than it


def test_ten_examples_are_too_few_for_a_careful_phase(tmp_path: Path) -> None:
    search = Search(tmp_path, selection="paired", paired=SMALL)
    search.iterate()
    outcome, _ = search.iterate(4)  # one task of ten: chance could have done it
    assert search.name() == "h0" and outcome["retest"]["accepted"] is False


def test_a_holdout_slice_is_seen_by_the_retest_only(tmp_path: Path) -> None:
    search = Search(tmp_path, selection="paired", paired=SMALL, holdout=0.3)
    search.iterate()
    outcome, _ = search.iterate(9)
    assert len(search.search.searched) == 7 and len(search.search.held) == 3
    assert outcome["scored"][0]["rollouts"] == 7 and outcome["retest"]["holdout"] is not None


def test_a_candidate_that_cannot_win_is_stopped_and_never_competes(tmp_path: Path) -> None:
    search = Search(tmp_path, racing=True)
    search.iterate()
    outcome, rollouts = search.iterate(0, 9)
    hopeless = next(score for score in outcome["scored"] if score["name"] == "skill-0")
    assert hopeless["stopped"] and hopeless["rollouts"] < 10 and rollouts < 20 and search.name() == "skill-9"
    assert not search.archive.entry(hopeless["id"]).scores[0].competes


def test_a_whole_phase_lost_to_infrastructure_keeps_the_incumbent(tmp_path: Path) -> None:
    search = Search(tmp_path)
    search.iterate()

    class Down:
        async def generate(self, request: object) -> None:
            raise RuntimeError("down")

    proposal = Proposal("better", SOURCE.format(word=9), search.h0.id, "prompt", "")
    scoring = search.scoring(Down())  # type: ignore[arg-type]
    outcome = asyncio.run(search.search.iterate(search.place(), [proposal], scoring))
    assert outcome.accepted == search.h0.id and scoring.costs[0].unknown == 10
    assert not outcome.scored[0].score.competes and outcome.scored[0].score.unknown == 10


def test_an_incumbent_lost_to_infrastructure_stays_and_is_scored_again(tmp_path: Path) -> None:
    search = Search(tmp_path)
    skill, down = ScriptedPolicy(skilled), {3}

    class Flaky:
        async def generate(self, request: Request) -> Generation:
            if int(request.messages[-1]["content"].split()[2]) in down:
                raise RuntimeError("down")
            return await skill.generate(request)

    def iterate(*skills: int) -> Outcome:
        proposals = [Proposal(f"skill-{n}", SOURCE.format(word=n), search.h0.id, "prompt", "") for n in skills]
        outcome = asyncio.run(search.search.iterate(search.place(), proposals, search.scoring(Flaky())))
        search.outcomes.append(outcome)
        return outcome

    assert iterate().scored[0].score.unknown == 1
    down.clear()
    outcome = iterate(9)
    assert [one.name for one in outcome.scored] == ["skill-9", "h0"]  # compared once both are known
    assert outcome.accepted == outcome.scored[0].id and outcome.best == 0.9


def riddler(model: str) -> ScriptedPolicy:
    """A backend of one's own."""
    return ScriptedPolicy(skilled)


def own_search(method: str) -> RunConfig:
    return RunConfig(
        env="riddles/Riddles-v0",
        harness="test_harness_phase:Three",
        method="harness-only",
        search=SearchConfig(method=method, iterations=2, candidates=3, examples=10),
        budget=BudgetConfig(iterations=2),
        evaluation=EvaluationConfig(tasks=2, k=1),
        backend=BackendConfig(kind="test_harness_phase:riddler"),
    )


class Three(Harness):
    """Solves three of ten."""

    system = "3"
    max_turns = 1


def test_a_search_of_ones_own_is_named_by_a_flag(tmp_path: Path) -> None:
    env = EnvHandle("riddles/Riddles-v0", {})
    config = own_search("random_search:RandomSearch")
    result = start.start(config, env, tmp_path / "run", resume=False)
    archive = Archive(RunDir(tmp_path / "run"))
    scores = [entry.scores[0].reward for entry in archive.entries()]
    assert len(scores) > 3 and archive.entry(result.harness).scores[0].reward == max(scores)


@pytest.mark.parametrize(
    ("method", "why"),
    [
        ("meta_harness", "use meta-harness, or module:Class"),
        ("no_such_module:Search", "cannot import --search.method 'no_such_module:Search'"),
        ("builtins:str", "made a str, which has no method propose"),
    ],
)
def test_a_search_that_is_none_is_refused(tmp_path: Path, method: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        start.start(own_search(method), EnvHandle("riddles/Riddles-v0", {}), tmp_path / "run", resume=False)
    assert not (tmp_path / "run").exists()
