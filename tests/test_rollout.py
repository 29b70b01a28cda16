"""The one rollout loop with scripted policies: limits, failures as data, commit rule, determinism, trajectories."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import riddles  # registers riddles/Riddles-v0

from harness_sdk import Completion, Episode, Harness, Job, Message, ParseFailure, RolloutConfig, ToolCall, rollout
from harness_sdk.loader import LoadedHarness, load, load_source
from harness_sdk.policies import Generation, PolicyError, Request, ScriptedPolicy
from harness_sdk.policies.scripted import END
from harness_sdk.rollout import jobs_for
from harness_sdk.session import HarnessError, LocalSession, checked_messages, cut_text
from harness_sdk.trajectory import Trajectory, read_jsonl, write_jsonl
from harness_sdk.types import Turn
from whale_env.core import EnvHandle
from whale_env.types import Observation

ENV = EnvHandle("riddles/Riddles-v0", {})
TASKS = ENV.tasks("train")


def trusted(cls: type[Harness]) -> LoadedHarness:
    async def opened(seed: int) -> LocalSession:
        return LocalSession(cls())

    return LoadedHarness(cls.__name__, cls.__name__, "", True, opened)


def play(
    cls: type[Harness], script: object, *, task: int = 1, config: RolloutConfig | None = None
) -> tuple[Trajectory, ScriptedPolicy]:
    policy = ScriptedPolicy(script)  # type: ignore[arg-type]
    done = asyncio.run(rollout([Job(trusted(cls), TASKS[task])], ENV, policy, config))
    return done[0], policy


def test_the_smallest_harness_solves() -> None:
    trajectory, policy = play(Harness, ["<answer>2</answer>"])
    assert (trajectory.reward, trajectory.score.failure, trajectory.stopped) == (1.0, None, "done")
    assert policy.prompts[0][-1] == {"role": "user", "content": "What is 1 + 1?"}


def test_a_wrong_answer_is_wrong() -> None:
    trajectory, _ = play(Harness, ["<answer>3</answer>"])
    assert (trajectory.reward, trajectory.score.failure) == (0.0, "wrong")


def test_an_informing_tool_goes_on() -> None:
    trajectory, policy = play(Harness, ["<hint></hint>", "<answer>2</answer>"])
    assert trajectory.reward == 1.0 and len(trajectory.turns) == 2
    assert "It is even" in policy.prompts[1][-1]["content"]


@pytest.mark.parametrize(
    ("reply", "failure", "turns"),
    [("no idea", "format", 2), ("<answer>" + "2" * 5000, "truncated", 2), ("<anwser>2</anwser>", "format", 2)],
)
def test_unread_replies_end_as_format_or_truncated(reply: str, failure: str, turns: int) -> None:
    trajectory, policy = play(Harness, [reply])
    assert (trajectory.reward, trajectory.score.failure, len(trajectory.turns)) == (0.0, failure, turns)
    assert "could not be used" in policy.prompts[1][-1]["content"]


def test_limits_are_truthful() -> None:
    class Chatty(Harness):
        max_turns = 3

        def parse(self, completion: Completion, episode: Episode) -> list[ToolCall] | ParseFailure:
            return []  # thinks on

    trajectory, policy = play(Chatty, ["hm"])
    assert (len(policy.prompts), trajectory.stopped, trajectory.score.failure) == (3, "limit: 3 turns", "budget")

    class Short(Chatty):
        max_tokens = 5

    trajectory, _ = play(Short, ["abc"])  # four ids a call with the end token: the second call may use one
    assert [turn.completion.tokens for turn in trajectory.turns] == [4, 1]
    assert trajectory.turns[1].completion.finish_reason == "length"
    assert trajectory.score.failure == "budget"

    class Long(Harness):
        max_prompt_tokens = 8

    trajectory, policy = play(Long, ["<answer>2</answer>"])
    assert (trajectory.reward, trajectory.score.failure) == (0.0, "budget") and "the limit is 8" in trajectory.stopped


def test_the_harness_cannot_answer_in_the_models_place() -> None:
    class Solver(Harness):
        def parse(self, completion: Completion, episode: Episode) -> list[ToolCall] | ParseFailure:
            return [ToolCall("answer", {"text": str(2 * episode.first.data["number"])})]

    trajectory, _ = play(Solver, ["noise"])
    assert (trajectory.reward, trajectory.score.failure) == (0.0, "harness_violation")
    trajectory, _ = play(Solver, ["I say 2"])
    assert trajectory.reward == 1.0


def test_a_prefix_does_not_count_as_said() -> None:
    class Prefilled(Harness):
        def pack(self, episode: Episode) -> list[Message]:
            return [*super().pack(episode), {"role": "assistant", "content": "The answer is 2"}]

        def parse(self, completion: Completion, episode: Episode) -> list[ToolCall] | ParseFailure:
            return [ToolCall("answer", {"text": "2"})]

    assert play(Prefilled, ["."])[0].score.failure == "harness_violation"


def test_a_violation_costs_the_reward_even_when_solved_later() -> None:
    class Sneaky(Harness):
        max_failures = 4

        def parse(self, completion: Completion, episode: Episode) -> list[ToolCall] | ParseFailure:
            return [ToolCall("answer", {"text": "2"})]

    trajectory, _ = play(Sneaky, ["noise", "2"])
    assert (trajectory.reward, trajectory.score.failure) == (0.0, "harness_violation")


@pytest.mark.parametrize("hook", ["tools", "pack", "parse", "act", "recover", "stop"])
def test_a_raising_or_lying_hook_is_a_harness_error(hook: str) -> None:
    def raising(self: Harness, *args: object) -> object:
        raise KeyError("lost")

    def lying(self: Harness, *args: object) -> object:
        return 7

    for body in (raising, lying):
        cls = type("Broken", (Harness,), {hook: body})
        trajectory, _ = play(cls, ["nothing readable" if hook == "recover" else "<hint></hint>"])
        assert (trajectory.reward, trajectory.score.failure) == (0.0, "harness_error")
        assert trajectory.stopped.startswith(f"{hook}: ")


@pytest.mark.parametrize("limit", [0, -1, True, float("nan"), "8", None, 10**9])
def test_a_bad_limit_is_a_harness_error(limit: object) -> None:
    cls = type("Limits", (Harness,), {"max_turns": limit})
    trajectory, _ = play(cls, ["x"])
    assert trajectory.score.failure == "harness_error" and "max_turns" in trajectory.stopped


def test_infrastructure_failures_have_no_reward_and_spare_the_others() -> None:
    class Flaky:
        def __init__(self) -> None:
            self.calls = 0
            self.good = ScriptedPolicy(["<answer>2</answer>"])

        async def generate(self, request: Request) -> Generation:
            self.calls += 1
            if request.messages[-1]["content"] != "What is 1 + 1?":
                raise PolicyError("connection lost")
            if self.calls == 5:
                raise ZeroDivisionError("a bug in the backend")
            return await self.good.generate(request)

    jobs = [Job(trusted(Harness), TASKS[2 if index == 2 else 1], index) for index in range(8)]
    rewards = [t.reward for t in asyncio.run(rollout(jobs, ENV, Flaky()))]
    assert rewards == [1.0, 1.0, None, 1.0, None, 1.0, 1.0, 1.0]


def test_the_same_seed_gives_the_same_bytes() -> None:
    def script(messages: Sequence[Message]) -> str:
        return "<answer>" + str(len(messages[-1]["content"]) % 5) + "</answer>"

    def run() -> list[str]:
        jobs = jobs_for(trusted(Harness), TASKS, 2)
        return [json.dumps(t.to_json()) for t in asyncio.run(rollout(jobs, ENV, ScriptedPolicy(script)))]

    first = run()
    assert first == run() and len(first) == 2 * len(TASKS)


def test_seeds_differ_by_task_index_and_phase_but_not_by_harness() -> None:
    class Other(Harness):
        pass

    def seeds(cls: type[Harness], phase: str) -> list[int]:
        jobs = jobs_for(trusted(cls), TASKS[:3], 2)
        done = asyncio.run(rollout(jobs, ENV, ScriptedPolicy(["x"]), RolloutConfig(phase=phase)))
        return [t.seed for t in done]

    assert len(set(seeds(Harness, "a"))) == 6
    assert seeds(Harness, "a") == seeds(Other, "a") and not set(seeds(Harness, "a")) & set(seeds(Harness, "b"))


def test_a_harness_does_not_see_the_split() -> None:
    seen: list[str] = []

    class Looking(Harness):
        def pack(self, episode: Episode) -> list[Message]:
            seen.append(episode.task.split)
            return super().pack(episode)

    jobs = [Job(trusted(Looking), ENV.tasks(split)[1]) for split in ("train", "search", "test")]
    done = asyncio.run(rollout(jobs, ENV, ScriptedPolicy(["<answer>2</answer>"])))
    assert len(set(seen)) == 1 and [t.task.split for t in done] == ["train", "search", "test"]


def test_trajectories_round_trip_and_a_torn_line_is_left_out(tmp_path: Path) -> None:
    first, _ = play(Harness, ["<hint></hint>", "what", "<answer>2</answer>"])
    second, _ = play(Harness, ["<answer>3</answer>"])
    path = tmp_path / "t.jsonl"
    write_jsonl(path, [first, second])
    assert list(read_jsonl(path)) == [first, second]
    with path.open("a") as file:
        file.write('{"schema": 1, "task": {"id"')
    assert list(read_jsonl(path)) == [first, second]
    path.write_text("nonsense\n" + json.dumps(first.to_json()) + "\n")
    with pytest.raises(ValueError, match=r"t\.jsonl:1 is damaged"):
        list(read_jsonl(path))


def test_a_later_schema_is_refused() -> None:
    trajectory, _ = play(Harness, ["<answer>2</answer>"])
    with pytest.raises(ValueError, match="newer than"):
        Trajectory.from_json({**trajectory.to_json(), "schema": 99})


def test_turns_that_extend_merge_into_one_sample() -> None:
    trajectory, _ = play(Harness, ["<hint></hint>", "<answer>2</answer>"])
    (sample,) = trajectory.samples()
    said = bytes(i for i, m in zip(sample.ids, sample.mask, strict=True) if m and i != END)
    assert said == b"<hint></hint><answer>2</answer>"
    assert sum(sample.mask) == sum(len(call.token_ids) for call in trajectory.calls)
    last = trajectory.calls[-1]
    assert sample.ids == last.prompt_ids + last.token_ids


def test_a_rewritten_history_forks() -> None:
    class Forgetful(Harness):
        def pack(self, episode: Episode) -> list[Message]:
            return [{"role": "user", "content": f"turn {len(episode.turns)}: {episode.observation.text}"}]

    def script(messages: Sequence[Message]) -> str:
        return "<hint></hint>" if messages[0]["content"].startswith("turn 0") else "<answer>2</answer>"

    trajectory, _ = play(Forgetful, script)
    samples = trajectory.samples()
    assert len(samples) == 2
    for sample, call in zip(samples, trajectory.calls, strict=True):
        assert sample.ids == call.prompt_ids + call.token_ids
        assert sum(sample.mask) == len(call.token_ids)


def test_loading(tmp_path: Path) -> None:
    from harness_sdk import HarnessLoadError

    good = tmp_path / "mine.py"
    good.write_text("from harness_sdk import Harness\n\n\nclass Mine(Harness):\n    system = 'Be brief.'\n")
    assert load(good).name == load(f"{good}:Mine").name == load(good, trusted=False).name == "Mine"
    assert load(good).id == load(good, trusted=False).id
    cases = {
        "no file": (tmp_path / "mien.py", r"Did you mean .*mine\.py"),
        "no class": (f"{good}:Mien", "Did you mean 'Mine'"),
        "no module": ("no_such_module:X", "cannot import"),
        "nonsense": ("hello", "neither a .py file nor module:Class"),
    }
    for ref, words in cases.values():
        with pytest.raises(HarnessLoadError, match=words):
            load(ref)
    broken = tmp_path / "broken.py"
    broken.write_text("x = 1\ny = x +\n")
    with pytest.raises(HarnessLoadError, match=r"line 2.*SyntaxError"):
        load(broken)
    broken.write_text("import os\n\n\ndef f():\n    pass\n")
    with pytest.raises(HarnessLoadError, match="0 Harness subclasses"):
        load(broken)
    with pytest.raises(HarnessLoadError, match="does not validate"):
        load(broken, trusted=False)


def test_a_failing_constructor_is_a_harness_error(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text(
        "from harness_sdk import Harness\n\n\nclass Bad(Harness):\n"
        "    def __init__(self):\n        raise RuntimeError('no')\n"
    )
    trajectory = asyncio.run(rollout([Job(load(path), TASKS[0])], ENV, ScriptedPolicy(["x"])))[0]
    assert trajectory.score.failure == "harness_error" and "RuntimeError: no" in trajectory.stopped
    with pytest.raises(HarnessError):
        asyncio.run(load(path).open(0))


def test_a_failing_environment_is_not_the_harness_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: object, call: ToolCall) -> None:
        raise ConnectionError("the index is gone")

    monkeypatch.setattr(riddles.Riddle, "apply", broken)
    trajectory, _ = play(Harness, ["<answer>2</answer>"])
    assert (trajectory.reward, trajectory.score.failure) == (None, "env_error")
    assert "the index is gone" in trajectory.stopped


def turn(text: str, calls: list[ToolCall], results: list[str], **more: Any) -> Turn:
    structured, failure, feedback = (more.get(name) for name in ("structured", "failure", "feedback"))
    completion = Completion(text, "stop", tuple(calls), 9, (), bool(structured))
    return Turn(completion, tuple(calls[: len(results)]), tuple(results), failure, feedback)


TWO = [ToolCall("search", {"query": "a"}, "id-1"), ToolCall("answer", {"text": "b"}, "id-2")]


def test_native_calls_are_answered_in_order_under_their_ids() -> None:
    first, *answers = turn("<tool_call>…", TWO, ["found", "no"], feedback="Again.").messages()
    assert first == {"role": "assistant", "content": "<tool_call>…"}
    assert answers == [
        {"role": "tool", "content": "found", "tool_call_id": "id-1"},
        {"role": "tool", "content": "no", "tool_call_id": "id-2"},
        {"role": "user", "content": "Again."},
    ]
    (said, *_) = turn("", TWO, ["found", "no"], structured=True).messages()
    assert [call["id"] for call in said["tool_calls"]] == ["id-1", "id-2"]
    assert json.loads(said["tool_calls"][0]["function"]["arguments"]) == {"query": "a"}
    assert checked_messages([said]) == [said]


def test_calls_of_the_text_and_calls_without_an_answer_are_told_in_words() -> None:
    assert turn("x", [], []).messages()[1] == {"role": "user", "content": "Continue."}
    assert turn("x", TWO, ["found"], structured=True).messages() == [
        {"role": "assistant", "content": "x"},
        {"role": "user", "content": "found"},
    ]
    parsed = Turn(Completion("<answer>1</answer>"), (ToolCall("answer", {"text": "1"}),), ("right",))
    assert parsed.messages()[1] == {"role": "user", "content": "right"}
    failed = turn("x", TWO, [], failure=ParseFailure("odd"), feedback="Try again.")
    assert failed.messages()[1] == {"role": "user", "content": "Try again."}


def test_a_native_call_that_cannot_be_read_is_answered_beside_its_neighbours() -> None:
    for structured in (True, False):
        unread = (ParseFailure("the arguments of hint are not JSON"), ParseFailure("the tool name is empty"))
        said = Completion("", "stop", tuple(TWO), 0, unread, structured)
        roles = [(message["role"], message["content"]) for message in Turn(said, tuple(TWO), ("A", "B")).messages()]
        assert roles == [
            ("assistant", ""),
            ("tool", "A"),
            ("tool", "B"),
            (
                "user",
                "Another call could not be used: the arguments of hint are not JSON.\n"
                "Another call could not be used: the tool name is empty.",
            ),
        ]
        failed = Turn(said, tuple(TWO), ("A", "B"), ParseFailure("no"), "Try again.")
        assert failed.messages()[-1]["content"].endswith("the tool name is empty.\nTry again.")


def test_more_calls_than_can_be_carried_out_are_the_models_failure() -> None:
    class Native(ScriptedPolicy):
        async def generate(self, request: Request) -> Generation:
            generation = await super().generate(request)
            calls = tuple(ToolCall("hint", {}, f"call_{i}") for i in range(65))
            return replace(generation, completion=replace(generation.completion, tool_calls=calls, structured=True))

    class Passing(Harness):
        def parse(self, completion: Completion, episode: Episode) -> list[ToolCall] | ParseFailure:
            return list(completion.tool_calls)

    for harness in (trusted(Harness), trusted(Passing), load_source(PASSING)):
        trajectory = asyncio.run(rollout([Job(harness, TASKS[1])], ENV, Native(["x"])))[0]
        assert trajectory.score.failure == "format", trajectory.stopped
        failure = trajectory.turns[0].failure
        assert failure and failure.reason == "65 tool calls in one reply; at most 64 can be carried out"
        assert [message["role"] for message in trajectory.calls[1].messages] == ["user", "assistant", "user"]


PASSING = """
from harness_sdk import Harness


class Passing(Harness):
    def parse(self, completion, episode):
        return list(completion.tool_calls)
"""

LONG = """
from harness_sdk import Harness, ParseFailure


class Long(Harness):
    max_failures = 3

    def pack(self, episode):
        turn = [{"role": "assistant", "content": "."}, {"role": "user", "content": "Go on."}]
        return [{"role": "user", "content": "?"}, *turn * len(episode.turns)]

    def parse(self, completion, episode):
        if completion.text == "fail":
            return ParseFailure("é" * 99999, "d" * 99999)
        return super().parse(completion, episode)

    def act(self, call, env):
        return env.step(call).text + "r" * 900000

    def recover(self, failure, episode):
        return "\U0001f600" * 99999
"""


@pytest.mark.parametrize("caged", [False, True])
def test_what_is_kept_of_a_turn_is_bounded(caged: bool, tmp_path: Path) -> None:
    file = tmp_path / "long.py"
    file.write_text(LONG)
    job = Job(load(file, not caged), TASKS[1])
    trajectory = asyncio.run(rollout([job], ENV, ScriptedPolicy(["fail", "<answer>2</answer>"])))[0]
    turns = trajectory.turns
    assert turns[0].failure and turns[0].feedback
    texts = [turns[0].failure.reason, turns[0].failure.detail, turns[0].feedback, *turns[-1].results]
    assert len(texts) == 4, trajectory.stopped
    for text in texts:
        assert 65_000 < len(text.encode()) <= 64 << 10 and " bytes and more left out …]" in text
    assert turns[0].feedback[0] == turns[0].feedback[-1] == "\U0001f600"  # both ends are kept, no character is halved


def test_a_text_within_its_bound_is_kept_as_it_is() -> None:
    for text in ("", "x" * (64 << 10), "é" * (32 << 10)):
        assert cut_text("act", text) == text
    with pytest.raises(HarnessError, match="must return a string"):
        cut_text("act", 3)


def test_a_native_call_that_cannot_be_read_says_why() -> None:
    episode = Episode(TASKS[0], tuple(ENV.prototype.tools), Observation("?"), Observation("?"))
    broken = Completion("<tool_call>{", "stop", unread=(ParseFailure("the arguments are not JSON", "{"),))
    assert Harness().parse(broken, episode) == broken.unread[0]
    assert Completion.from_json(json.loads(json.dumps(broken.to_json()))) == broken
    whole = replace(broken, tool_calls=(TWO[1],))
    assert Harness().parse(whole, episode) == [TWO[1]]


class Misspelt(Harness):
    """Names an argument that the tool does not have, then gives it a number, then gets it right."""

    max_failures = 9

    def parse(self, completion: Completion, episode: Episode) -> list[ToolCall] | ParseFailure:
        odd: list[dict[str, Any]] = [{"answer": "2"}, {"text": 2}, {}]
        arguments = odd[len(episode.turns)] if len(episode.turns) < len(odd) else {"text": "2"}
        return [ToolCall("answer", arguments)]


def test_a_call_that_fits_no_tool_is_illegal_and_commits_nothing() -> None:
    trajectory, _ = play(Misspelt, ["<answer>2</answer>", "hm", "hm", "hm"])
    assert [turn.failure.kind for turn in trajectory.turns[:3] if turn.failure] == ["illegal"] * 3
    assert trajectory.score.failure != "env_error"
    assert trajectory.reward == 1.0  # what was said still counts: nothing was committed in between
