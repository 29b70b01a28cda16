"""`Trajectory`: the finished record of one rollout, with exact ids, and its JSONL form.

Training samples are cut from the stored ids (`Trajectory.samples`); text is never tokenised again. How a trajectory
comes about is `harness_sdk.rollout`; what is learnt from it is `optimizers.weights.rsft`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness_sdk.types import Message, Turn
from whale_env.errors import InputError
from whale_env.json_lines import append_lines, numbered_lines
from whale_env.types import Score, Task

SCHEMA = 1
"""Version of the JSON form. A reader refuses a later one."""


@dataclass(frozen=True, slots=True)
class ModelCall:
    """The exact input and output of one model call.

    Attributes:
        messages: The prompt as the harness packed it.
        prompt_ids: Ids that went in.
        token_ids: Ids that were sampled, the end token included.
        logprobs: Natural-log probability of each sampled id; same length as ``token_ids``.
        weights_version: Version of the weights that sampled.
    """

    messages: tuple[Message, ...]
    prompt_ids: tuple[int, ...] = ()
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    weights_version: int = 0

    def __repr__(self) -> str:
        lengths = f"messages={len(self.messages)}, prompt_ids={len(self.prompt_ids)}, token_ids={len(self.token_ids)}"
        return f"ModelCall({lengths}, weights_version={self.weights_version})"


@dataclass(frozen=True, slots=True)
class Sample:
    """A training sequence.

    Attributes:
        ids: Token ids, shape ``(length,)``.
        mask: 1 where the model sampled the id, else 0; same shape.
        logprobs: Log-probability where sampled, else 0.0; same shape.
    """

    ids: tuple[int, ...]
    mask: tuple[int, ...]
    logprobs: tuple[float, ...]

    def __repr__(self) -> str:
        return f"Sample(ids={len(self.ids)}, sampled={sum(self.mask)})"


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One finished rollout.

    Attributes:
        task: The public task.
        harness: Id of the harness (a hash of its source).
        index: Which rollout of the task this is.
        seed: The rollout's own seed.
        calls: One entry per model call.
        turns: One entry per model call, as the hooks saw it.
        score: The verdict; reward None after an infrastructure failure.
        stopped: Why the loop ended, in words.
    """

    task: Task
    harness: str
    index: int
    seed: int
    calls: tuple[ModelCall, ...]
    turns: tuple[Turn, ...]
    score: Score
    stopped: str = ""
    schema: int = field(default=SCHEMA)

    def __repr__(self) -> str:
        done = f"reward={self.reward}, failure={self.score.failure!r}, turns={len(self.turns)}, tokens={self.tokens}"
        return f"Trajectory(task={self.task.id!r}, index={self.index}, {done}, stopped={self.stopped!r:.80})"

    @property
    def reward(self) -> float | None:
        """The verifier's reward, or None when unknown."""
        return self.score.reward

    @property
    def weights_version(self) -> int:
        """Version of the weights that sampled the last call (0 if none was made)."""
        return self.calls[-1].weights_version if self.calls else 0

    @property
    def tokens(self) -> int:
        """Tokens the model sampled."""
        return sum(turn.completion.tokens for turn in self.turns)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts together."""
        return sum(len(call.prompt_ids) for call in self.calls)

    def samples(self) -> tuple[Sample, ...]:
        """Cuts training sequences from the stored ids.

        A call whose prompt extends everything before it joins the sequence; otherwise a new one begins (a fork).

        Returns:
            The sequences in order; every sampled id is marked in exactly one of them.
        """
        done: list[Sample] = []
        for call in self.calls:
            if not call.token_ids:
                continue
            last = done[-1] if done else None
            if last is not None and call.prompt_ids[: len(last.ids)] == last.ids:
                gap = call.prompt_ids[len(last.ids) :]
                done[-1] = _extended(last, gap, call)
            else:
                done.append(_extended(Sample((), (), ()), call.prompt_ids, call))
        return tuple(done)

    def to_json(self) -> dict[str, Any]:
        """Returns the trajectory as JSON data; prompts are stored as what they add to the call before."""
        calls = []
        seen_ids: Sequence[int] = ()
        seen_messages: Sequence[Message] = ()
        for call in self.calls:
            same_ids = _common(seen_ids, call.prompt_ids)
            same_messages = _common(seen_messages, call.messages)
            calls.append(
                {
                    "messages": [same_messages, list(call.messages[same_messages:])],
                    "prompt_ids": [same_ids, list(call.prompt_ids[same_ids:])],
                    "token_ids": list(call.token_ids),
                    "logprobs": list(call.logprobs),
                    "weights_version": call.weights_version,
                }
            )
            seen_ids, seen_messages = call.prompt_ids + call.token_ids, call.messages
        return {
            "schema": self.schema,
            "task": self.task.to_json(),
            "harness": self.harness,
            "index": self.index,
            "seed": self.seed,
            "calls": calls,
            "turns": [turn.to_json() for turn in self.turns],
            "score": self.score.to_json(),
            "stopped": self.stopped,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Trajectory:
        """Rebuilds a trajectory from `to_json`.

        Raises:
            InputError: It was written by a later schema.
        """
        if data.get("schema", 0) > SCHEMA:
            raise InputError(f"trajectory schema {data['schema']} is newer than {SCHEMA}; upgrade this package")
        calls: list[ModelCall] = []
        seen_ids: tuple[int, ...] = ()
        seen_messages: tuple[Message, ...] = ()
        for call in data["calls"]:
            messages = seen_messages[: call["messages"][0]] + tuple(call["messages"][1])
            prompt = seen_ids[: call["prompt_ids"][0]] + tuple(call["prompt_ids"][1])
            tokens = tuple(call["token_ids"])
            calls.append(ModelCall(messages, prompt, tokens, tuple(call["logprobs"]), call["weights_version"]))
            seen_ids, seen_messages = prompt + tokens, messages
        return cls(
            Task.from_json(data["task"]),
            data["harness"],
            data["index"],
            data["seed"],
            tuple(calls),
            tuple(Turn.from_json(turn) for turn in data["turns"]),
            Score.from_json(data["score"]),
            data["stopped"],
            data["schema"],
        )


def _extended(sample: Sample, gap: Sequence[int], call: ModelCall) -> Sample:
    logprobs = call.logprobs or (0.0,) * len(call.token_ids)
    return Sample(
        (*sample.ids, *gap, *call.token_ids),
        (*sample.mask, *(0,) * len(gap), *(1,) * len(call.token_ids)),
        (*sample.logprobs, *(0.0,) * len(gap), *logprobs),
    )


def _common(a: Sequence[Any], b: Sequence[Any]) -> int:
    if a == b[: len(a)]:
        return len(a)
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def write_jsonl(path: str | Path, trajectories: Iterable[Trajectory]) -> None:
    """Appends trajectories to a file, one JSON line each."""
    append_lines(path, (trajectory.to_json() for trajectory in trajectories))


def read_jsonl(path: str | Path) -> Iterator[Trajectory]:
    """Reads trajectories; a torn last line (the writer was killed) is left out.

    Args:
        path: A file of trajectories, or of records that hold one each as ``trajectory``, as a harness archive's do.

    Yields:
        The trajectories in order.

    Raises:
        InputError: Any other line is not a trajectory; the message names it.
    """
    for number, record in numbered_lines(path):
        try:
            yield Trajectory.from_json(record.get("trajectory", record))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise InputError(f"{path}:{number} is not a trajectory: {error}") from error
