"""Controls: prompt-only search, random search, and the best of noise."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import replace
from pathlib import Path

import pytest
import riddles  # noqa: F401  # registers riddles/Riddles-v0
from test_selection import TASKS, scorer

from harness_sdk import load, validate
from harness_sdk.check import behaviour
from harness_sdk.loader import load_source
from optimizers.archive.records import Entry, HarnessScore
from optimizers.archive.store import Archive
from optimizers.proposers.fst import PROMPTS, FSTProposer, prompt_attributes, same_but_prompts
from optimizers.proposers.llm.briefing import opening
from optimizers.proposers.offline.chance import RandomProposer
from optimizers.proposers.offline.proposer import OfflineProposer
from optimizers.proposers.offline.rewordings import PromptProposer, reworded
from optimizers.proposers.protocol import Brief, Proposed, ScriptedProposer, Verdict
from optimizers.record.rundir import RunDir
from optimizers.search.best_of import best_of
from reference_harnesses import BASELINES
from whale_env import handle

H0 = '''from harness_sdk import Harness


class Small(Harness):
    """Small."""

    system = "Be kind."
    instructions = ("Answer in tags. "
                    "Nothing else.")
    max_turns = 3

    def recover(self, failure, episode):
        return f"{failure.reason}. {self.instructions}"
'''


def test_prompt_texts_and_layout_may_differ_and_nothing_else() -> None:
    assert same_but_prompts(H0, H0.replace("Be kind.", "Be quick.") + "\n# a comment\n") == []
    assert same_but_prompts(H0, H0.replace('("Answer in tags. "\n                    "Nothing else.")', '"Go!"')) == []
    for old, new in (
        ("max_turns = 3", "max_turns = 4"),
        ('"{failure.reason}.', '"No! {failure.reason}.'),  # a feedback text is no prompt attribute
        ('"""Small."""', '"""Tiny."""'),
        ("class Small", "class Tiny"),
        ('system = "Be kind."', 'system = "Be" + " kind."'),
        ('system = "Be kind."', "system = 3"),
        ('system = "Be kind."', 'system: str = "Be kind."'),
        ('    system = "Be kind."\n', ""),
        ("from harness_sdk import Harness", "import re\nfrom harness_sdk import Harness"),
        ("self.instructions", "self.system"),
    ):
        assert old in H0 and same_but_prompts(H0, H0.replace(old, new)), (old, new)
    found = same_but_prompts(H0, H0.replace("max_turns = 3", "max_turns = 4"))
    assert found == ["module, ClassDef Small, Assign max_turns: 3 became 4"]
    assert same_but_prompts(H0, H0.replace("Be kind.", "Be quick."), ["instructions"])
    assert "not Python" in same_but_prompts(H0, "class (")[0]
    assert "not Python" in same_but_prompts(H0, "x = 1\0")[0]
    assert same_but_prompts(H0, "x = " + "(" * 5000 + ")" * 5000)


def test_declared_attributes_are_read_off_the_source() -> None:
    assert prompt_attributes(H0) == PROMPTS
    declared = H0.replace("    max_turns", '    prompt_attributes = ("system",)\n    max_turns')
    assert prompt_attributes(declared) == ("system",)


def test_rewording_leaves_every_other_character() -> None:
    changed = reworded(H0, "instructions", lambda text: text.upper())
    assert changed is not None
    source, name = changed
    assert name == "Small" and "ANSWER IN TAGS. NOTHING ELSE." in source and same_but_prompts(H0, source) == []
    assert source.replace(repr("ANSWER IN TAGS. NOTHING ELSE."), "") in H0.replace(
        '"Answer in tags. "\n                    "Nothing else."', ""
    )
    assert reworded(H0, "missing", str.upper) is None and reworded(H0, "system", lambda text: text) is None


def brief(tmp_path: Path, domain: str = "chess", **env_args: object) -> Brief:
    env = handle(domain, env_args)  # type: ignore[arg-type]
    archive = Archive(RunDir.open(tmp_path / "run", {}, resume=False))
    h0 = load(BASELINES[domain])
    score = HarnessScore(0, 0.0, 40, 1.0, 1.0, {"format": 40})
    archive.add(Entry(h0.id, h0.name, None, "", "", 0, 0, {}, {0: score}), h0)
    shown = tuple(env.open(task, 0)[1] for task in env.tasks("search")[:4])
    return Brief(domain, env.prototype.tools, shown, archive, h0.id, 0, 3, seed=1)


def test_prompt_proposals_are_fst_valid_seeded_and_play_soundly(tmp_path: Path) -> None:
    given = brief(tmp_path, tiers=["1"])
    h0 = given.archive.source(given.incumbent)
    wrapped = FSTProposer(PromptProposer(h0), h0)
    proposed = asyncio.run(wrapped.propose(given))
    assert len(proposed.candidates) == 3 and proposed.ended == ""
    assert proposed.candidates == asyncio.run(wrapped.propose(given)).candidates
    assert proposed.candidates != asyncio.run(wrapped.propose(replace(given, seed=2))).candidates
    env = handle("chess", {"tiers": ["1"]}).sealed()
    for proposal in proposed.candidates:
        assert proposal.source != h0 and validate(proposal.source, "chess").ok
        harness = load_source(proposal.source, env="chess")
        assert asyncio.run(behaviour(harness, env, env.tasks("search")[:1])).ok


def test_the_best_of_earlier_weights_is_proposed_again_once(tmp_path: Path) -> None:
    given = brief(tmp_path, tiers=["1"])
    archive = given.archive
    first = asyncio.run(OfflineProposer().propose(given)).candidates
    for reward, proposal in zip((0.1, 0.5, 0.3), first, strict=True):
        harness = load_source(proposal.source, env="chess")
        score = HarnessScore(0, reward, 40, 1.0, 1.0, {"wrong": 20})
        entry = Entry(harness.id, proposal.name, proposal.parent, "", "", 1, 1, proposal.traits, {0: score})
        archive.add(entry, harness)
    later = replace(given, weights_version=7)
    source = archive.source(given.incumbent)
    archive.record(given.incumbent, [], 7)
    again = asyncio.run(OfflineProposer().propose(later)).candidates
    assert again[0].source == first[1].source and source not in [proposal.source for proposal in again]
    archive.record(load_source(again[0].source, env="chess").id, [], 7)
    after = asyncio.run(OfflineProposer().propose(replace(later, seed=3))).candidates
    assert again[0].source not in [proposal.source for proposal in after]


@pytest.mark.parametrize("domain", ["chess", "math", "searchqa"])
def test_rewordings_fill_every_iteration(tmp_path: Path, domain: str) -> None:
    given = brief(tmp_path, domain)
    h0 = given.archive.source(given.incumbent)
    proposer = FSTProposer(PromptProposer(h0), h0)
    for iteration in range(60):
        found = asyncio.run(proposer.propose(replace(given, seed=iteration))).candidates
        assert len({proposal.source for proposal in found}) == 3
        for proposal in found:
            harness = load_source(proposal.source, env=domain)
            assert harness.id not in given.archive.ids()
            score = HarnessScore(0, 0.0, 40, 1.0, 1.0, {})
            given.archive.add(Entry(harness.id, proposal.name, None, "", "", 1, 1, {}, {0: score}), harness)


def test_prompt_only_search_is_told_and_checked(tmp_path: Path) -> None:
    given = brief(tmp_path, tiers=["1"])
    h0 = given.archive.source(given.incumbent)
    seen: list[Brief] = []

    class Listens:
        async def propose(self, brief: Brief) -> Proposed:
            seen.append(brief)
            return Proposed(())

    async def sound(source: str) -> Verdict:
        return Verdict(True, "sound")

    asyncio.run(FSTProposer(Listens(), h0).propose(replace(given, check=sound)))
    assert "Only prompts may change" in opening(seen[0], 5) and "system, instructions" in opening(seen[0], 5)

    async def judged(source: str) -> Verdict:
        assert seen[0].check is not None
        return await seen[0].check(source)

    assert asyncio.run(judged(h0.replace("Find the best move", "Find a mate"))).ok
    refused = asyncio.run(judged(h0.replace("max_turns = 16", "max_turns = 2")))
    assert not refused.ok and "max_turns: 16 became 2" in refused.text


def test_what_is_not_prompt_only_is_dropped_and_said(tmp_path: Path) -> None:
    given = brief(tmp_path, tiers=["1"])
    h0 = given.archive.source(given.incumbent)
    good, bad = h0.replace("Find the best move", "Find a mate"), h0.replace("max_turns = 16", "max_turns = 2")
    assert good != h0 != bad
    proposed = asyncio.run(FSTProposer(ScriptedProposer([[bad, good, "garbage ("]]), h0).propose(given))
    assert [p.source for p in proposed.candidates] == [good]
    assert "scripted-0 is not prompt-only" in proposed.ended and "max_turns: 16 became 2" in proposed.ended


def test_random_proposals_are_valid_new_and_blind_to_failures(tmp_path: Path) -> None:
    given = brief(tmp_path, tiers=["1"])
    first = asyncio.run(RandomProposer().propose(given)).candidates
    assert len({p.source for p in first}) == 3 and all(validate(p.source, "chess").ok for p in first)
    entry = given.archive.entry(given.incumbent)
    assert entry.scores[0].failures == {"format": 40}
    given.archive.record(given.incumbent, [], 0)  # other scores, the same proposals
    assert asyncio.run(RandomProposer().propose(given)).candidates == first
    more = asyncio.run(RandomProposer().propose(replace(given, count=1000))).candidates
    assert 3 < len(more) < 1000  # it ends


def test_best_of_reports_a_gain_where_there_is_none() -> None:
    score = scorer({"h0": lambda task: 0.3, "down": lambda task: None})
    found = asyncio.run(best_of("h0", TASKS, 1, 15, score))  # type: ignore[arg-type]
    assert 0.2 < found.mean < 0.4 and 0.05 < found.excess < 0.3 and found.rollouts == 600
    assert len(set(found.means)) > 3
    with pytest.raises(ValueError, match="none of 40 rollouts"):
        asyncio.run(best_of("down", TASKS, 1, 1, score))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="count is 0"):
        asyncio.run(best_of("h0", TASKS, 1, 0, score))  # type: ignore[arg-type]


def test_the_reference_harnesses_declare_their_prompts() -> None:
    for reference in BASELINES.values():
        source = load(reference).source
        assert any(reworded(source, name, lambda text: text + " Go.") for name in prompt_attributes(source))
    assert inspect.iscoroutinefunction(best_of)
