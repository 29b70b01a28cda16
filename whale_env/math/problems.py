r"""Mathematics problems with their answers: the generated ones, and files and hub data sets of the usual layouts.

Reads DAPO-Math-17k, AIME, MATH and MATH-500, GSM8K and whatever has a problem column and an answer column (or a
worked solution with a box). A reference that the verifier cannot read is an error here, not a zero for every answer.
Repeated problems are dropped. What an agent sees of a problem is `whale_env.math`'s business.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import attrgetter
from typing import Any

from whale_env.arguments import check_whole, read_names
from whale_env.math.generator import TIERS, generate
from whale_env.math.verifier import UnparsableReferenceError, boxed_answer, check_reference
from whale_env.rows import DatasetError, Row, read_distinct, source_of
from whale_env.splits import Plan, split_of, text_key
from whale_env.types import Split

__all__ = ["TIERS", "Problem", "generated_problems", "load_problems", "read_problem"]

PER_TIER = 1000
"""Generated problems in each tier."""

_TEXT_COLUMNS = ("problem", "question", "prompt", "input")
_ANSWER_COLUMNS = ("answer", "final_answer", "ground_truth", "reference", "expected_answer", "target")
_SOLUTION_COLUMNS = ("solution", "generated_solution", "output")
_DAPO_HEAD = re.compile(
    r"\ASolve the following math problem step by step\. The last line of your response.*?\n\s*\n", re.DOTALL
)
_DAPO_TAIL = re.compile(r"\s*Remember to put your answer on its own line after \"Answer:\"\.\s*\Z")
_LEVEL = re.compile(r"(?:level\s*)?([1-5])", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Problem:
    r"""One problem.

    Attributes:
        id: Fingerprint of the text (`whale_env.splits.text_key`).
        text: The problem.
        answer: The reference, without a box. Kept out of ``repr``, so that no log shows it.
        split: Where it belongs.
        tier: ``"1"`` (easiest) to ``"5"``, or None where the data set does not say.
        topic: Subject, or an empty string.
        source: The data set it comes from.
    """

    id: str
    text: str
    answer: str = field(repr=False)
    split: Split
    tier: str | None = None
    topic: str = ""
    source: str = ""


def load_problems(
    plan: Plan = (), *, tiers: Iterable[str] | None = None, limit: int | None = None
) -> tuple[Problem, ...]:
    """Loads problems.

    Args:
        plan: Data sets and their splits (`whale_env.splits.plan_of`); empty takes the generated problems.
        tiers: Keep problems of these tiers.
        limit: Keep the first so many.

    Returns:
        Problems in the order of the data sets, without repetitions. A problem of a data set kept for testing is not
        taken from another one.

    Raises:
        DatasetError: A data set cannot be read, a row has no problem or no readable reference, or nothing is left.
        InputError: A filter makes no sense.
    """
    wanted = read_names("tiers", tiers, TIERS)
    check_whole(1, limit=limit)
    problems = read_distinct(plan, read_problem, attrgetter("answer")) if plan else list(generated_problems())
    kept = [problem for problem in problems if wanted is None or problem.tier in wanted][:limit]
    if not kept:
        have = sorted({problem.tier or "none" for problem in problems})
        raise DatasetError(
            f"none of {len(problems)} problems has tier {', '.join(sorted(wanted or ()))}; there are: {', '.join(have)}"
        )
    return tuple(kept)


def generated_problems(per_tier: int = PER_TIER, seed: int = 0) -> Iterator[Problem]:
    """Yields generated problems, tier by tier. Those that differ only in wording or order share a split."""
    for tier in TIERS:
        for made in generate(tier, per_tier, seed):
            split = split_of(text_key(made.kind))
            yield Problem(text_key(made.text), made.text, made.answer, split, tier, made.topic)


def read_problem(row: Row, where: str, splits: Sequence[Split]) -> Problem:
    """Reads one row of a data set.

    Args:
        row: The row.
        where: What to call it in an error.
        splits: The splits among which its data set is divided.

    Returns:
        The problem.

    Raises:
        DatasetError: It has no problem or no answer, or the verifier cannot read the answer.
    """
    columns = {str(name).lower(): value for name, value in row.items()}
    text = _problem_text(columns, where)
    answer = _reference(columns, where)
    try:
        _check(answer)
    except UnparsableReferenceError as error:
        raise DatasetError(f"{where}: {error}") from None
    key = text_key(text)
    level = _LEVEL.fullmatch(str(columns.get("tier", columns.get("level", ""))).strip())
    topic = next((columns[name] for name in ("topic", "subject", "type") if isinstance(columns.get(name), str)), "")
    return Problem(key, text, answer, split_of(key, splits), level.group(1) if level else None, topic, source_of(row))


@lru_cache(maxsize=1 << 15)
def _check(answer: str) -> None:
    check_reference(answer)


def _problem_text(columns: dict[str, Any], where: str) -> str:
    for name in _TEXT_COLUMNS:
        value = columns.get(name)
        if isinstance(value, (list, tuple)) and value and isinstance(value[-1], dict):
            value = next((message.get("content") for message in reversed(value) if message.get("role") == "user"), None)
        if isinstance(value, str) and value.strip():
            return _DAPO_TAIL.sub("", _DAPO_HEAD.sub("", value)).strip()
    raise DatasetError(f"{where} has no problem text in {', '.join(_TEXT_COLUMNS)}; its columns: {', '.join(columns)}")


def _reference(columns: dict[str, Any], where: str) -> str:
    model = columns.get("reward_model")
    given = [model.get("ground_truth")] if isinstance(model, dict) else []
    for value in (*given, *(columns.get(name) for name in _ANSWER_COLUMNS)):
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            continue
        text = str(int(value) if isinstance(value, float) and value.is_integer() else value).strip()
        if "####" in text:
            text = text.rpartition("####")[2].strip()
        boxed = boxed_answer(text)
        return text if boxed is None else boxed
    for name in _SOLUTION_COLUMNS:
        value = columns.get(name)
        if isinstance(value, str) and value.strip():
            # processed copies of DAPO-Math-17k keep the bare reference in this column
            boxed = boxed_answer(value)
            if boxed is not None or len(value) <= 60:
                return (boxed or value).strip()
    raise DatasetError(
        f"{where} has no reference answer in {', '.join(_ANSWER_COLUMNS)}; its columns: {', '.join(columns)}"
    )
