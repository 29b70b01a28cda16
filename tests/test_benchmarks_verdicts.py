"""The retrieval and verifier benchmarks: what they draw, compare and report; not how fast this machine is."""

from __future__ import annotations

import json
import random
from itertools import islice
from pathlib import Path

import pytest

from benchmarks import retrieval, verifiers
from whale_env.chess.puzzles import load_puzzles
from whale_env.retrieval import Passage
from whale_env.rows import DatasetError
from whale_env.searchqa.questions import load_questions

PASSAGES = [
    Passage(str(n), f"T{n}", f"the {word} tower stands by the river") for n, word in enumerate(("old", "grand"))
]


def test_each_latex_kind_has_a_right_and_a_wrong_answer() -> None:
    rng = random.Random(7)
    for build in verifiers.LATEX:
        reference, equal, different = build(rng)
        assert verifiers.math_equal(reference, equal), build
        assert not verifiers.math_equal(reference, different), build


def test_cases_are_mixed_and_judged_as_expected() -> None:
    rng = random.Random(1)
    for cases in (
        verifiers.chess_cases(rng, load_puzzles()[:200]),
        verifiers.short_answer_cases(rng, load_questions()),
        verifiers.problem_cases(rng),
    ):
        some = list(islice(cases, 40))
        assert [case.verdict() for case in some] == [case.expected for case in some]
        assert len({case.expected for case in some}) >= 2


def test_a_wrong_verdict_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    cases = [verifiers.Case(lambda: True, True, "good"), verifiers.Case(lambda: True, False, "bad")]
    rate = verifiers.measured("kind", 10.0, [cases, cases])
    assert (rate.wrong, rate.cases) == (2, 2)
    assert "WRONG: True instead of False: bad" in capsys.readouterr().err


def test_phrases_come_from_the_passages_by_seed() -> None:
    found = retrieval.phrases(PASSAGES, 20, 3)
    assert found == retrieval.phrases(PASSAGES, 20, 3) != retrieval.phrases(PASSAGES, 20, 4)
    assert all(any(query.text in passage.text for passage in PASSAGES) for query in found)
    with pytest.raises(ValueError, match="none of 1 passages has a word"):
        retrieval.phrases([Passage("1", "", "1 2")], 1, 0)


def test_query_files(tmp_path: Path) -> None:
    lines = tmp_path / "q.txt"
    lines.write_text("one\n\n two \n")
    assert [query.text for query in retrieval.read_queries(str(lines))] == ["one", "two"]
    rows = tmp_path / "q.jsonl"
    rows.write_text('{"question": "where?", "gold_docs": ["a", "b"]}\n')
    assert retrieval.read_queries(str(rows)) == [retrieval.Query("where?", frozenset({"a", "b"}))]
    rows.write_text('{"asked": "where?"}\n')
    with pytest.raises(DatasetError, match="row 1 has no query in question, query, text; its columns: asked"):
        retrieval.read_queries(str(rows))


def test_agreement_and_recall() -> None:
    one, two = [["a-1", "b"], ["c"], []], [["b", "a-1"], ["d"], []]
    found = retrieval.agreement("x", "y", one, two)
    assert (found.overlap, found.same_first, found.same_set) == pytest.approx((2 / 3, 1 / 3, 2 / 3))
    queries = [retrieval.Query("q", frozenset({"a", "z"})), retrieval.Query("r"), retrieval.Query("s")]
    assert retrieval.recall(queries, one) == 0.5
    assert retrieval.recall(queries[1:], one[1:]) is None


def test_a_missing_engine_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(retrieval, "_lucene_missing", lambda: "pip install -e '.[search]'")
    corpus = tmp_path / "c.jsonl"
    corpus.write_text("".join(json.dumps(passage.to_json()) + "\n" for passage in PASSAGES))
    out = tmp_path / "out.json"
    arguments = ["--corpus", str(corpus), "--queries", "5", "--rounds", "1", "--json", str(out)]
    assert retrieval.main(arguments) == 0
    printed = capsys.readouterr().out
    assert "pyserini   not installed: pip install -e '.[search]'" in printed
    assert [row["engine"] for row in json.loads(out.read_text())["engines"]] == ["bm25s"]
    assert retrieval.main(["--corpus", str(tmp_path / "no.jsonl")]) == 2
    assert "error: no data set" in capsys.readouterr().err
