"""The offline proposer keeps a custom harness: a child is its source with what a mechanism changes below it."""

from __future__ import annotations

import ast
import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from test_commands import blocks
from test_optimizers import propose

import whale_env
from harness_sdk import load, validate
from harness_sdk.check import behaviour
from harness_sdk.loader import load_source
from optimizers.archive.records import Entry, HarnessScore
from optimizers.archive.store import Archive
from optimizers.proposers.protocol import Brief
from optimizers.record.rundir import RunDir

ENV = whale_env.handle("chess", {"tiers": ["1"]}).sealed()


def begun(tmp_path: Path, source: str, failures: dict[str, int]) -> Brief:
    (tmp_path / "mine.py").write_text(source)
    h0 = load(tmp_path / "mine.py")
    archive = Archive(RunDir.open(tmp_path / "run", {}, resume=False))
    score = HarnessScore(0, 0.0, sum(failures.values()), 1.0, 1.0, failures)
    archive.add(Entry(h0.id, h0.name, None, "", "", 0, 0, {}, {0: score}), h0)
    shown = tuple(ENV.open(task, 0)[1] for task in ENV.tasks("search")[:4])
    return Brief("chess", ENV.prototype.tools, shown, archive, h0.id, 0, 3, seed=1)


@pytest.fixture(scope="module")
def first_word() -> str:
    return next(block for block in blocks("python") if "class FirstWord" in block)


def test_children_of_a_custom_harness_keep_what_no_mechanism_changes(tmp_path: Path, first_word: str) -> None:
    given = begun(tmp_path, first_word, {"format": 40, "wrong": 24})
    seen = 0
    for round_ in range(3):
        for proposal in propose(replace(given, seed=round_)):
            report = validate(proposal.source, "chess")
            assert report.ok and report.class_name == proposal.name, f"{proposal.source}\n{report}"
            first, child = (node for node in ast.parse(proposal.source).body if isinstance(node, ast.ClassDef))
            original = next(node for node in ast.parse(first_word).body if isinstance(node, ast.ClassDef))
            assert ast.dump(first) == ast.dump(original)
            assert [base.id for base in child.bases if isinstance(base, ast.Name)] == ["FirstWord"]
            harness = load_source(proposal.source, env="chess")
            sound = asyncio.run(behaviour(harness, ENV, ENV.tasks("search")[:2]))
            assert sound.ok, f"{proposal.source}\n{sound}"
            names = proposal.name, proposal.parent, proposal.hypothesis, proposal.axis
            score = HarnessScore(0, 0.1 * round_, 64, 1.0, 1.0, {"wrong": 30})
            given.archive.add(Entry(harness.id, *names, 1, round_, proposal.traits, {0: score}), harness)
            seen += 1
    assert seen == 9


def test_a_harness_that_no_candidate_may_hold_is_replaced_and_that_is_said(tmp_path: Path, first_word: str) -> None:
    given = begun(tmp_path, "import os\n" + first_word, {"format": 64})
    for proposal in propose(given):
        assert "(FirstWord)" not in proposal.source and validate(proposal.source, "chess").ok
        assert "Replaces the hooks of FirstWord, which cannot be extended" in proposal.hypothesis
