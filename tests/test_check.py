"""Harnesses that cheat, and harnesses that are only odd: what the checks before the first model call say of each."""

from __future__ import annotations

import asyncio

import pytest
import riddles  # noqa: F401  # registers riddles/Riddles-v0

from harness_sdk import RolloutConfig, ScriptedPolicy, jobs_for, rollout
from harness_sdk.check import behaviour
from harness_sdk.loader import HarnessLoadError, load_source
from harness_sdk.sandbox import confinement
from whale_env import handle
from whale_env.core import EnvHandle

pytestmark = pytest.mark.skipif(not confinement().available, reason="needs a kernel that can confine")

HEAD = "from harness_sdk import Harness, ParseFailure, ToolCall\n\n\n"
RIDDLES = EnvHandle("riddles/Riddles-v0", {}).sealed()
CHESS = handle("chess", {"tiers": ["1"]}).sealed()

PLAYS_ITSELF = """class H(Harness):
    def pack(self, episode):
        self.move = episode.observation.data["legal_moves"][0]["uci"]
        return [{"role": "user", "content": "Any move?"}]

    def parse(self, completion, episode):
        return [ToolCall("move", {"uci": self.move})]
"""
KNOWS_ANSWERS = """ANSWERS = {"What is 0 + 0?": "0", "What is 1 + 1?": "2", "What is 2 + 2?": "4"}


class H(Harness):
    def parse(self, completion, episode):
        return [ToolCall("answer", {"text": ANSWERS.get(episode.first.text, "0")})]
"""
COUNTS_EPISODES = """class H(Harness):
    seen = []

    def pack(self, episode):
        self.seen.append(1)
        return [{"role": "user", "content": f"{len(self.seen)} {episode.first.text}"}]
"""
DROPS_THE_QUESTION = """class H(Harness):
    def pack(self, episode):
        return [{"role": "user", "content": "Say something."}]
"""
FLOODS = """class H(Harness):
    max_prompt_tokens = 100

    def pack(self, episode):
        return [{"role": "user", "content": episode.first.text * 1000}]
"""
WRONG_SCHEMA = """class H(Harness):
    def tools(self, env_tools):
        return [{"name": "answer"}]
"""
REMEMBERS_IN_VAIN = """class H(Harness):
    def __init__(self):
        self.packs = 0

    def pack(self, episode):
        self.packs += 1
        return [{"role": "user", "content": f"{self.packs} {episode.first.text}"}]
"""
SET_ORDER = """class H(Harness):
    def pack(self, episode):
        return [{"role": "user", "content": " ".join(set(episode.first.text.split()))}]
"""


@pytest.mark.parametrize(
    ("source", "env", "kind"),
    [
        (PLAYS_ITSELF, CHESS, "violation"),
        (KNOWS_ANSWERS, RIDDLES, "violation"),
        (FLOODS, RIDDLES, "prompt-too-long"),
        (WRONG_SCHEMA, RIDDLES, "hook-error"),
    ],
    ids=["plays itself", "knows answers", "floods", "wrong schema"],
)
def test_cheats_and_breaks_are_found(source: str, env: EnvHandle, kind: str) -> None:
    result = asyncio.run(behaviour(load_source(HEAD + source), env, env.tasks("search")[:3]))
    assert kind in {finding.kind for finding in result.findings}, result


@pytest.mark.parametrize(
    "source", [DROPS_THE_QUESTION, REMEMBERS_IN_VAIN, SET_ORDER], ids=["drops the question", "counts", "set order"]
)
def test_odd_but_honest_harnesses_are_sound(source: str) -> None:
    result = asyncio.run(behaviour(load_source(HEAD + source), RIDDLES, RIDDLES.tasks("search")[:3]))
    assert result.ok, result


def test_a_module_global_cache_does_not_outlive_an_episode() -> None:
    """Either it is refused as source, or each episode finds it empty."""
    try:
        harness = load_source(HEAD + COUNTS_EPISODES)
    except HarnessLoadError:
        return
    result = asyncio.run(behaviour(harness, RIDDLES, RIDDLES.tasks("search")[:3]))
    assert result.ok, result


@pytest.mark.parametrize("limit", ["float('nan')", "-1", "0", "True", "10**12"])
def test_senseless_limits_never_play(limit: str) -> None:
    source = f"{HEAD}class H(Harness):\n    max_turns = {limit}\n"
    with pytest.raises(HarnessLoadError, match=r"max_turns|float"):
        load_source(source)


BUYS_RETRIES = """class H(Harness):
    max_turns = 5

    def parse(self, completion, episode):
        legal = {move["uci"] for move in episode.observation.data["legal_moves"]}
        word = completion.text.strip()
        return [ToolCall("move", {"uci": word})] if word in legal else []
"""


def test_a_legality_filter_buys_no_more_than_its_turns() -> None:
    harness = load_source(HEAD + BUYS_RETRIES, env="chess")
    jobs = jobs_for(harness, CHESS.tasks("search")[:2])
    for trajectory in asyncio.run(rollout(jobs, CHESS, ScriptedPolicy(["a1a1"]), RolloutConfig(max_turns=3))):
        assert len(trajectory.calls) == 3 and trajectory.reward == 0.0 and trajectory.score.failure == "budget"


def test_a_harness_that_asks_for_the_split_is_refused() -> None:
    source = f"""{HEAD}class H(Harness):
    def stop(self, episode):
        return None if episode.task.split == "search" else "training"
"""
    with pytest.raises(HarnessLoadError, match="task-split"):
        load_source(source)


def test_the_report_names_the_hook_and_shows_the_prompt() -> None:
    source = f"""{HEAD}class H(Harness):
    def recover(self, failure, episode):
        return episode.turns[99].feedback
"""
    result = asyncio.run(behaviour(load_source(source), RIDDLES, RIDDLES.tasks("search")[:1]))
    assert not result.ok and "recover" in str(result) and "What is 0 + 0?" in str(result)
