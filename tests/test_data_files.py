"""Data files: a cut or damaged one is a clear error and never a shorter data set; a changed one is read again."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

import whale_env
from whale_env import datasets
from whale_env.chess.puzzles import PuzzleFileError, load_puzzles
from whale_env.errors import InputError
from whale_env.retrieval import opened, read_corpus
from whale_env.rows import DatasetError, read_rows
from whale_env.text_files import read_lines, stamp

COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}
ROWS = [{"problem": f"What is {n} + {n * 7919}?", "answer": str(n * 7920)} for n in range(300)]
HEADER = "PuzzleId,FEN,Moves,Rating,RatingDeviation,Popularity,NbPlays,Themes,GameUrl\n"
PUZZLE = "00sHx,q3k1nr/1pp1nQpp/3p4/1P2p3/4P3/B1PP1b2/B5PP/5K2 b k - 0 17,e8d7 a2e6 d7d8 f7f8,1760,80,83,72,mate,u\n"


def json_lines(rows: list[dict[str, str]] = ROWS) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def csv_text() -> bytes:
    return ("problem,answer\n" + "".join(f"{row['problem']},{row['answer']}\n" for row in ROWS)).encode()


def count(path: Path) -> int:
    return sum(1 for _ in read_rows(path))


@pytest.mark.parametrize("ending", [".gz", ".zst"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.json"])
def test_a_cut_compressed_file_is_an_error_wherever_it_is_cut(name: str, ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}{ending}"
    plain = {"a.jsonl": json_lines(), "a.csv": csv_text(), "a.json": json.dumps(ROWS).encode()}[name]
    whole = COMPRESS[ending](plain)
    path.write_bytes(whole)
    assert count(path) == len(ROWS)
    for size in [*range(0, 40), *range(40, len(whole), max(1, len(whole) // 40)), *range(len(whole) - 12, len(whole))]:
        path.write_bytes(whole[:size])
        with pytest.raises(DatasetError, match=f"{path}.* damaged") as refused:
            count(path)
        assert "\n" not in str(refused.value)


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_cut_chess_file_is_an_error(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"puzzles.csv{ending}"
    whole = COMPRESS[ending]((HEADER + PUZZLE).encode())
    path.write_bytes(whole)
    assert len(load_puzzles(path)) == 1
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(PuzzleFileError, match=f"{path}.* damaged"):
            load_puzzles(path)


def test_a_file_of_several_frames_is_read_whole_and_cut_in_any_of_them_refused(tmp_path: Path) -> None:
    skipped = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"  # a frame without content, as parallel writers put first
    for ending, first in ((".zst", skipped), (".gz", b"")):
        path, compress = tmp_path / f"a.jsonl{ending}", COMPRESS[ending]
        one, two = compress(json_lines(ROWS[:200])), compress(json_lines(ROWS[200:]))
        path.write_bytes(first + one + two)
        assert count(path) == len(ROWS)
        for whole in (first + one + two[:-9], first + one[:-9]):
            path.write_bytes(whole)
            with pytest.raises(DatasetError, match="ends in the middle of its data"):
                count(path)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.ndjson"])
def test_plain_text_cut_in_its_last_line(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(json_lines()[:-12])
    with pytest.raises(DatasetError, match=f"{path}, line 300 is not JSON: .*cut off"):
        count(path)
    path.write_bytes(json_lines()[:-1])  # a missing last line feed is no cut
    assert count(path) == len(ROWS)


def test_a_cut_json_document_and_csv(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(ROWS)[:-12])
    with pytest.raises(DatasetError, match=f"{path} is not JSON: .*"):
        count(path)
    path = tmp_path / "a.csv"
    path.write_text("problem,answer,level\nq,1,2\nr,2")
    with pytest.raises(DatasetError, match=f"{path}, line 3 has 2 of 3 columns.*cut off"):
        count(path)
    path.write_text('problem,answer\nq,1\n"r, and so on')
    with pytest.raises(DatasetError, match=f"{path}, line 3 is not CSV: unexpected end of data"):
        count(path)
    path = tmp_path / "puzzles.csv"
    path.write_text(HEADER + PUZZLE + PUZZLE.replace("00sHx", "other").replace(" b k", " w k").partition(",1760")[0])
    with pytest.raises(PuzzleFileError, match=f"{path}, line 3 has 3 columns where others have 9.*cut off"):
        load_puzzles(path)


def test_a_cut_or_damaged_parquet_file(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(pytest.importorskip("pyarrow").Table.from_pylist(ROWS), path)
    whole = path.read_bytes()
    assert count(path) == len(ROWS)
    middle = len(whole) // 3
    for data in (b"", whole[:4], whole[:middle], whole[:-1], whole[:middle] + b"\xff" * 400 + whole[middle + 400 :]):
        path.write_bytes(data)
        with pytest.raises(DatasetError, match=f"{path} is not a Parquet file, or is damaged") as refused:
            count(path)
        assert "\n" not in str(refused.value)


BAD = {
    "not UTF-8": (b'{"problem": "caf\xe9", "answer": "1"}\n', "line 2 is not UTF-8 text.*Save the file as UTF-8"),
    "NUL": (b'{"problem": "a\0", "answer": "1"}\n', "line 2 holds a NUL byte.*UTF-8"),
    "NUL block": (b"\0" * 4096, "line 2 holds a NUL byte"),
}


@pytest.mark.parametrize("ending", sorted(COMPRESS))
@pytest.mark.parametrize("case", sorted(BAD))
@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv"])
def test_bytes_that_are_no_text(case: str, name: str, ending: str, tmp_path: Path) -> None:
    data, why = BAD[case]
    path = tmp_path / f"{name}{ending}"
    path.write_bytes(COMPRESS[ending](json_lines(ROWS[:1]) + data))
    with pytest.raises(DatasetError, match=f"{path}, {why}"):
        count(path)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_other_encodings_are_named(name: str, encoding: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(json_lines().decode().encode(encoding))
    with pytest.raises(DatasetError, match=f"{path}, line 1 .*UTF-8"):
        count(path)
    with pytest.raises(PuzzleFileError, match=f"{path}, line 1 .*UTF-8"):
        load_puzzles(path)


def test_damaged_compressed_data_and_wrong_endings(tmp_path: Path) -> None:
    for ending in (".gz", ".zst"):
        path = tmp_path / f"a.jsonl{ending}"
        whole = COMPRESS[ending](json_lines())
        for data in (json_lines(), b"\x00\x01\x02\x03rubbish", whole[:60] + b"\xff" * 40 + whole[100:]):
            path.write_bytes(data)
            with pytest.raises(DatasetError, match=f"{path} is a damaged (gzip|Zstandard) file"):
                count(path)
    for ending in (".gz", ".zst"):  # compressed, though its name does not say so
        path = tmp_path / "b.jsonl"
        path.write_bytes(COMPRESS[ending](json_lines()))
        assert count(path) == len(ROWS)


def test_csv_faults_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for text in ('problem,answer\n"q" or so,1\n', "problem,answer\n" + "q" * 200_000 + ",1\n"):
        path.write_text(text)
        with pytest.raises(DatasetError, match=f"{path}, line 2 is not CSV"):
            count(path)
        path.write_text(HEADER + text.partition("\n")[2])
        with pytest.raises(PuzzleFileError, match=f"{path}, line 2 is not CSV"):
            load_puzzles(path)


def test_the_faults_reach_a_caller_of_make_as_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(COMPRESS[".zst"](json_lines())[:-30])
    for domain, options in (
        ("math", {"source": path}),
        ("searchqa", {"source": path, "retriever": "none"}),
        ("searchqa", {"retriever": f"bm25:{path}"}),
        ("chess", {"source": path}),
    ):
        with pytest.raises(ValueError, match=f"{path} is a damaged Zstandard file"):
            whale_env.make(domain, **options)
    with pytest.raises(DatasetError, match="is a damaged Zstandard file"):
        list(read_corpus(path))


# Lines


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e"])
@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.csv"])
def test_only_line_feeds_and_returns_end_a_line(name: str, separator: str, tmp_path: Path) -> None:
    rows = [{"problem": f"one{separator}two", "answer": "1"}, {"problem": f"three{separator}", "answer": "2"}]
    path = tmp_path / name
    if name == "a.csv":
        text = "problem,answer\n" + "".join(f"{row['problem']},{row['answer']}\n" for row in rows)
    elif separator >= "\x7f":
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    else:
        text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(text, encoding="utf-8", newline="")
    assert [row for _, row in read_rows(path)] == rows


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_line_ends_and_byte_order_marks(end: str, mark: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(mark + 'problem,answer\n"two\nlines",1\nq,2\n'.replace("\n", end), encoding="utf-8", newline="")
    assert [row for _, row in read_rows(path)] == [
        {"problem": f"two{end}lines", "answer": "1"},
        {"problem": "q", "answer": "2"},
    ]
    path = tmp_path / "a.jsonl"
    path.write_text(mark + json_lines().decode().replace("\n", end), encoding="utf-8", newline="")
    assert count(path) == len(ROWS)


def test_lines_longer_than_a_block(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    lines = ["ä" * 200_000 + "\n", "\n", "b" * 131_072 + "\n", "c" * 131_071 + "\n", "end"]
    for ending, compress in COMPRESS.items():
        file = path.with_suffix(f".txt{ending}")
        file.write_bytes(compress("".join(lines).encode()))
        assert list(read_lines(file, InputError)) == lines


# Changed files


def write_math(path: Path, value: int) -> None:
    path.write_bytes(json_lines([{"problem": "What is it?", "answer": str(value)}]))


def rewards(path: Path) -> Iterator[tuple[int, float]]:
    for value in (1, 2, 3):
        env = whale_env.make("math", source=path)
        (task,) = (task.id for split in ("train", "search", "test") for task in env.unwrapped.domain.tasks(split))  # type: ignore[attr-defined]
        env.reset(seed=0, options={"task": task})
        step: Any = env.step(whale_env.ToolCall("answer", {"text": rf"\boxed{{{value}}}"}))
        yield value, step[1]


def test_a_changed_data_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for right in (1, 2, 3, 1):  # the same size each time, and at once
        write_math(path, right)
        assert dict(rewards(path)) == {value: float(value == right) for value in (1, 2, 3)}
    other = tmp_path / "b.jsonl"
    write_math(other, 2)
    other.replace(path)
    assert dict(rewards(path))[2] == 1.0
    path.unlink()
    with pytest.raises(DatasetError):
        whale_env.make("math", source=path)


def test_a_changed_directory_corpus_and_puzzle_file_are_read_again(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    folder.mkdir()
    write_math(folder / "a.jsonl", 1)
    assert len(datasets.load(folder, "math")) == 1
    (folder / "b.jsonl").write_bytes(json_lines(ROWS[:4]))
    assert len(datasets.load(folder, "math")) == 5
    corpus = tmp_path / "corpus.jsonl"
    for word in ("red", "tan"):
        corpus.write_text(json.dumps({"id": "1", "text": f"a {word} fox"}) + "\n")
        retriever = opened(f"bm25:{corpus}")
        assert opened(f"bm25:{corpus}") is retriever
        assert [passage.text for passage in retriever.search("fox", 1)] == [f"a {word} fox"]
    puzzles = tmp_path / "puzzles.csv"
    for name in ("00sHx", "11sHx"):
        puzzles.write_text(HEADER + PUZZLE.replace("00sHx", name))
        assert [task.id for task in datasets.load(puzzles, "chess")] == [name]


def test_stamps(tmp_path: Path) -> None:
    path = tmp_path / "a"
    assert stamp(path) == stamp("gsm8k") == stamp("") == (None,)
    path.write_text("one")
    first = stamp(path)
    assert first == stamp(path) != (None,)
    path.write_text("two")
    assert stamp(path) != first
    hash(stamp(path, tmp_path))
