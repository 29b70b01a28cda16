"""Reasoning-gym's data sets as a domain: generated questions, judged by each data set's own scorer.

One committing tool, ``answer(text)``. The scorer's value is made binary by a threshold; it runs confined (`scoring`).
Tasks are named by a fingerprint of their question and split by it, so neither seed nor index is public and a question
is in one split only. Not covered: data sets that need Python objects as configuration (``composite``), and those whose
scorer credits a meaningless text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from whale_env.adapters.generation import generated
from whale_env.arguments import check_whole
from whale_env.commit import Named, named_verbatim, said_verbatim
from whale_env.core import DomainSpec, Outcome, ToolEnv
from whale_env.errors import InputError
from whale_env.searchqa.verifier import tagged_answer
from whale_env.splits import split_of, text_key
from whale_env.types import SPLITS, Failure, Observation, Score, Split, Task, ToolCall, ToolSpec

ANSWER = ToolSpec(
    "answer",
    "Gives the final answer.",
    {
        "type": "object",
        "properties": {"text": {"type": "string", "description": "The answer and nothing else."}},
        "required": ["text"],
    },
    commits=True,
)


WRITTEN = "Write your answer as <answer>…</answer>."


def reasoning_env(
    dataset: str | None = None,
    *,
    threshold: float = 1.0,
    seed: int = 0,
    size: int = 1000,
    allow_uncaged: bool = False,
    split: Split = "train",
    render_mode: str | None = None,
    **config: Any,
) -> ToolEnv:
    """Makes a reasoning-gym data set an environment (``whale/ReasoningGym-v0``).

    Args:
        dataset: Name of the data set, ``"leg_counting"``.
        threshold: Score from which on an answer counts as right; 1.0 is full credit.
        seed: Seed of the questions.
        size: How many are generated; repeated ones are left out, the rest divided among the splits.
        allow_uncaged: Run the scorer, which may evaluate what the model wrote, under resource limits alone where this
            kernel cannot confine it.
        split: Where ``reset()`` draws from.
        render_mode: ``"ansi"`` or None.
        **config: The data set's own settings (``max_animals=4``).

    Returns:
        The environment.

    Raises:
        MissingPackageError: Reasoning-gym is not installed.
        InputError: No such data set, a setting that it refuses, or a scorer that credits nonsense.
    """
    if isinstance(threshold, bool) or not isinstance(threshold, (int, float)) or not 0 < threshold <= 1:
        raise InputError(f"threshold must be a number above 0 and at most 1, not {threshold!r:.80}")
    check_whole(0, seed=seed)
    check_whole(1, size=size)
    if not isinstance(dataset, str):
        raise InputError(
            f"dataset must be a name such as 'leg_counting' (--env-args '{{\"dataset\": …}}'), not {dataset!r}"
        )
    try:
        settings = json.dumps({**config, "seed": seed, "size": size}, sort_keys=True)
    except TypeError as error:
        raise InputError(f"settings of {dataset} must be JSON data, not {config!r:.200}: {error}") from None
    questions = _questions(dataset, settings)
    return ToolEnv(ReasoningDomain(questions, threshold, not allow_uncaged), split=split, render_mode=render_mode)


@dataclass(frozen=True, slots=True, repr=False)
class Questions:
    """The generated questions of one data set, with their answers. Stays in the trusted process.

    Attributes:
        dataset: Name of the data set.
        config: Its whole configuration, as JSON data.
        entries: Fingerprint of the question → the data set's entry.
    """

    dataset: str
    config: Mapping[str, Any]
    entries: Mapping[str, Mapping[str, Any]]


@lru_cache(maxsize=8)
def _questions(name: str, settings: str) -> Questions:
    config: dict[str, Any] = json.loads(settings)
    entries = {f"{name}-{text_key(row['question'])}": row for row in generated(name, config)}
    return Questions(name, config, entries)


class ReasoningDomain:
    """A reasoning-gym data set as a `whale_env.core.Domain`."""

    def __init__(self, questions: Questions, threshold: float = 1.0, cage: bool = True) -> None:
        """Sorts questions into splits.

        Args:
            questions: The questions; their answers stay inside.
            threshold: Score from which on an answer counts as right.
            cage: Whether the scorer must be confined.
        """
        self.spec = DomainSpec(questions.dataset, (ANSWER,), max_steps=1, max_invalid=8, blocking=True)
        self._questions, self._threshold, self._cage = questions, threshold, cage
        self._tasks: dict[Split, list[Task]] = {split: [] for split in SPLITS}
        for task_id in questions.entries:
            split = split_of(task_id.rpartition("-")[2])
            self._tasks[split].append(Task(task_id, questions.dataset, split))

    def tasks(self, split: Split) -> Sequence[Task]:
        """Returns the public tasks of a split, in the order of generation."""
        return self._tasks[split]

    def start(self, task: Task, seed: int) -> ReasoningSession:
        """Opens a question; nothing in it is random."""
        return ReasoningSession(self._questions, task.id, self._threshold, self._cage)


class ReasoningSession:
    """One question in progress."""

    def __init__(self, questions: Questions, task_id: str, threshold: float, cage: bool) -> None:
        self._questions, self._entry = questions, questions.entries[task_id]
        self._threshold, self._cage = threshold, cage
        self._score: Score | None = None

    def observe(self) -> Observation:
        """Shows the question."""
        question = str(self._entry["question"])
        told = f"{question}\n\n{WRITTEN}" if self._score is None else "The answer has been given."
        return Observation(told, {"question": question})

    def apply(self, call: ToolCall) -> Outcome:
        """Judges the answer and ends the episode. If it has answer tags, their last pair counts, else all of it."""
        from whale_env.adapters import scoring

        text = str(call.arguments["text"])
        tagged = tagged_answer(text)
        given = text.strip() if tagged is None else tagged
        data = self._questions
        value = scoring.score(data.dataset, data.config, self._entry, given, self._cage) if given else 0.0
        failure: Failure | None = None if value >= self._threshold else "wrong" if given else "format"
        self._score = Score(float(failure is None), failure, {"partial_score": value})
        return Outcome(self.observe(), done=True)

    def said(self, call: ToolCall, text: str) -> bool:
        """Whether the text has the answer, case and white space aside; of one with answer tags, what they hold."""
        return said_verbatim(_in_tags(call), text)

    def named(self, call: ToolCall, text: str) -> tuple[Named, ...]:
        """Returns the numbers or the pieces that the text names."""
        return named_verbatim(_in_tags(call), text)

    def score(self) -> Score:
        """1 when the data set's scorer gives the committed answer at least the threshold. Metric: ``partial_score``."""
        return self._score or Score(0.0, "budget")


def _in_tags(call: ToolCall) -> ToolCall:
    from whale_env.verifiers import tagged_answer

    tagged = tagged_answer(str(call.arguments["text"]))
    return call if tagged is None else ToolCall(call.name, {"text": tagged})
