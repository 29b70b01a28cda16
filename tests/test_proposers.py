"""Proposers that ask a model: the real SDKs against servers on this machine, resumption, caps, garbage, confinement."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import riddles  # noqa: F401  # registers riddles/Riddles-v0
from http_server import serving
from messages_server import MessagesServer, Says, Script, events, speaking, text, use

from harness_sdk.loader import load_source
from harness_sdk.policies import api
from harness_sdk.validator import validate
from optimizers.archive.records import Entry, HarnessScore
from optimizers.archive.store import Archive
from optimizers.proposers.build import ProposerConfig, build
from optimizers.proposers.llm import briefing
from optimizers.proposers.llm.anthropic import AnthropicProposer
from optimizers.proposers.llm.command import CommandProposer
from optimizers.proposers.llm.conversation import Caps, Price
from optimizers.proposers.llm.files import ArchiveFiles, FileError
from optimizers.proposers.llm.journal import Journal
from optimizers.proposers.llm.openai import OpenAIProposer
from optimizers.proposers.llm.tools import TOOLS, ToolUse, Workbench
from optimizers.proposers.offline.proposer import OfflineProposer
from optimizers.proposers.protocol import Brief, Proposed, ProposerSetupError, Verdict
from optimizers.record.rundir import RunDir
from optimizers.search.checks import checker
from whale_env.core import EnvHandle
from whale_env.sandbox import confinement

pytest.importorskip("anthropic")
pytest.importorskip("openai")

KEY = "sk-ant-not-a-real-key-0123456789"
H0 = 'from harness_sdk import Harness\n\n\nclass Start(Harness):\n    system = "Answer."\n'
PRICE = Price(5.0, 0.5, 6.25, 25.0)


def source(name: str, system: str = "Be brief.") -> str:
    return f"from harness_sdk import Harness\n\n\nclass {name}(Harness):\n    system = {system!r}\n"


def submission(name: str, code: str | None = None, number: int = 0, /, **changes: Any) -> dict[str, Any]:
    said = {"name": name, "hypothesis": "Shorter is read.", "axis": "prompt", "changes": "The system text."}
    return use("submit_candidate", number, **{**said, "source": code or source(name), **changes})


async def validated(code: str) -> Verdict:
    report = validate(code, "riddles")
    return Verdict(report.ok, str(report), load_source(code, env="riddles") if report.ok else None)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "FIRST_WAIT", 0.001)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


@pytest.fixture
def brief(tmp_path: Path) -> Brief:
    env = EnvHandle("riddles/Riddles-v0", {}).sealed()
    run = RunDir.open(tmp_path / "run", {}, resume=False)
    archive, h0 = Archive(run), load_source(H0)
    score = HarnessScore(0, 0.25, 8, 1.0, 5.0, {"format": 6})
    archive.add(Entry(h0.id, "Start", None, "the beginning", "none", 0, 0, {}, {0: score}), h0)
    (run.path / "trajectories").mkdir()
    (run.path / "trajectories" / "test-base.jsonl").write_text('{"sealed": true}\n')
    shown = tuple(env.open(task, 0)[1] for task in env.tasks("search")[:2])
    folder = run.path / "proposals" / "1-2"
    return Brief("riddles", env.prototype.tools, shown, archive, h0.id, 0, 2, 1, validated, folder)


def ask(server: MessagesServer, brief: Brief, **options: Any) -> Proposed:
    given = {"base_url": server.url, "timeout": 20.0, "retries": 3, **options}
    return asyncio.run(AnthropicProposer(**given).propose(brief))


def saying(*replies: Says) -> Script:
    return lambda body, number: replies[min(number, len(replies) - 1)]


def answers(body: dict[str, Any]) -> str:
    """What the last user message of a request says."""
    return "\n".join(block.get("content") or block.get("text") for block in body["messages"][-1]["content"])


# --- with the Anthropic SDK ----------------------------------------------------------------------------------------


def test_a_conversation_reads_repairs_and_hands_in(brief: Brief) -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "sig"}
    cached = {"input_tokens": 10, "cache_read_input_tokens": 900, "cache_creation_input_tokens": 90, "output_tokens": 7}
    script = saying(
        Says([text("I look."), use("list_files"), use("read_file", 1, path=f"{brief.incumbent}/harness.py")]),
        Says([thought, submission("A", "import os\n" + source("A"))], usage=cached),
        Says([submission("A", None, 1)], usage=cached),
        Says([use("run_check", source="x = 1"), submission("B", None, 2)], usage=cached),
    )
    with speaking(script) as server:
        proposed = ask(server, brief)
    assert [c.name for c in proposed.candidates] == ["A", "B"] and proposed.ended == "2 candidates handed in"
    first = proposed.candidates[0]
    assert (first.parent, first.axis, first.traits) == (brief.incumbent, "prompt", {"changes": "The system text."})
    assert [validate(c.source, "riddles").ok for c in proposed.candidates] == [True, True]
    one, two, three, four = server.requests
    assert f"{brief.incumbent}/" in answers(two) and 'system = "Answer."' in answers(two)
    assert "module 'os' may not be imported" in answers(three) and answers(four) == "counted: candidate 1 of 2"
    assert three["messages"][-1]["content"][0]["is_error"] and three["messages"][3]["content"][0] == thought
    assert one["model"] == "claude-opus-4-7" and one["output_config"] == {"effort": "high"} and one["stream"]
    assert [tool["name"] for tool in one["tools"]] == [tool.name for tool in TOOLS]
    for body in server.requests:  # system, opening with the index, last turn
        marked = [body["system"][-1], body["messages"][0]["content"][-1], body["messages"][-1]["content"][-1]]
        assert all(block["cache_control"] == {"type": "ephemeral"} for block in marked)
    assert brief.incumbent in body["messages"][0]["content"][0]["text"]
    cost = proposed.cost
    assert (cost.conversations, cost.input_tokens, cost.cached_tokens, cost.output_tokens) == (1, 1300, 2700, 221)
    paid = 1000 * 5 + 200 * 25 + 3 * (10 * 5 + 900 * 0.5 + 90 * 6.25 + 7 * 25)
    assert cost.usd == pytest.approx(paid / 1e6) and cost.seconds > 0


@pytest.mark.parametrize(
    ("bad", "lost"),
    [
        (Says(status=429, headers={"retry-after": "0.01"}), 0),
        (Says(status=529), 0),
        (Says(status=500), 0),
        (Says([submission("X")], cut_after=4), 1000),
        (Says([submission("X")], cut_after=0), 0),
        (Says([submission("X")], error_after=5), 1000),
        (Says([submission("X")], delay=5.0), 0),
        (Says([submission("X")], pause=0.4), 1000),
    ],
    ids=["429", "529", "500", "cut", "cut-at-once", "error-event", "slow", "trickle"],
)
def test_what_may_pass_is_tried_again_and_booked(brief: Brief, bad: Says, lost: int) -> None:
    good = Says([submission("A"), submission("B", None, 1)])
    with speaking(saying(bad, good)) as server:
        proposed = ask(server, brief, timeout=1.0 if bad.delay or bad.pause else 20.0)
    assert [c.name for c in proposed.candidates] == ["A", "B"] and len(server.requests) == 2
    assert proposed.cost.input_tokens == 1000 + lost and (proposed.cost.output_tokens > 200) == bool(lost)


def test_a_reply_that_is_cut_after_its_last_word_is_not_asked_for_again(brief: Brief) -> None:
    whole = Says([submission("A"), submission("B", None, 1)])
    with speaking(saying(replace(whole, cut_after=len(list(events(whole))) - 1))) as server:
        proposed = ask(server, brief)
    assert len(proposed.candidates) == 2 and len(server.requests) == 1 and proposed.cost.input_tokens == 1000


def test_a_server_that_stays_down_ends_the_round_with_what_counts(brief: Brief) -> None:
    with speaking(saying(Says([submission("A")]), Says(status=529, message="overloaded"))) as server:
        proposed = ask(server, brief, retries=2)
    assert [c.name for c in proposed.candidates] == ["A"] and proposed.cost.output_tokens == 200
    assert proposed.ended == "the server failed: 127.0.0.1: 529 overloaded (tried 3 times)"


def test_a_refusal_and_a_full_context_end_the_round(brief: Brief) -> None:
    details = {"type": "refusal", "category": "cyber", "explanation": "no exploits"}
    with speaking(saying(Says([submission("A")]), Says([text("No.")], "refusal", details=details))) as server:
        proposed = ask(server, brief)
    assert proposed.ended == "the model refused: no exploits" and len(proposed.candidates) == 1
    again = replace(brief, folder=brief.folder and brief.folder.with_name("1-3"))
    with speaking(saying(Says([text("…")], "model_context_window_exceeded"))) as server:
        assert ask(server, again).ended == "the model's context is full"


def test_a_call_that_was_cut_off_is_not_carried_out(brief: Brief) -> None:
    half = json.dumps(submission("Half")["input"])[:-30]
    cut = {"type": "tool_use", "id": "toolu_cut", "name": "submit_candidate", "input": half}
    unsigned = {"type": "thinking", "thinking": "hm", "signature": ""}
    garbled = {"type": "tool_use", "id": "toolu_bad", "name": "run_check", "input": '{"source": nonsense}'}
    script = saying(
        Says([submission("A"), cut], "max_tokens"),
        Says([unsigned], "max_tokens"),
        Says([garbled]),
        Says([submission("B", None, 1)]),
    )
    with speaking(script) as server:
        proposed = ask(server, brief)
    assert [c.name for c in proposed.candidates] == ["A", "B"]
    assert "counted: candidate 1 of 2" in answers(server.requests[1]) and "send it again" in answers(server.requests[1])
    assert "cut off" in answers(server.requests[2]) and "not JSON" in answers(server.requests[3])


def test_a_model_that_only_talks_is_reminded_then_left(brief: Brief) -> None:
    with speaking(saying(Says([text("Let me think.")]))) as server:
        proposed = ask(server, brief)
    assert proposed.ended == "the model stopped calling tools" and len(server.requests) == 3
    assert proposed.candidates == () and proposed.cost.output_tokens == 600
    assert "submit_candidate" in answers(server.requests[1])


@pytest.mark.parametrize(
    ("caps", "ended", "calls"),
    [
        (Caps(turns=3), "the cap of 3 turns is reached", 3),
        (Caps(tokens=40_000), "the cap of 40,000 tokens is reached", None),
        (Caps(usd=0.2), "the cap of $0.20 is reached", None),
        (Caps(seconds=0.8), "the wall time of 0.8 s is over", None),
    ],
    ids=["turns", "tokens", "usd", "seconds"],
)
def test_caps_end_the_round_cleanly(brief: Brief, caps: Caps, ended: str, calls: int | None) -> None:
    def script(body: dict[str, Any], number: int) -> Says:
        first = [submission("A")] if number == 0 else []
        size = len(json.dumps(body)) // 4
        usage = {"input_tokens": size, "output_tokens": 300}
        return Says([*first, use("list_files", number)], usage=usage, delay=0.1 if caps.seconds < 10 else 0)

    with speaking(script) as server:
        proposed = ask(server, brief, caps=caps)
    assert proposed.ended == ended
    assert len(proposed.candidates) == (1 if server.requests else 0) and (calls in (None, len(server.requests)))
    assert server.requests
    spent = proposed.cost
    assert spent.usd <= caps.usd and spent.input_tokens + spent.output_tokens <= caps.tokens
    assert all(body["max_tokens"] <= caps.reply for body in server.requests)


def test_no_money_left_asks_nothing(brief: Brief) -> None:
    with speaking(saying(Says([submission("A")]))) as server:
        proposed = ask(server, replace(brief, usd_left=0.0))
    assert proposed.ended == "the cap of $0.00 is reached" and not server.requests and proposed.cost.usd == 0


class Killed(BaseException):
    """Stands for a kill."""


def killing(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Has the process die right after a number of records."""
    append, count = Journal.append, iter(range(10**6))

    def dying(self: Journal, record: Any) -> None:
        append(self, record)
        if next(count) == after:
            raise Killed

    monkeypatch.setattr(Journal, "append", dying)


def test_a_killed_run_goes_on_in_mid_conversation_and_pays_no_call_twice(
    brief: Brief, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = (
        Says([use("list_files"), use("grep", 1, pattern="Answer")]),
        Says([submission("A", "nonsense(")]),
        Says([text("Hm.")]),
        Says([submission("A", None, 1), submission("B", None, 2)]),
    )

    def script(body: dict[str, Any], number: int) -> Says:
        return replies[len(body["messages"]) // 2]  # by where the conversation is, not by how often it was asked

    with speaking(script) as server:
        whole = ask(server, brief)
        assert len(server.requests) == 4 and len(whole.candidates) == 2
        records = len((brief.folder or tmp_path).joinpath("conversation.ndjson").read_text().splitlines())
        for after in range(records):
            again = replace(brief, folder=tmp_path / f"killed-{after}")
            server.requests.clear()
            with monkeypatch.context() as patch:
                killing(patch, after)
                with pytest.raises(Killed):
                    ask(server, again)
            with (tmp_path / f"killed-{after}" / "conversation.ndjson").open("a") as file:
                file.write('{"kind": "rep')  # torn
            resumed = ask(server, again)
            assert len(server.requests) == 4
            assert resumed.candidates == whole.candidates and resumed.ended == whole.ended
            assert replace(resumed.cost, seconds=0) == replace(whole.cost, seconds=0)
        server.requests.clear()
        assert ask(server, brief) == whole and not server.requests  # a round that has ended costs nothing more


def test_a_resumed_run_directory_keeps_the_conversation(brief: Brief) -> None:
    with speaking(saying(Says([submission("A"), submission("B", None, 1)]))) as server:
        proposed = ask(server, brief)
        RunDir.open(brief.archive.folder.parent, {}, resume=True)
        assert ask(server, brief).candidates == proposed.candidates and len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "match"),
    [(401, r"refused the key \(401\); check ANTHROPIC_API_KEY"), (404, "knows no model 'claude-opus-4-7'")],
)
def test_a_wrong_setup_is_one_line(brief: Brief, status: int, match: str) -> None:
    with (
        speaking(saying(Says(status=status, message=f"bad {KEY}"))) as server,
        pytest.raises(ProposerSetupError, match=match) as caught,
    ):
        ask(server, brief)
    assert KEY not in str(caught.value) and len(server.requests) == 1


def test_a_setup_that_cannot_work_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ProposerSetupError, match="no price is known for 'claude-next'"):
        AnthropicProposer("claude-next")
    AnthropicProposer("claude-haiku-4-5-20251001", effort="")
    AnthropicProposer("claude-next", price=PRICE)
    with pytest.raises(ProposerSetupError, match="no price is known for 'gpt'"):
        OpenAIProposer("gpt")
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    with pytest.raises(ProposerSetupError, match="set ANTHROPIC_API_KEY"):
        AnthropicProposer()
    with pytest.raises(ValueError, match="the cap on turns must be more than 0, not 0"):
        Caps(turns=0)


def test_the_key_is_in_no_file(brief: Brief) -> None:
    replies = (Says(status=500, message=f"oops {KEY}"), Says([submission("A")]), Says(status=400, message=KEY))
    with speaking(saying(*replies)) as server:
        proposed = ask(server, brief)
    assert KEY in " ".join(server.headers[0].values())
    assert proposed.ended == "the server failed: 127.0.0.1: 400 [key]"
    files = [path for path in brief.archive.folder.parent.rglob("*") if path.is_file()]
    assert any(path.name == "conversation.ndjson" for path in files)
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


# --- garbage -------------------------------------------------------------------------------------------------------

ATTACK = source("A").replace("from", "import os\nos.system('touch /tmp/owned')\nfrom", 1)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("", "no class extends `Harness`"),
        (H0, "the same program as the archive's"),
        ("# a comment\n" + H0, "the same program as the archive's"),
        (source("A") + "\n\n" + source("B"), "keep one"),
        ("#" * 10_000_000, "the bound is"),
        (ATTACK, "module 'os' may not be imported"),
        (None, "must be a text"),
        ("\ud800", "repair it"),
    ],
    ids=["nothing", "same", "same-but-comment", "two-classes", "10MB", "attack", "none", "surrogate"],
)
def test_garbage_costs_its_round_only(brief: Brief, code: str | None, why: str) -> None:
    def script(body: dict[str, Any], number: int) -> Says:
        return Says([submission("A", None, number, source=code)])

    with speaking(script) as server:
        proposed = ask(server, brief, caps=Caps(turns=2), timeout=200.0)
    assert proposed.candidates == () and proposed.cost.conversations == 1 and proposed.cost.output_tokens >= 200
    if len(server.requests) > 1:
        assert why in answers(server.requests[1]) and len(answers(server.requests[1])) < 40_000
    else:
        assert "characters" in proposed.ended  # too large to be said again
    assert (brief.folder or Path()).joinpath("conversation.ndjson").stat().st_size < 1_000_000


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"axis": "magic"}, "axis 'magic' is not one of"),
        ({"name": " "}, "name is empty"),
        ({"hypothesis": "x" * 3000}, "the bound is 2000"),
        ({"changes": 7}, "changes must be a text"),
        ({"parent": "nobody"}, "no harness 'nobody'"),
    ],
)
def test_a_submission_says_what_it_is(brief: Brief, changes: dict[str, Any], why: str) -> None:
    bench = Workbench(brief, validated)
    asked = submission("A", **changes)["input"]
    result = asyncio.run(bench.run(ToolUse("1", "submit_candidate", asked)))
    assert result.error and why in result.text and result.candidate is None


def test_unknown_tools_and_arguments_are_answered(brief: Brief) -> None:
    bench = Workbench(brief, validated)
    for name, said in [("rm", {}), ("read_file", {}), ("list_files", {"offset": -1}), ("grep", {"pattern": "("})]:
        assert asyncio.run(bench.run(ToolUse("1", name, said))).error


def test_the_check_plays_what_validates(brief: Brief) -> None:
    if not confinement().available:
        pytest.skip(confinement().why)
    env = EnvHandle("riddles/Riddles-v0", {}).sealed()
    check = checker(env, env.tasks("search")[:1])
    failing = H0 + "\n    def pack(self, episode):\n        return [episode.turns[7]]\n"
    refused = asyncio.run(check(failing))
    assert not refused.ok and "hook-error" in refused.text and "IndexError" in refused.text
    example = re.search(r"```python\n(.*?)```", briefing.skill(), re.DOTALL)
    assert example is not None
    sound = asyncio.run(check(example[1]))
    assert sound.ok and "the first prompt it packs" in sound.text and sound.id, sound.text
    assert not asyncio.run(check("nonsense(")).ok


# --- what a proposer may read --------------------------------------------------------------------------------------


def test_only_the_archive_is_shown(brief: Brief) -> None:
    run = brief.archive.folder.parent
    files = ArchiveFiles(brief.archive.folder)
    assert f"{brief.incumbent}/" in files.list_files().splitlines()
    assert files.read_file(f"{brief.incumbent}/harness.py") == H0
    (run / "harnesses" / "link").symlink_to("/etc")
    (run / "harnesses" / "config.json").symlink_to(run / "config.json")
    (run / "harnesses" / ".half.tmp").write_text("not whole")
    up = ["..", "../config.json", f"{brief.incumbent}/../../journal.jsonl", "../trajectories/test-base.jsonl"]
    bad = [*up, "/etc/passwd", "config.json", "link/passwd", ".half.tmp", "a\0b", "x" * 5000, "nobody/harness.py"]
    for path in bad:
        with pytest.raises(FileError):
            files.read_file(path)
        with pytest.raises(FileError):
            asyncio.run(files.grep(".", path))
    assert "link" not in files.list_files() and "not whole" not in asyncio.run(files.grep("."))
    with pytest.raises(FileError, match=rf"Did you mean '{brief.incumbent}/harness.py'\?"):
        files.read_file(f"{brief.incumbent}/harnes.py")


def test_reading_goes_by_pages(brief: Brief, tmp_path: Path) -> None:
    folder = brief.archive.folder / brief.incumbent
    (folder / "long.txt").write_text("".join(f"line {n}\n" for n in range(10_000)))
    files = ArchiveFiles(brief.archive.folder)
    path, pages, offset = f"{brief.incumbent}/long.txt", [], 0
    while True:
        page, _, rest = files.read_file(path, offset).partition("\n… ")
        pages.append(page)
        if not rest:
            break
        offset = int(rest.rsplit("=", 1)[1])
    assert "".join(pages) == (folder / "long.txt").read_text() and len(pages) == 5
    found = asyncio.run(files.grep(r"line \d*7$"))
    assert found.startswith(f"{path}:8: line 7\n") and found.endswith("… more; offset=100") and found.count("\n") == 100
    assert "line 1007\n" in asyncio.run(files.grep(r"line \d*7$", path, 100))
    assert asyncio.run(files.grep("nowhere")) == "(nothing found)"


def test_a_slow_pattern_is_stopped(brief: Brief, monkeypatch: pytest.MonkeyPatch) -> None:
    (brief.archive.folder / brief.incumbent / "a.txt").write_text("a" * 64 + "b\n")
    monkeypatch.setattr("optimizers.proposers.llm.files.SEARCH_SECONDS", 1.0)
    with pytest.raises(FileError, match="took over 1 s"):
        asyncio.run(ArchiveFiles(brief.archive.folder).grep("(a+)+$"))


def test_what_is_told_is_the_same_in_every_round_up_to_the_task(brief: Brief) -> None:
    system, opening = briefing.system(), briefing.opening(brief, 60)
    assert system == briefing.system() and "class Harness" in system and "commit rule" in system
    for word in (brief.incumbent, "reward 0.250 over 8", "format 6", "What is 0 + 0?", '"commits": true', H0):
        assert word in opening
    stale = briefing.index(replace(brief, weights_version=3))
    assert "stale: 0.250 at weights 0" in stale


# --- with the OpenAI SDK -------------------------------------------------------------------------------------------


def chat(message: dict[str, Any], finish: str = "stop") -> dict[str, Any]:
    usage = {"prompt_tokens": 100, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 60}}
    return {"choices": [{"message": {"role": "assistant", **message}, "finish_reason": finish}], "usage": usage}


def calling(*uses: dict[str, Any] | tuple[str, str]) -> dict[str, Any]:
    calls = []
    for number, each in enumerate(uses):
        name, arguments = each if isinstance(each, tuple) else (each["name"], json.dumps(each["input"]))
        calls.append({"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": arguments}})
    return {"content": None, "tool_calls": calls}


def test_a_local_server_proposes_with_the_same_tools(brief: Brief) -> None:
    requests: list[dict[str, Any]] = []
    replies = [
        chat({"content": "Let me see."}),
        chat(calling(use("list_files"), ("run_check", "{nonsense")), "tool_calls"),
        chat(calling(submission("A", "x ="), submission("A")), "tool_calls"),
        chat(calling(submission("C"), ("submit_candidate", '{"name": "cut')), "length"),
    ]

    def reply(path: str, headers: dict[str, str], body: dict[str, Any]) -> tuple[int, bytes]:
        requests.append(body)
        if len(requests) == 1:
            return 503, b"{}"
        return 200, json.dumps(replies[len(requests) - 2]).encode()

    with serving(reply) as url:
        proposed = asyncio.run(OpenAIProposer("coder", base_url=f"{url}/v1").propose(brief))
    assert [c.name for c in proposed.candidates] == ["A", "C"] and len(requests) == 5
    cost = proposed.cost
    assert (cost.input_tokens, cost.cached_tokens, cost.output_tokens, cost.usd) == (160, 240, 80, 0.0)
    roles = [message["role"] for message in requests[-1]["messages"]]
    assert roles == ["system", "user", "assistant", "user", "assistant", "tool", "tool", "assistant", "tool", "tool"]
    assert [m["content"] for m in requests[-1]["messages"] if m["role"] == "tool"][-1] == "counted: candidate 1 of 2"
    assert requests[-1]["messages"][4]["tool_calls"][1]["function"]["arguments"] == "{}"  # as templates can read it
    assert [tool["function"]["name"] for tool in requests[0]["tools"]] == [tool.name for tool in TOOLS]


def test_a_refusal_of_a_local_server_ends_the_round(brief: Brief) -> None:
    answer = json.dumps(chat({"content": None, "refusal": "I cannot."})).encode()
    with serving(lambda path, headers, body: (200, answer)) as url:
        proposed = asyncio.run(OpenAIProposer("coder", base_url=f"{url}/v1").propose(brief))
    assert proposed.ended == "the model refused: I cannot." and proposed.candidates == ()


# --- with a command ------------------------------------------------------------------------------------------------

AGENT = """
import base64, json, os, pathlib, socket, sys
here = pathlib.Path.cwd()
assert all((here / name).read_text() for name in ("TASK.md", "SKILL.md", "sdk/harness_sdk/harness.py"))
assert list(here.glob("archive/*/harness.py")) and not (here / "trajectories").exists()
socket.socket().close()
tried = {}
run, data = sys.argv[1:]
for name, path, mode in (("write", run + "/x", "w"), ("run", run + "/config.json", "r"), ("data", data, "rb")):
    try:
        open(path, mode).close()
        tried[name] = "possible"
    except OSError as error:
        tried[name] = type(error).__name__
print(json.dumps(tried), os.environ["ANTHROPIC_API_KEY"])
said = {"hypothesis": "h", "axis": "prompt", "changes": "c"}
code = "from harness_sdk import Harness\\n\\n\\nclass %s(Harness):\\n    system = 'One.'\\n"
(here / "candidates/one.py").write_text(code % "One")
(here / "candidates/bad.py").write_text("import os\\n" + code % "Bad")
coded = base64.b64encode(b"?" + os.environ["ANTHROPIC_API_KEY"].encode()).decode()
said["hypothesis"] += coded
(here / "candidates/key.py").write_text("# " + coded + "\\n" + code % "Key")
(here / "candidates/link.py").symlink_to("/etc/hostname")
os.mkfifo(here / "candidates/pipe.py")
(here / "candidates/big.py").write_text("#" * 10_000_000)
listed = [{"name": name, **said} for name in ("bad", "key", "link", "pipe", "big", "none", "../../x", "one")]
(here / "candidates.json").write_text(json.dumps([7, *listed]))
(here / "usage.json").write_text(json.dumps({"input_tokens": 5, "output_tokens": -1, "usd": 0.5}))
"""


def test_a_command_works_in_a_confined_copy_and_leaves_files(brief: Brief, tmp_path: Path) -> None:
    if not confinement().landlock:
        pytest.skip(confinement().why)
    import whale_env

    run = brief.archive.folder.parent
    (tmp_path / "agent").mkdir()
    (tmp_path / "agent" / "agent.py").write_text(AGENT)
    data = next((Path(whale_env.__file__).parent / "data").iterdir())
    command = f"{sys.executable} -I {tmp_path}/agent/agent.py {run} {data}"
    read = (Path(sys.prefix), Path(sys.base_prefix), tmp_path / "agent")
    proposer = CommandProposer(command, timeout=120.0, read=read)
    proposed = asyncio.run(proposer.propose(brief))
    log = (brief.folder or tmp_path).joinpath("command.log").read_text()
    assert [c.name for c in proposed.candidates] == ["one"], f"{proposed.ended}\n{log}"
    refused = json.loads(log.split("}")[0] + "}")
    assert list(refused) == ["write", "run", "data"] and set(refused.values()) <= {
        "PermissionError",
        "FileNotFoundError",
    }
    assert "[secret]" in proposed.candidates[0].hypothesis
    assert "[secret]" in log and not (run / "x").exists()
    for why in (
        "status 0",
        "'bad.py': not counted",
        "a secret",
        "'link.py'",
        "'pipe.py'",
        "'big.py'",
        "not a plain one",
    ):
        assert why in proposed.ended
    assert (proposed.cost.input_tokens, proposed.cost.output_tokens, proposed.cost.usd) == (5, 0, 0.5)
    proposer._command = ["/bin/false"]
    assert asyncio.run(proposer.propose(brief)) == proposed  # not run again
    assert not [p for p in run.rglob("*") if p.is_file() and KEY.encode() in p.read_bytes()]


def test_a_command_that_hangs_is_killed_and_one_that_fails_is_told(brief: Brief) -> None:
    if not confinement().landlock:
        pytest.skip(confinement().why)
    proposed = asyncio.run(CommandProposer("sleep 60", timeout=3.0).propose(brief))
    assert proposed.ended.startswith("the command was killed after 3 s; 0 candidates handed in; candidates.json")
    for command in ("", "no-such-agent --print", "sh -c 'unfinished"):
        with pytest.raises(ProposerSetupError, match="the proposer's command"):
            CommandProposer(command)


def test_a_command_is_not_granted_what_holds_answers(brief: Brief, tmp_path: Path) -> None:
    if not confinement().landlock:
        pytest.skip(confinement().why)
    import whale_env

    package = Path(whale_env.__file__).parent
    data = tmp_path / "data" / "puzzles.csv"
    data.parent.mkdir()
    data.touch()
    for grant in (package, package.parent, package / "data", Path("/"), data, data.parent, tmp_path):
        for name in ("read", "write"):
            with pytest.raises(ProposerSetupError, match=f"may not {name} .*which holds answers or scores; grant"):
                CommandProposer("true", hidden=[data], **{name: [grant]})
    (tmp_path / "tools").mkdir()
    CommandProposer("true", hidden=[data], read=[tmp_path / "tools"], write=[tmp_path / "tools"])
    proposer = CommandProposer("true", write=[brief.archive.folder])
    with pytest.raises(ProposerSetupError, match="may not write"):
        asyncio.run(proposer.propose(brief))


# --- flags ---------------------------------------------------------------------------------------------------------


def test_flags_make_proposers() -> None:
    assert isinstance(build(ProposerConfig()), OfflineProposer)
    claude = build(ProposerConfig("anthropic", usd=2.5))
    assert isinstance(claude, AnthropicProposer) and claude.caps.usd == 2.5
    local = build(ProposerConfig("openai", "coder", url="http://localhost:1/v1", prices=(1.0, 0.0, 0.0, 2.0)))
    assert isinstance(local, OpenAIProposer)
    with pytest.raises(ProposerSetupError, match="four numbers"):
        build(ProposerConfig("anthropic", prices=(1.0,)))
    with pytest.raises(ProposerSetupError, match="needs the model's name"):
        build(ProposerConfig("openai", url="http://localhost:1/v1"))
    with pytest.raises(ProposerSetupError, match="names no program"):
        build(ProposerConfig("command"), allow_uncaged=True)
