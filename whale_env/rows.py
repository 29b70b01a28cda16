"""Rows of data sets: JSON lines, JSON, Parquet, CSV, directories of them, and data sets of the Hugging Face hub.

Yields plain mappings and where each one stood, for error messages. What the columns mean is the domains' business
(`whale_env.math.problems`, `whale_env.searchqa.questions`). ``pyarrow`` and ``datasets`` are imported when needed.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from whale_env.errors import InputError
from whale_env.wording import did_you_mean

Row = Mapping[str, Any]

HUB: Mapping[str, str] = {
    "2wikimultihopqa": "RUC-NLPIR/FlashRAG_datasets:2wikimultihopqa@dev",
    "aime24": "HuggingFaceH4/aime_2024@train",
    "aime25": "math-ai/aime25@test",
    "bamboogle": "RUC-NLPIR/FlashRAG_datasets:bamboogle@test",
    "dapo-math-17k": "BytedTsinghua-SIA/DAPO-Math-17k@train",
    "gsm8k": "openai/gsm8k:main@train",
    "hotpotqa": "hotpotqa/hotpot_qa:distractor@validation",
    "math-500": "HuggingFaceH4/MATH-500@test",
    "musique": "RUC-NLPIR/FlashRAG_datasets:musique@dev",
    "nq-open": "google-research-datasets/nq_open@validation",
    "popqa": "akariasai/PopQA@test",
    "search-r1": "PeterJinGo/nq_hotpotqa_train@train",
    "triviaqa": "mandarjoshi/trivia_qa:rc.nocontext@validation",
}
"""Short names of well-known data sets → ``owner/name[:configuration][@split]`` on the hub."""

SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet", ".csv")
_HUB_NAME = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(?::(?P<config>[\w.-]+))?(?:@(?P<split>[\w.\[\]:%-]+))?")


class DatasetError(InputError):
    """A data set that cannot be read, or a row of it that makes no sense."""


def read_rows(source: str | Path) -> Iterator[tuple[str, Row]]:
    """Reads a data set.

    Args:
        source: A file (``.jsonl``, ``.json``, ``.parquet``, ``.csv``, the text ones also with ``.gz`` or ``.zst``), a
            directory of such files, a short name from `HUB`, or ``owner/name[:configuration][@split]``.

    Yields:
        Where the row stands (file and row number, from 1), and the row.

    Raises:
        DatasetError: There is no such source, it cannot be read, or it holds no row.
    """
    path = Path(source)
    empty = True
    try:
        for number, row in enumerate(_rows(str(source), path), 1):
            where = f"{source}, row {number}"
            if not isinstance(row, Mapping):
                raise DatasetError(f"{where} is {type(row).__name__}, not an object: {row!r:.80}")
            empty = False
            yield where, row
    except OSError as error:
        raise DatasetError(f"{source} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise DatasetError(f"{source} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    if empty:
        raise DatasetError(f"{source} holds no row")


def _rows(source: str, path: Path) -> Iterator[Any]:
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if _kind(file) is not None)
        if not files:
            raise DatasetError(f"the directory {source!r} holds no data file ({', '.join(SUFFIXES)})")
        for file in files:
            yield from _file(file)
    elif path.is_file():
        yield from _file(path)
    else:
        yield from _hub(source, path)


def _kind(path: Path) -> str | None:
    name = path.name.lower().removesuffix(".gz").removesuffix(".zst")
    return next((suffix for suffix in SUFFIXES if name.endswith(suffix)), None)


def _file(path: Path) -> Iterator[Any]:
    match _kind(path):
        case ".parquet":
            yield from _parquet(path)
        case ".json":
            with _text(path) as text:
                yield from _json(path, text)
        case ".csv":
            with _text(path) as text:
                yield from csv.DictReader(text)
        case ".jsonl" | ".ndjson":
            with _text(path) as text:
                yield from _json_lines(path, text)
        case _:
            raise DatasetError(f"{path} has an unknown ending {path.suffix!r}; known: {', '.join(SUFFIXES)}")


def _text(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    if path.suffix == ".zst":
        import zstandard

        return io.TextIOWrapper(zstandard.open(path, "rb"), encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _json_lines(path: Path, lines: Iterable[str]) -> Iterator[Any]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DatasetError(f"{path}, line {number} is not JSON: {error}") from None


def _json(path: Path, text: IO[str]) -> Iterator[Any]:
    content = text.read()
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        lines = content.splitlines()
        if len(lines) < 2 or not lines[0].rstrip().endswith("}"):
            raise DatasetError(f"{path} is not JSON: {error}") from None
        yield from _json_lines(path, lines)
        return
    if isinstance(data, Mapping):
        data = next((data[name] for name in ("data", "Data", "rows") if isinstance(data.get(name), list)), [data])
    yield from data if isinstance(data, list) else [data]


def _parquet(path: Path) -> Iterator[Any]:
    try:
        parquet: Any = import_module("pyarrow.parquet")
    except ModuleNotFoundError:
        raise DatasetError(f"reading {path} needs pyarrow: pip install pyarrow, or convert it to .jsonl") from None
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches():
                yield from batch.to_pylist()
    except (ValueError, OSError) as error:
        raise DatasetError(f"{path} is not a Parquet file: {error}") from None


def _hub(source: str, path: Path) -> Iterator[Any]:
    match = _HUB_NAME.fullmatch(HUB.get(source.lower(), source))
    if match is None or _kind(path) is not None:
        here = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        hint = did_you_mean(path.name, [*here, *HUB])
        raise DatasetError(
            f"no data set {source!r}: not a file, nor owner/name on the hub.{hint} Known: {', '.join(HUB)}"
        )
    try:
        datasets: Any = import_module("datasets")
    except ModuleNotFoundError:
        why = f"{source!r} is not a file; fetching it by name needs the datasets package"
        raise DatasetError(f"{why}: pip install datasets, or give the path of a downloaded file") from None
    try:
        found = datasets.load_dataset(match["name"], match["config"], split=match["split"] or "train")
    except Exception as error:  # the library raises many kinds, for the network, names, configurations and splits
        raise DatasetError(f"cannot fetch {match[0]!r}: {type(error).__name__}: {error}") from error
    yield from found
