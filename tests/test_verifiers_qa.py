"""Short-answer verdicts: the default and the SQuAD rule, tag extraction, totality and speed on long text."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whale_env.verifiers import answer_matches, normalised, squad_normalised, tagged_answer

SHARED = Path(os.environ.get("WHALE_SHARED", Path(__file__).parents[2] / "shared"))

# answer, alias, default verdict, SQuAD verdict
PAIRS = [
    ("the eiffel tower", "The Eiffel Tower", True, True),
    ("Eiffel Tower", "The Eiffel Tower", True, True),
    ("Rolling Stones, The", "The Rolling Stones", True, True),
    ("J.R.R. Tolkien", "jrr tolkien", True, True),
    ("Tolkien John", "John Tolkien", False, False),
    ("John", "John Tolkien", False, False),
    ("not John", "John", False, False),
    ("John or Paul", "John", False, False),
    ("  John \n", "John", True, True),
    ("June 4 1989", "June 4, 1989", True, True),
    ("P&O", "PO", True, True),
    ("salt & pepper", "salt and pepper", False, False),
    (".uk", "uk", True, True),
    ("40%", "40", True, True),
    ("$40", "40", True, True),
    ("€40", "40", True, False),
    ("(2.5)", "2.5", True, True),
    ("40 km", "40 kilometres", False, False),
    ("seven", "7", False, False),
    ("Zürich", "Zurich", False, False),
    ("zürich", "Zürich", True, True),
    ("Zu\u0308rich", "Zürich", True, False),
    ("FUSS", "Fuß", False, False),
    ("東京", "東京", True, True),
    ("🚀", "🚀", True, True),
    ("Theo", "o", False, False),
    # numbers
    ("7.0", "7", True, False),
    ("7.10", "7.1", True, False),
    ("7.50 million", "7.5 million", True, False),
    ("2.718", "2718", False, True),
    ("2.718", "2,718", False, True),
    ("1,250,000", "1250000", True, True),
    ("3.5 million", "35 million", False, True),
    ("-12", "12", False, True),
    ("\u221212", "-12", True, False),
    (".5", "5", False, True),
    (".5", "0.5", True, False),
    ("007", "7", False, False),
    ("7.", "7", True, True),
    ("1.2.3", "123", True, True),
    ("1/2", "12", False, True),
    ("3-1", "31", False, True),
    ("3-1", "3\u20131", True, False),
    ("3:1", "3-1", True, True),
    ("co-op", "coop", True, True),
    ("12-storey", "12 storey", False, False),
    # typography
    ("1914\u20131918", "1914-1918", True, False),
    ("the \u201960s", "The '60s", True, False),
    ("1960\u2019s", "1960s", True, False),
    ("\u201cMoby Dick\u201d", "Moby Dick", True, False),
    ("東京。", "東京", True, False),
    ("Moby\u00a0Dick", "Moby Dick", True, True),
    # letters that are no articles, signs that are no punctuation
    ("hepatitis A", "hepatitis", False, True),
    ("A", "A", True, True),
    ("a", "The A", True, True),
    ("The The", "The The", True, True),
    ("the a RIGHT an ANSWER the an a", "right answer", True, True),
    ("once upon A time", "Once Upon a Time", True, True),
    ("an apple", "apple", True, True),
    ("F#", "F", False, True),
    ("C++", "C", False, True),
    ("C++", "c++", True, True),
    # nothing matches nothing
    ("", "A", False, True),
    ("", "", False, True),
    ("?!", "...", False, True),
    ("", "Rome", False, False),
]


@pytest.mark.parametrize(("answer", "alias", "default", "squad"), PAIRS)
def test_one_alias(answer: str, alias: str, default: bool, squad: bool) -> None:
    assert answer_matches([alias], answer) is default
    assert answer_matches([alias], answer, strict_squad=True) is squad


def test_any_alias_will_do_and_none_is_no_match() -> None:
    assert answer_matches(["Holland", "The Netherlands"], "netherlands")
    assert not answer_matches(["Holland", "The Netherlands"], "Holland and the Netherlands")
    assert not answer_matches([], "anything")
    assert not answer_matches([""], "anything")


def test_a_lone_string_is_one_alias_not_letters() -> None:
    assert answer_matches("Rome", "rome")
    assert not answer_matches("Rome", "R")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<answer>Rome</answer>", "Rome"),
        ("<answer> Rome\n</answer> done", "Rome"),
        ("<answer>Oslo</answer> no, <answer>Rome</answer>", "Rome"),
        ("<answer>Rome</answer> or <answer>Oslo</answer>", "Oslo"),
        ("<answer>Rome</answer> <answer>", "Rome"),
        ("<answer>Rome</answer> </answer>", "Rome"),
        ("the tag <answer> opens; <answer>Rome</answer>", "Rome"),
        ("<answer>a <answer>Rome</answer></answer>", "Rome"),
        ("<ANSWER>Rome</ANSWER>", "Rome"),
        ("<answer>1, 2</answer>", "1, 2"),
        ("<answer></answer>", ""),
        ("<answer>Rome", None),
        ("Rome</answer>", None),
        ("</answer>Rome<answer>", None),
        ("<final>Rome</final>", None),
        ("Rome", None),
        ("", None),
        ("<think><answer>Oslo</answer></think>", None),
        ("<think>or <answer>Oslo</answer>?</think> <answer>Rome</answer>", "Rome"),
        ("<answer>Oslo</answer></think><answer>Rome</answer>", "Rome"),
        ("<answer>Rome</answer><think>hm <answer>Oslo</answer>", "Rome"),
        ("<information>see <answer>Oslo</answer></information> well", None),
        ("<answer>Rome</answer><information><answer>Oslo</answer></information>", "Rome"),
        ("<answer>Rome</answer><tool_response>cut <answer>Oslo</answer>", "Rome"),
        ("<information> <answer> </information><answer>Rome</answer>", "Rome"),
    ],
)
def test_tagged_answer(text: str, expected: str | None) -> None:
    assert tagged_answer(text) == expected


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.text(max_size=80), st.text(max_size=80))
def test_total_and_reflexive(one: str, two: str) -> None:
    assert answer_matches([one], two) == answer_matches([two], one)
    assert answer_matches([one], one) == bool(normalised(one))
    assert answer_matches([one], two, strict_squad=True) == (squad_normalised(one) == squad_normalised(two))
    tagged_answer(f"<answer>{one}</answer>{two}")


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text(max_size=80))
def test_normal_form_is_stable_in_case_and_spacing(text: str) -> None:
    assert normalised(f"  {text} ") == normalised(text)


@pytest.mark.parametrize(
    "piece", ["a ", "!", "<answer>", "</answer>", "<think>", "1,", "1.", "-", "<information>", "\u2019", "C#"]
)
def test_long_text_takes_linear_time(piece: str) -> None:
    text = piece * 100_000
    started = time.process_time()
    answer_matches(["Rome"], text)
    tagged_answer(text)
    assert time.process_time() - started < 2


def _shared_rows() -> list[dict[str, object]]:
    path = SHARED / "cases" / "qa_em.jsonl"
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").strip("\n").split("\n")]


@pytest.mark.skipif(not _shared_rows(), reason="no shared cases here")
def test_shared_cases() -> None:
    wrong = []
    for row in _shared_rows():
        golds = [str(gold) for gold in row["golds"]]  # type: ignore[attr-defined]
        if row["kind"] == "em":
            prediction = str(row["prediction"])
            verdicts = answer_matches(golds, prediction), answer_matches(golds, prediction, strict_squad=True)
            if verdicts != (row["expected_sensible"], row["expected_squad_em"]):
                wrong.append((row["id"], verdicts))
        else:
            found = tagged_answer(str(row["text"]))
            if (
                found != row.get("expected_extracted")
                or (found is not None and answer_matches(golds, found)) != row["expected_sensible"]
            ):
                wrong.append((row["id"], found))
    assert not wrong
