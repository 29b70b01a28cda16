"""Questions with their reference answers: the embedded ones, and files and hub data sets of the usual layouts.

Reads NQ-open, HotpotQA, TriviaQA, 2WikiMultihopQA, MuSiQue, PopQA, Bamboogle, SQuAD and the Search-R1 and FlashRAG
layouts. A row without an answer that could ever match is an error here, not a zero for every answer. Repeated
questions are dropped. Passages are `whale_env.retrieval`'s business.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

from whale_env.arguments import check_whole
from whale_env.rows import DatasetError, Row, read_distinct, source_of
from whale_env.searchqa.verifier import normalised
from whale_env.splits import Plan, split_of, text_key
from whale_env.types import SPLITS, Split

EMBEDDED = Path(__file__).parents[1] / "data" / "searchqa.jsonl.zst"
"""The passages and questions that ship with the package."""

_TEXT_COLUMNS = ("question", "query", "problem")
_ANSWER_COLUMNS = ("golden_answers", "answers", "possible_answers", "answer")
_ALIAS_COLUMNS = ("answer_aliases", "aliases")
_PROMPT = re.compile(r"\bQuestion:\s*(.+?)\s*\Z", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Question:
    """One question.

    Attributes:
        id: Fingerprint of the text (`whale_env.splits.text_key`).
        text: The question.
        answers: Accepted answers. Kept out of ``repr``, so that no log shows them.
        split: Where it belongs.
        hops: How many passages an answer needs, or None where the data set does not say.
        source: The data set it comes from.
    """

    id: str
    text: str
    answers: tuple[str, ...] = field(repr=False)
    split: Split
    hops: int | None = None
    source: str = ""


def load_questions(plan: Plan = (), *, hops: int | None = None, limit: int | None = None) -> tuple[Question, ...]:
    """Loads questions.

    Args:
        plan: Data sets and their splits (`whale_env.splits.plan_of`); empty takes the embedded questions.
        hops: Keep questions that need so many passages.
        limit: Keep the first so many.

    Returns:
        Questions in the order of the data sets, without repetitions. A question of a data set kept for testing is not
        taken from another one.

    Raises:
        DatasetError: A data set cannot be read, a row has no question or no answer, or nothing is left.
        InputError: A filter makes no sense.
    """
    check_whole(1, hops=hops, limit=limit)
    questions = read_distinct(plan or ((str(EMBEDDED), SPLITS),), read_question, attrgetter("answers"))
    kept = [question for question in questions if hops is None or question.hops == hops][:limit]
    if not kept:
        have = sorted({str(question.hops or "unknown") for question in questions})
        raise DatasetError(f"none of {len(questions)} questions needs {hops} hops; there are: {', '.join(have)}")
    return tuple(kept)


def read_question(row: Row, where: str, splits: Sequence[Split]) -> Question | None:
    """Reads one row of a data set.

    Args:
        row: The row.
        where: What to call it in an error.
        splits: The splits among which its data set is divided.

    Returns:
        The question, or None for a row that asks none.

    Raises:
        DatasetError: It has no question, or no answer that could match.
    """
    # MuSiQue has questions that its passages do not answer; our embedded file has passages besides questions
    if row.get("kind", "question") != "question" or row.get("answerable", True) is False:
        return None
    columns = {str(name).lower(): value for name, value in row.items()}
    text = next((columns[name] for name in _TEXT_COLUMNS if _filled(columns.get(name))), None) or _asked(columns)
    if text is None:
        raise DatasetError(f"{where} has no question in {', '.join(_TEXT_COLUMNS)}; its columns: {', '.join(columns)}")
    found = list(dict.fromkeys(answer.strip() for answer in _answers(columns)))
    answers = tuple(answer for answer in found if normalised(answer))
    if not answers:
        shown = f"its answers {found!r:.80} say nothing" if found else f"its columns: {', '.join(columns)}"
        raise DatasetError(f"{where} has no usable answer in {', '.join(_ANSWER_COLUMNS)}; {shown}")
    hops = columns.get("hops", 2 if columns.get("type") in ("bridge", "comparison") else None)
    key = text_key(text)
    known = hops if isinstance(hops, int) else None
    return Question(key, text.strip(), answers, split_of(key, splits), known, source_of(row))


def _filled(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _asked(columns: Mapping[str, Any]) -> str | None:
    prompt = columns.get("prompt")
    if isinstance(prompt, (list, tuple)) and prompt and isinstance(prompt[-1], Mapping):
        prompt = prompt[-1].get("content")
    match = _PROMPT.search(prompt) if isinstance(prompt, str) else None
    return match.group(1) if match else None


def _answers(columns: Mapping[str, Any]) -> Iterator[str]:
    main = next((columns[name] for name in _ANSWER_COLUMNS if columns.get(name) not in (None, "", [], {})), None)
    model = columns.get("reward_model")
    if main is None and isinstance(model, Mapping):
        truth = model.get("ground_truth")
        main = truth.get("target") if isinstance(truth, Mapping) else truth
    yield from _texts(main)
    for name in _ALIAS_COLUMNS:
        yield from _texts(columns.get(name))


def _texts(value: Any) -> Iterator[str]:
    """Yields the texts in an answer cell: a text, a number, a list, a list written as JSON, or TriviaQA's record."""
    if isinstance(value, str):
        if value.lstrip().startswith("["):
            try:
                listed = json.loads(value)
            except (ValueError, RecursionError):
                listed = None
            if isinstance(listed, list) and all(isinstance(item, (str, int, float)) for item in listed):
                yield from _texts(listed)
                return
        yield value
    elif isinstance(value, bool):
        yield "yes" if value else "no"
    elif isinstance(value, (int, float)):
        yield str(value)
    elif isinstance(value, Mapping):
        record = {str(name).lower(): item for name, item in value.items()}
        for name in ("value", "text", "aliases"):
            yield from _texts(record.get(name))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)
