"""Harnesses that cheat, and harnesses that are only odd: what the checks before the first model call say of each."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import riddles  # noqa: F401  # registers riddles/Riddles-v0

from harness_sdk import RolloutConfig, ScriptedPolicy, jobs_for, read_jsonl, rollout
from harness_sdk.check import behaviour, facts
from harness_sdk.loader import HarnessLoadError, load, load_source
from harness_sdk.policies import OpenAIPolicy, PolicyError
from harness_sdk.sandbox import confinement
from whale_env import handle
from whale_env.core import EnvHandle
from whale_env.registry import arguments_from

pytestmark = pytest.mark.skipif(not confinement().available, reason="needs a kernel that can confine")

ROOT = Path(__file__).parents[1]
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


# Harnesses that can never act


def dead(form: str, call: str, system: str = "Answer with <move>uci</move>.") -> str:
    return f"""import json
import re
{HEAD}class H(Harness):
    system = {system!r}
    max_failures = 9

    def parse(self, completion, episode):
        found = re.search({form!r}, completion.text)
        return [{call}] if found else ParseFailure("no move")
"""


TAG = "<move>(.*?)</move>"
WORD = r"\b([a-h][1-8][a-h][1-8])\b"
JSON = r'"move": "(\w+)"'
PLACE = r'(\{.*"arguments".*\})'


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            dead(TAG, 'ToolCall("play", {"move": found[1]})'),
            r"unknown tool 'play'; known: move.*call move\(uci: string\)",
        ),
        (dead(TAG, 'ToolCall("move", {"move": found[1]})'), "'uci' is missing"),
        (dead(TAG, 'ToolCall("move", {"uci": found[1], "why": "-"})'), "unknown 'why'"),
        (dead(TAG, 'ToolCall("move", {"uci": [found[1]]})'), "must be of type string"),
        (dead(WORD, 'ToolCall("play", {"move": found[1]})'), "unknown tool 'play'"),
        (dead(JSON, 'ToolCall("play", {"move": found[1]})', 'Write {"move": "e2e4"}.'), "unknown tool 'play'"),
        (dead(JSON, 'ToolCall("move", {"move": found[1]})', 'Write {"move": "e2e4"}.'), "'uci' is missing"),
    ],
    ids=["no such tool", "wrong name", "too many", "wrong type", "a bare move", "JSON", "JSON, wrong name"],
)
@pytest.mark.parametrize("trusted", [False, True], ids=["caged", "trusted"])
def test_a_harness_that_can_never_act_is_found(source: str, words: str, trusted: bool, tmp_path: Path) -> None:
    (tmp_path / "h.py").write_text(source)
    harness = load(tmp_path / "h.py", trusted, env="chess")
    result = asyncio.run(behaviour(harness, CHESS, CHESS.tasks("search")[:4]))
    found = [finding for finding in result.findings if finding.kind == "cannot-act"]
    assert len(found) == 1, result
    assert re.search(words, found[0].message), result


@pytest.mark.parametrize(
    "source",
    [
        dead(TAG, 'ToolCall("move", {"uci": found[1]})'),
        dead("(?s)(.*)", 'ToolCall("move", {"uci": found[1]} if "<move>" in found[1] else {"move": 1})'),
        dead(PLACE, 'ToolCall(json.loads(found[1])["tool"], {})', 'Write {"tool": "NAME", "arguments": {}}.'),
        """
class H(Harness):
    def tools(self, env_tools):
        return [{"type": "function", "function": {"name": "play", "parameters": {"type": "object"}}}]

    def act(self, call, env):
        return env.step(ToolCall("move", {"uci": str(call.arguments)}) if call.name == "play" else call).text
""",
    ],
    ids=["right", "sometimes right", "passes on what is said", "translates in act"],
)
def test_a_harness_whose_calls_are_right_or_not_its_own_can_act(source: str) -> None:
    source = source if source.startswith("import") else HEAD + source
    result = asyncio.run(behaviour(load_source(source, env="chess"), CHESS, CHESS.tasks("search")[:4]))
    assert "cannot-act" not in {finding.kind for finding in result.findings}, result


GOOD = {
    "chess_candidates": "chess",
    "few_shot": "math",
    "history_window": "searchqa",
    "json_tools": "math",
    "marked_lines": "chess",
    "math_vote": "math",
    "native_rank": "searchqa",
    "plan_act": "chess",
    "prefix_cot": "chess",
    "retry_schema": "math",
    "search_memory": "searchqa",
    "short_list": "chess",
    "sub_agents": "chess",
    "tiny": "chess",
    "two_searches": "searchqa",
}


@pytest.mark.parametrize("name", GOOD)
def test_realistic_harnesses_are_sound(name: str) -> None:
    env = handle(GOOD[name], {"hops": 1} if GOOD[name] == "searchqa" else {"tiers": ["1"]}).sealed()
    source = (ROOT / "tests" / "good_harnesses" / f"{name}.py.txt").read_text("utf-8")
    result = asyncio.run(behaviour(load_source(source, env=GOOD[name]), env, env.tasks("search")[:2]))
    assert result.ok, result


def test_that_no_call_was_seen_is_said() -> None:
    source = f"""{HEAD}class H(Harness):
    def parse(self, completion, episode):
        return ParseFailure("the word was not said") if "abracadabra" not in completion.text else []
"""
    result = asyncio.run(behaviour(load_source(source), RIDDLES, RIDDLES.tasks("search")[:1]))
    assert result.ok and not result.acted and "that it can act was not seen" in str(result)


# What the report says


@pytest.mark.parametrize("trusted", [False, True], ids=["caged", "trusted"])
def test_equal_findings_are_one_and_name_the_line(trusted: bool, tmp_path: Path) -> None:
    path = tmp_path / "h.py"
    path.write_text(f"{HEAD}class H(Harness):\n    def pack(self, episode):\n        return episode.turns[9]\n")
    result = asyncio.run(behaviour(load(path, trusted), RIDDLES, RIDDLES.tasks("search")[:2]))
    [finding] = result.findings
    assert finding.policy.startswith("noise, silence, a flood, ") and finding.kind == "hook-error"
    assert finding.message == "pack: IndexError: tuple index out of range (line 6) (task search-0)"


def test_the_report_says_what_there_is_to_work_with() -> None:
    harness = load("reference_harnesses.chess:ChessH0")
    tasks = CHESS.tasks("search")[:1]
    assert "natively: none" in str(asyncio.run(behaviour(harness, CHESS, tasks)))
    plain = asyncio.run(behaviour(load("harness_sdk.harness:Harness"), CHESS, tasks))
    assert plain.offered == ("move",) and "natively: move" in str(plain)
    told = facts(CHESS, tasks[0])
    assert "move(uci: string) (commits" in told and "legal_moves: list of {uci: string, san: string}" in told


@pytest.mark.parametrize(("there", "offered"), [("snippet.py", False), ("nopes.py", True), ("hope.py", True)])
def test_only_near_names_are_offered(there: str, offered: bool, tmp_path: Path) -> None:
    (tmp_path / there).write_text("")
    with pytest.raises(HarnessLoadError, match=r"no harness file .*nope\.py") as caught:
        load(tmp_path / "nope.py")
    assert (there in str(caught.value)) is offered


@pytest.mark.parametrize("source", ["import math\n\n1 / 0\n", "import math\n\n1 / / 0\n"])
def test_a_file_that_cannot_be_imported_names_the_line(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("h.py").write_text(source)
    with pytest.raises(HarnessLoadError, match=r"cannot be imported \(line 3\)"):
        load("h.py")


def test_the_trajectories_of_a_run_are_read_by_any_path(tmp_path: Path) -> None:
    jobs = jobs_for(load("harness_sdk.harness:Harness"), RIDDLES.tasks("search")[:2])
    played = asyncio.run(rollout(jobs, RIDDLES, ScriptedPolicy(["<answer>0</answer>"])))
    path = tmp_path / "t.jsonl"
    lines = [played[0].to_json(), {"weights_version": 3, "trajectory": played[1].to_json()}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert list(read_jsonl(str(path))) == list(read_jsonl(path)) == played
    path.write_text("[1]\n" + path.read_text())
    with pytest.raises(ValueError, match="1 is not a trajectory"):
        list(read_jsonl(str(path)))


def test_a_missing_key_names_the_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openai")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(PolicyError, match=r"--backend\.url.*--search\.proposer\.url"):
        OpenAIPolicy("m")


# The command line


def check(*flags: str, shell: str = "") -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "COLUMNS": "200"}
    command = [sys.executable, "-m", "harness_sdk.check", *flags]
    if shell:
        command = ["bash", "-c", f'set -o pipefail; "$@" {shell}', "check", *command]
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=ROOT, check=False)


@pytest.mark.parametrize("text", ["[1]", '"x"', "{tiers: 1}", "null", "", "[" * 100_000])
def test_arguments_of_an_environment_are_a_json_object(text: str) -> None:
    with pytest.raises(ValueError, match="--env-args must be a JSON object"):
        arguments_from(text)
    assert arguments_from('{"tiers": ["1"]}') == {"tiers": ["1"]}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["h.py", "--env-args", "[1]"], "--env-args must be a JSON object, not '[1]'"),
        (["h.py", "--tasks", "0"], "at least 1, not '0'"),
        (["h.py", "--tasks", "-3"], "at least 1, not '-3'"),
        (["reference_harnesses.chess:ChessStrong"], "--trusted"),
    ],
)
def test_what_a_user_can_get_wrong_is_told(flags: list[str], words: str) -> None:
    done = check(*flags)
    assert done.returncode == 2 and words in done.stderr and "Traceback" not in done.stderr, done


def test_a_refused_harness_fails_also_when_it_is_trusted(tmp_path: Path) -> None:
    path = tmp_path / "h.py"
    path.write_text("import os\nfrom harness_sdk import Harness\n\n\nclass H(Harness):\n    pass\n")
    done = check(str(path), "--trusted", "--tasks", "1")
    assert done.returncode == 1 and "refused" in done.stdout and "sound" in done.stdout, done
    done = check("reference_harnesses.chess:ChessStrong", "--trusted", "--tasks", "1")
    assert done.returncode == 0 and "sound" in done.stdout, done


def test_a_harness_that_cannot_begin_is_told(tmp_path: Path) -> None:
    path = tmp_path / "h.py"
    path.write_text(f"{HEAD}class H(Harness):\n    def __init__(self):\n        self.x = [][0]\n")
    done = check(str(path), "--tasks", "1")
    assert done.returncode == 1 and "IndexError" in done.stdout and "(line 6)" in done.stdout and not done.stderr, done


def test_a_reader_that_goes_away_ends_it_quietly(tmp_path: Path) -> None:
    path = tmp_path / "h.py"
    path.write_text(f"{HEAD}class H(Harness):\n    system = 'word ' * 1000\n")
    done = check(str(path), "--tasks", "1", shell="| true")
    assert done.returncode in (0, 141) and not done.stderr, done


ENDLESS = """class H(Harness):
    def pack(self, episode):
        for _ in range(9_000_000):
            sum(range(9_000_000))
        return super().pack(episode)
"""


def test_a_check_ends_with_the_first_endless_hook() -> None:
    source = HEAD + ENDLESS
    harness = load_source(source, env="riddles")
    result = asyncio.run(behaviour(harness, RIDDLES, RIDDLES.tasks("search")[:2]))
    (finding,) = [f for f in result.findings if f.kind == "hook-error"]
    assert "timeout" in finding.message and "," not in finding.policy  # one play showed it; no other was begun


def test_a_check_takes_bounded_time() -> None:
    source = HEAD + "class H(Harness):\n    def stop(self, episode):\n        sum(range(5_000_000))\n"
    harness = load_source(source, env="riddles")
    result = asyncio.run(behaviour(harness, RIDDLES, RIDDLES.tasks("search")[:2], seconds=0.5))
    assert "too-slow" in [finding.kind for finding in result.findings] and not result.ok
