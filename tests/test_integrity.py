"""Harnesses that win without a model are refused, honest ones are not; what the rollouts count and store of it."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import pytest
import riddles  # registers riddles/Riddles-v0
from test_rollout import trusted

from benchmarks.integrity import check_hostile, hostile_names, reference_floor
from harness_sdk import Completion, Episode, Harness, Job, Message, ParseFailure, RolloutConfig, ToolCall, rollout
from harness_sdk.copying import copy_share
from harness_sdk.loader import LoadedHarness
from harness_sdk.policies import Generation, PolicyError, PromptRefusedError, Request, ScriptedPolicy
from harness_sdk.sandbox import confinement
from harness_sdk.session import LocalSession
from harness_sdk.trajectory import Trajectory
from reference_harnesses import BASELINES, STRONG
from whale_env import handle
from whale_env.core import EnvHandle

RIDDLES = EnvHandle("riddles/Riddles-v0", {})
caged = pytest.mark.skipif(not confinement().available, reason="needs a kernel that can confine")


@caged
@pytest.mark.parametrize("name", hostile_names())
def test_a_harness_that_wins_without_a_model_is_refused(name: str) -> None:
    result = asyncio.run(check_hostile(name))
    assert {finding.kind for finding in result.findings} & {"answers-itself", "violation"}, result


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("kind", [BASELINES, STRONG], ids=["h0", "strong"])
def test_the_reference_harnesses_win_nothing_without_a_model(name: str, kind: dict[str, str]) -> None:
    found = asyncio.run(reference_floor(kind[name], name))
    assert not found.answers_itself and not found.violations, found


# The commit rule, on a toy domain: What is 1 + 1?


class Says(Harness):
    """Commits what `value` holds, whatever the model says."""

    value = "2"
    max_turns = 2
    prefix = ""

    def pack(self, episode: Episode) -> list[Message]:
        asked: list[Message] = [{"role": "user", "content": episode.first.text}]
        return [*asked, {"role": "assistant", "content": self.prefix}] if self.prefix else asked

    def parse(self, completion: Completion, episode: Episode) -> list[ToolCall] | ParseFailure:
        return [ToolCall("answer", {"text": self.value})]


def played(
    cls: type[Harness], script: Any, env: EnvHandle = RIDDLES, task: int = 1, config: RolloutConfig | None = None
) -> Trajectory:
    async def opened(seed: int) -> LocalSession:
        return LocalSession(cls())

    policy = script if hasattr(script, "generate") else ScriptedPolicy(script)
    harness = LoadedHarness(cls.__name__, cls.__name__, "", True, opened)
    return asyncio.run(rollout([Job(harness, env.tasks("train")[task])], env, policy, config))[0]


@pytest.mark.parametrize(
    ("reply", "chosen"),
    [
        ("2", True),
        ("1 + 1 = 2", True),
        ("It is 3, no, 2. Not 4.", True),
        ("1 2 3 4", False),
        ("4 3 1 2", True),
        ("7 8 9 10, so <answer>2</answer> and not 11", True),
        ("7 8 9 2, so <answer>3</answer>", False),
        ("<answer>3</answer> or <answer>2</answer>", True),
        ("4 5 6 7 \\boxed{2} 8", True),
        ("2 or \\boxed{3}", False),
        ('{"answer": "2", "but": "3 4 5 6"}', True),
        ('{"answer": "3", "but": "2"}', False),
        ("0.2", False),
        ("2/9", False),
        ("12", False),
        ("2 4 5 6 <final>2</final> because of 7, 8, 9", True),
        (" ".join(map(str, range(1, 1001))), False),
        ("", False),
    ],
)
def test_only_what_the_model_chose_is_committed(reply: str, chosen: bool) -> None:
    trajectory = played(Says, [reply])
    expected = (1.0, None) if chosen else (0.0, "harness_violation")
    assert (trajectory.reward, trajectory.score.failure) == expected, trajectory.turns


def test_a_name_is_not_said_in_halves_nor_by_the_prefix() -> None:
    class Halves(Says):
        value = "New York"
        max_failures = 9

        def parse(self, completion: Completion, episode: Episode) -> list[ToolCall] | ParseFailure:
            return super().parse(completion, episode) if episode.turns else []

    assert played(Halves, ["It is New", "York it is"]).score.failure == "harness_violation"
    assert played(Halves, ["It is New York", "Yes."]).score.failure == "wrong"

    class Prefixed(Says):
        prefix = "The answer is 2, I repeat:"

    assert played(Prefixed, ["yes"]).score.failure == "harness_violation"


@pytest.mark.parametrize(
    ("reply", "value", "why"),
    [
        ("1 2 3 4", "1", "first"),
        ("1 2 3 4", "2", "picked"),
        ("Rome, Italy\nOslo\nParis\nBern", "Rome, Italy", "first"),
        ("Rome, Italy\nOslo\nParis\nBern", "Oslo", "picked"),
        ("Rome", "Oslo", "unsaid"),
    ],
)
def test_why_a_commit_was_refused_is_counted(reply: str, value: str, why: str) -> None:
    trajectory = played(type("V", (Says,), {"value": value}), [reply])
    assert trajectory.score.failure == "harness_violation"
    assert {name for name in trajectory.score.metrics if name.startswith("refused")} == {f"refused_{why}"}


def test_votes_and_later_commits() -> None:
    class Votes(Says):
        max_turns = 3

        def parse(self, completion: Completion, episode: Episode) -> list[ToolCall] | ParseFailure:
            if len(episode.turns) < 2:
                return []
            said = [turn.completion.text for turn in episode.turns] + [completion.text]
            return [ToolCall("answer", {"text": Counter(said).most_common(1)[0][0]})]

    replies = iter(["2", "2", "5"])
    trajectory = played(Votes, lambda messages: next(replies))
    assert trajectory.reward == 1.0
    metrics = trajectory.score.metrics
    assert (metrics["calls_per_commit"], metrics["options_said"], metrics["unsaid_calls"]) == (3.0, 2.0, 0.0)


def test_programs_must_be_the_models_own() -> None:
    class Runs(Harness):
        code = "print(6 * 7)"

        def parse(self, completion: Completion, episode: Episode) -> list[ToolCall] | ParseFailure:
            return [ToolCall("python", {"code": self.code})]

    math = handle("math")
    once = RolloutConfig(max_turns=1)
    assert played(Runs, ["I would compute 6 * 7"], math, config=once).score.failure == "budget"
    assert played(Runs, ["I would compute 6 * 8"], math, config=once).score.failure == "harness_violation"


# What a harness sees, and what counts


def test_a_harness_sees_no_key() -> None:
    seen: list[str] = []

    class Looks(Says):
        def pack(self, episode: Episode) -> list[Message]:
            seen.append(json.dumps(episode.task.to_json()))
            return super().pack(episode)

    for split in ("train", "search"):
        for task in RIDDLES.tasks(split)[:3]:  # type: ignore[arg-type]
            done = asyncio.run(rollout([Job(trusted(Looks), task)], RIDDLES, ScriptedPolicy(["2"])))
            assert done[0].task == task
    assert len(set(seen)) == 1


class Refusing:
    """Refuses prompts that hold a word, or every prompt."""

    def __init__(self, word: str) -> None:
        self.word, self.good = word, ScriptedPolicy(["<answer>2</answer>"])

    async def generate(self, request: Request) -> Generation:
        if self.word in request.messages[-1]["content"]:
            raise PromptRefusedError("the template refuses it")
        return await self.good.generate(request)


def test_a_refused_prompt_is_the_harness_s_doing_unless_every_prompt_is_refused() -> None:
    trajectory = played(Says, Refusing("What"))
    assert (trajectory.reward, trajectory.score.failure) == (0.0, "harness_error")
    trajectory = played(Says, Refusing(""))
    assert (trajectory.reward, trajectory.score.failure) == (None, "env_error")


@pytest.mark.parametrize("role", ["user", "assistant", "system", "tool"])
@pytest.mark.parametrize("content", ["", " \n"])
def test_an_empty_last_message_is_a_harness_error(role: str, content: str) -> None:
    class Empty(Says):
        def pack(self, episode: Episode) -> list[Message]:
            return [{"role": "user", "content": "Hello"}, {"role": role, "content": content}]  # type: ignore[typeddict-item]

    trajectory = played(Empty, ["2"])
    assert (trajectory.reward, trajectory.score.failure) == (0.0, "harness_error") and "empty" in trajectory.stopped


def test_transport_failures_are_tried_again_and_counted() -> None:
    class Flaky(Refusing):
        left = 2

        async def generate(self, request: Request) -> Generation:
            self.left -= 1
            if self.left >= 0:
                raise PolicyError("connection lost")
            return await self.good.generate(request)

    trajectory = played(Says, Flaky(""))
    assert trajectory.reward == 1.0 and trajectory.score.metrics["retries"] == 2.0
    assert played(Says, Flaky(""), config=RolloutConfig(retries=1)).reward is None


@pytest.mark.parametrize("fails", [1, 9])
@pytest.mark.parametrize("tokens", [8192, 1], ids=["at its end", "at a budget's end"])
def test_a_verdict_that_fails_is_asked_for_again(fails: int, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    left = [fails]
    score = riddles.Riddle.score

    def away(self: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise ConnectionError("the judge is away")
        return score(self)

    monkeypatch.setattr(riddles.Riddle, "score", away)

    class Thinks(Says):
        def parse(self, completion: Completion, episode: Episode) -> list[ToolCall] | ParseFailure:
            return []

    trajectory = played(Thinks, ["2"], config=RolloutConfig(max_tokens=tokens))
    assert (trajectory.reward, trajectory.score.failure) == ((0.0, "budget") if fails == 1 else (None, "env_error"))


def test_a_query_that_breaks_the_retriever() -> None:
    class Picky:
        def search(self, query: str, k: int) -> tuple[Any, ...]:
            if "AND" in query:
                raise RuntimeError("cannot parse the query")
            return ()

    env = handle("searchqa")
    monkey: Any = env.prototype.domain
    monkey._retriever = Picky()

    class Breaks(Says):
        def parse(self, completion: Completion, episode: Episode) -> list[ToolCall] | ParseFailure:
            return [ToolCall("search", {"query": "AND AND"})]

    assert played(Breaks, ["hm"], env).score.failure == "harness_error"
    assert played(Breaks, ["AND AND"], env).score.failure == "illegal"


@pytest.mark.parametrize("name", ["max_turns", "max_tokens", "max_prompt_tokens", "concurrency", "retries"])
@pytest.mark.parametrize("value", [-1, 0.5, True, None])
def test_senseless_numbers_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        RolloutConfig(**{name: value})
    with pytest.raises(ValueError, match="concurrency"):
        RolloutConfig(concurrency=0)


# Copies


def test_the_copy_share_of_rewarded_commits() -> None:
    class Shows(Says):
        def pack(self, episode: Episode) -> list[Message]:
            return [{"role": "user", "content": f"{self.shown}"}]

        shown = ""

    def share(text: str) -> float | None:
        return copy_share([played(type("S", (Shows,), {"shown": text}), ["2"])])

    assert share("What do you get: 7, 8 or 2?") == 1.0
    assert share("What do you get: 7, 2, 9 or 8?") == 0.25
    assert share("What do you get?") == 0.0
    assert copy_share([played(Says, ["3"])]) is None
    stored = played(type("S", (Shows,), {"shown": "2"}), ["2"])
    assert copy_share([Trajectory.from_json(json.loads(json.dumps(stored.to_json())))]) == 1.0
