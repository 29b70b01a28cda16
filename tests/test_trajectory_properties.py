"""What a trajectory stores is what the model saw: recomputed log-probabilities, masks, merged samples, JSON lines.

Real rollouts with a tiny random Llama under harnesses that keep, cut, rewrite and prefix the history, and drawn
trajectories without any model.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Sequence
from itertools import accumulate, chain, pairwise
from pathlib import Path

import pytest
import riddles  # noqa: F401  # registers riddles/Riddles-v0
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny import SPECIALS, tiny_llama

from harness_sdk import Completion, Episode, Harness, Job, Message, ParseFailure, RolloutConfig, ToolCall, Turn, rollout
from harness_sdk.loader import LoadedHarness
from harness_sdk.policies import Sampling, TransformersPolicy
from harness_sdk.session import LocalSession
from harness_sdk.trajectory import ModelCall, Sample, Trajectory, read_jsonl, write_jsonl
from whale_env.core import EnvHandle
from whale_env.types import FAILURES, Observation, Score, Task, ToolSpec

MODEL, TOKENIZER = tiny_llama()
ENV = EnvHandle("riddles/Riddles-v0", {})
TASKS = ENV.tasks("train")


class Appending(Harness):
    """Keeps the whole history; every reply asks for a hint, so that episodes have several turns."""

    system = "You solve riddles."
    max_turns = 4
    max_tokens_per_turn = 10

    def parse(self, completion: Completion, episode: Episode) -> list[ToolCall] | ParseFailure:
        return [ToolCall("hint", {})]


class Forgetful(Appending):
    """Shows the latest observation only."""

    def pack(self, episode: Episode) -> list[Message]:
        return [{"role": "user", "content": f"{len(episode.turns)}: {episode.observation.text}"}]


class Windowed(Appending):
    """Drops all turns but the last two, so that later prompts fork."""

    def pack(self, episode: Episode) -> list[Message]:
        messages = super().pack(episode)
        return [*messages[:2], *messages[2:][-4:]]


class Rewriting(Appending):
    """Changes what the model said before, as templates that strip thinking do."""

    def pack(self, episode: Episode) -> list[Message]:
        messages = super().pack(episode)
        for message in messages[:-2]:
            if message["role"] == "assistant":
                message["content"] = message["content"][:3]
        return messages


class Prefixed(Appending):
    """Writes the beginning of every reply."""

    def pack(self, episode: Episode) -> list[Message]:
        return [*super().pack(episode), {"role": "assistant", "content": "The answer"}]


class Hostile(Appending):
    """Shows control tokens as text, and text that no merge covers."""

    instructions = f"{SPECIALS[2]}\n{SPECIALS[1]}system\nobey {SPECIALS[0]} \ue000 ünïcode 象 🐋"


class Stopping(Appending):
    """Stops the model at common letters."""

    stop_strings = ("a", "e", "\n")


HARNESSES = [Appending, Forgetful, Windowed, Rewriting, Prefixed, Hostile, Stopping]


def loaded(cls: type[Harness]) -> LoadedHarness:
    async def opened(seed: int) -> LocalSession:
        return LocalSession(cls())

    return LoadedHarness(cls.__name__, cls.__name__, "", True, opened)


def play(harnesses: Sequence[type[Harness]], tasks: int = 2, samples: int = 2, seed: int = 0) -> list[Trajectory]:
    policy = TransformersPolicy(MODEL, tokenizer=TOKENIZER, cache_tokens=600)
    jobs = [Job(loaded(cls), task, i) for cls in harnesses for task in TASKS[:tasks] for i in range(samples)]
    config = RolloutConfig(seed=seed, sampling=Sampling(1.0, top_k=0))
    done = asyncio.run(rollout(jobs, ENV, policy, config))
    assert all(t.reward is not None and len(t.calls) == len(t.turns) == 4 for t in done), [t.stopped for t in done]
    return done


def log_probs(ids: Sequence[int]) -> list[float]:
    """Log-probability of every id but the first, from one plain pass over all of them; 0.0 for the first."""
    with torch.no_grad():
        logits = MODEL(torch.tensor([ids])).logits[0].log_softmax(-1)
    return [0.0, *(float(logits[i - 1, ids[i]]) for i in range(1, len(ids)))]


def check_model_saw_it(trajectory: Trajectory) -> None:
    for call in trajectory.calls:
        seen = log_probs(call.prompt_ids + call.token_ids)
        assert list(call.logprobs) == pytest.approx(seen[len(call.prompt_ids) :], abs=1e-3)
    for sample in trajectory.samples():
        seen = log_probs(sample.ids)
        expected = [p if m else 0.0 for p, m in zip(seen, sample.mask, strict=True)]
        assert list(sample.logprobs) == pytest.approx(expected, abs=1e-3)


def check_samples(calls: Sequence[ModelCall], samples: Sequence[Sample]) -> list[list[ModelCall]]:
    """Checks that each sample is its calls and marks what they sampled; returns the calls of each."""
    left = [call for call in calls if call.token_ids]
    groups: list[list[ModelCall]] = []
    for sample in samples:
        assert len(sample.ids) == len(sample.mask) == len(sample.logprobs)
        mask, logprobs, group = [0] * len(sample.ids), [0.0] * len(sample.ids), []
        while left and sum(mask) < sum(sample.mask):
            call = left.pop(0)
            start, end = len(call.prompt_ids), len(call.prompt_ids + call.token_ids)
            assert sample.ids[:end] == call.prompt_ids + call.token_ids
            mask[start:end] = [1] * len(call.token_ids)
            logprobs[start:end] = call.logprobs or [0.0] * len(call.token_ids)
            group.append(call)
        assert (list(sample.mask), list(sample.logprobs)) == (mask, logprobs)
        assert sample.ids == group[-1].prompt_ids + group[-1].token_ids  # nothing follows what was sampled last
        groups.append(group)
    assert not left
    for before, after in pairwise(groups):  # a fork only where it must be
        seen = before[-1].prompt_ids + before[-1].token_ids
        assert after[0].prompt_ids[: len(seen)] != seen
    return groups


def check_lines(trajectories: Sequence[Trajectory]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "t.jsonl"
        write_jsonl(path, trajectories)
        assert list(read_jsonl(path)) == list(trajectories)


@pytest.fixture(scope="module")
def played() -> dict[str, list[Trajectory]]:
    """All harnesses in one batch, which is how candidates are scored."""
    done = play(HARNESSES)
    return {cls.__name__: [t for t in done if t.harness == cls.__name__] for cls in HARNESSES}


@pytest.mark.parametrize("name", [cls.__name__ for cls in HARNESSES])
def test_stored_ids_are_what_the_model_saw(played: dict[str, list[Trajectory]], name: str) -> None:
    for trajectory in played[name]:
        check_model_saw_it(trajectory)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("Appending", [4]),
        ("Hostile", [4]),
        ("Stopping", [4]),
        ("Forgetful", [1, 1, 1, 1]),
        ("Windowed", [3, 1]),
        ("Prefixed", [1, 1, 1, 1]),
    ],
)
def test_samples_merge_what_extends_and_fork_what_does_not(
    played: dict[str, list[Trajectory]], name: str, sizes: list[int]
) -> None:
    for trajectory in played[name]:
        groups = check_samples(trajectory.calls, trajectory.samples())
        assert [len(group) for group in groups] == sizes
        assert sum(sum(sample.mask) for sample in trajectory.samples()) == trajectory.tokens


def test_rewritten_replies_fork_and_are_never_trained_on(played: dict[str, list[Trajectory]]) -> None:
    for trajectory in played["Rewriting"]:
        groups = check_samples(trajectory.calls, trajectory.samples())
        assert len(groups) > 1
        for before, after in pairwise(trajectory.calls):
            seen = before.prompt_ids + before.token_ids
            if after.prompt_ids[: len(seen)] == seen:
                continue
            rewritten = Sample(after.prompt_ids, (0,) * len(after.prompt_ids), (0.0,) * len(after.prompt_ids))
            (sample,) = [s for s in trajectory.samples() if s.ids[: len(rewritten.ids)] == rewritten.ids]
            assert sample.mask[: len(rewritten.ids)] == rewritten.mask


def test_real_trajectories_survive_json_lines(played: dict[str, list[Trajectory]]) -> None:
    check_lines([trajectory for done in played.values() for trajectory in done])


def test_a_trajectory_costs_what_it_adds(played: dict[str, list[Trajectory]]) -> None:
    for trajectory in played["Appending"]:
        stored = [call["prompt_ids"][1] + call["token_ids"] for call in trajectory.to_json()["calls"]]
        (sample,) = trajectory.samples()
        assert tuple(chain.from_iterable(stored)) == sample.ids


EDITS = st.sampled_from(["keep", "keep", "drop first", "drop last", "shorten", "prefix", "alone", "twice"])


@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(edits=st.lists(st.lists(EDITS, min_size=3, max_size=3), min_size=2, max_size=3), seed=st.integers(0, 99))
def test_however_a_history_is_edited(edits: list[list[str]], seed: int) -> None:
    def harness(number: int, plan: list[str]) -> type[Harness]:
        def pack(self: Appending, episode: Episode) -> list[Message]:
            messages = Appending.pack(self, episode)
            for edit in plan[: len(episode.turns)]:
                messages = edited(messages, edit)
            return messages

        return type(f"Edited{number}", (Appending,), {"pack": pack})

    for trajectory in play([harness(i, plan) for i, plan in enumerate(edits)], tasks=1, samples=2, seed=seed):
        check_model_saw_it(trajectory)
        check_samples(trajectory.calls, trajectory.samples())
        check_lines([trajectory])


def edited(messages: list[Message], edit: str) -> list[Message]:
    if edit == "drop first":
        return messages[1:] or messages
    if edit == "drop last":
        return messages[:-1] or messages
    if edit == "shorten":
        return [{**message, "content": message["content"][:-2] or "."} for message in messages]
    if edit == "prefix":
        return [*messages, {"role": "assistant", "content": "So"}]
    if edit == "alone":
        return messages[-1:]
    return messages * 2 if edit == "twice" else messages


IDS = st.lists(st.integers(0, 5), max_size=5).map(tuple)  # few distinct ids: accidental prefixes are common
TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
DATA = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
OBJECT = st.dictionaries(TEXT, DATA, max_size=2)
CALLS = st.builds(ToolCall, TEXT, OBJECT, st.none() | TEXT)
COMPLETIONS = st.builds(
    Completion,
    TEXT,
    st.sampled_from(["stop", "length", "abort"]),
    st.lists(CALLS, max_size=2).map(tuple),
    st.integers(0, 9),
)
FAILED = st.builds(ParseFailure, TEXT, TEXT, st.sampled_from(["format", "truncated", "illegal"]))
TURNS = st.builds(
    Turn,
    COMPLETIONS,
    st.lists(CALLS, max_size=2).map(tuple),
    st.lists(TEXT, max_size=2).map(tuple),
    st.none() | FAILED,
    st.none() | TEXT,
)
MESSAGES: st.SearchStrategy[Message] = st.fixed_dictionaries(  # type: ignore[assignment]
    {"role": st.sampled_from(["system", "user", "assistant", "tool"]), "content": TEXT},
    optional={"tool_calls": st.lists(OBJECT, max_size=2), "tool_call_id": TEXT},
)
SCORES = st.builds(Score, st.sampled_from([0.0, 1.0, None]), st.none() | st.sampled_from(FAILURES))


@st.composite
def model_calls(draw: st.DrawFn) -> tuple[ModelCall, ...]:
    """Calls whose prompts extend the last one, cut it, or are new; some without ids, as some servers give."""
    calls: list[ModelCall] = []
    messages: tuple[Message, ...] = ()
    seen: tuple[int, ...] = ()
    for kind in draw(st.lists(st.sampled_from(["extend", "extend", "same", "cut", "new", "no ids"]), max_size=6)):
        if kind == "extend":
            prompt, messages = seen + draw(IDS), messages + tuple(draw(st.lists(MESSAGES, max_size=2)))
        elif kind == "same":
            prompt = seen
        elif kind == "cut":
            prompt, messages = seen[: draw(st.integers(0, len(seen)))] + draw(IDS), messages[1:]
        else:
            prompt, messages = draw(IDS) if kind == "new" else (), tuple(draw(st.lists(MESSAGES, max_size=2)))
        tokens = () if kind == "no ids" else draw(IDS)
        probabilities = tuple(draw(st.floats(-50.0, 0.0)) for _ in tokens)
        calls.append(ModelCall(messages, prompt, tokens, probabilities, draw(st.integers(0, 3))))
        seen = prompt + tokens
    return tuple(calls)


TRAJECTORIES = st.builds(
    Trajectory,
    st.builds(Task, TEXT, TEXT, st.sampled_from(["train", "search", "test"]), OBJECT),
    TEXT,
    st.integers(0, 9),
    st.integers(0, 2**63 - 1),
    model_calls(),
    st.lists(TURNS, max_size=2).map(tuple),
    SCORES,
    TEXT,
)
DRAWN = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@DRAWN
@given(calls=model_calls())
def test_drawn_calls_merge_into_samples_that_equal_them(calls: tuple[ModelCall, ...]) -> None:
    trajectory = Trajectory(TASKS[0], "h", 0, 0, calls, (), Score(0.0, "wrong"))
    samples = trajectory.samples()
    check_samples(calls, samples)
    sampled = [token for call in calls for token in call.token_ids]
    marked = [token for sample in samples for token, mask in zip(sample.ids, sample.mask, strict=True) if mask]
    assert marked == sampled


@DRAWN
@given(trajectories=st.lists(TRAJECTORIES, max_size=3))
def test_drawn_trajectories_survive_json_lines_in_any_pieces(trajectories: list[Trajectory]) -> None:
    check_lines(trajectories)
    for trajectory in trajectories:
        again = Trajectory.from_json(json.loads(json.dumps(trajectory.to_json())))
        assert again == trajectory and again.samples() == trajectory.samples()
        assert [call.id for turn in again.turns for call in turn.calls] == [
            call.id for turn in trajectory.turns for call in turn.calls
        ]


@DRAWN
@given(trajectories=st.lists(TRAJECTORIES, min_size=1, max_size=3), share=st.floats(0.0, 1.0, exclude_max=True))
def test_a_file_cut_anywhere_gives_the_whole_lines(trajectories: list[Trajectory], share: float) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "t.jsonl"
        write_jsonl(path, trajectories)
        data = path.read_bytes()
        start = data[: int(len(data) * share)].decode("utf-8", "ignore").encode()
        path.write_bytes(start)
        ends = list(accumulate(len(line) for line in data.splitlines(keepends=True)))
        whole = sum(end - 1 <= len(start) for end in ends)  # the line break itself may be what is missing
        assert list(read_jsonl(path)) == trajectories[:whole]


def test_a_line_torn_within_a_character_is_left_out(tmp_path: Path) -> None:
    turn = Turn(Completion("象🐋"))
    path, trajectory = tmp_path / "t.jsonl", Trajectory(TASKS[0], "h", 0, 0, (), (turn,), Score(0.0, "wrong"))
    write_jsonl(path, [trajectory])
    data = path.read_bytes()
    for kept in range(len(data) - 1):
        path.write_bytes(data + data[:kept])
        assert list(read_jsonl(path)) == [trajectory]


def test_a_servers_lone_surrogate_does_not_stop_the_run() -> None:
    text = json.loads('"x\\ud800"')  # JSON may carry one
    check_lines([Trajectory(TASKS[0], "h", 0, 0, (), (Turn(Completion(text)),), Score(0.0, "wrong"))])


@DRAWN
@given(turns=st.lists(TURNS, max_size=3).map(tuple), observation=st.builds(Observation, TEXT, OBJECT))
def test_drawn_episodes_survive_the_wire(turns: tuple[Turn, ...], observation: Observation) -> None:
    episode = Episode(TASKS[0], (ToolSpec("t", "", {}, True),), observation, observation, turns, True)
    assert Episode.from_json(json.loads(json.dumps(episode.to_json()))) == episode
