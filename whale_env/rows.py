"""Rows of data sets: JSON lines, JSON, Parquet, CSV, directories of them, and data sets of the Hugging Face hub.

Yields plain mappings and where each one stood, for error messages. What the columns mean is the domains' business
(`whale_env.math.problems`, `whale_env.searchqa.questions`). ``pyarrow`` and ``datasets`` are imported when needed.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from typing import Any, Protocol, TypeVar

from whale_env.errors import InputError
from whale_env.splits import Plan
from whale_env.text_files import read_lines
from whale_env.types import Split
from whale_env.wording import did_you_mean

_log = logging.getLogger(__name__)

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
    if empty:
        raise DatasetError(f"{source} holds no row")


class Item(Protocol):
    """What a row becomes: something with an id that says whether two are the same."""

    @property
    def id(self) -> str:
        """Fingerprint of what is asked."""
        ...


T = TypeVar("T", bound=Item)


def read_distinct(
    plan: Plan, read: Callable[[Row, str, Sequence[Split]], T | None], answer: Callable[[T], object]
) -> list[T]:
    """Reads several data sets, those kept for testing first, so that what they hold stays out of the others.

    Args:
        plan: Data sets and their splits.
        read: Makes an item of a row, where it stands and the splits of its data set; None leaves the row out.
        answer: The reference of an item: a repetition with another one is told as a warning.

    Returns:
        The items in the order of the data sets, each once.

    Raises:
        DatasetError: As `read_rows` and ``read``.
    """
    seen: dict[str, T] = {}
    kept: dict[int, list[T]] = {index: [] for index in range(len(plan))}
    for index in sorted(kept, key=lambda index: "train" in plan[index][1]):
        source, splits = plan[index]
        for where, row in read_rows(source):
            item = read(with_source(row, source), where, splits)
            if item is None:
                continue
            first = seen.setdefault(item.id, item)
            if first is item:
                kept[index].append(item)
            elif answer(first) != answer(item):
                _log.warning("%s repeats a task with another reference answer; the first one stays", where)
    return [item for items in kept.values() for item in items]


def source_of(row: Row) -> str:
    """Returns the name of the data set that `read_distinct` wrote into a row, or an empty string."""
    source = row.get("source", "")
    return source if isinstance(source, str) else ""


def with_source(row: Row, name: str) -> Row:
    """Returns a row that names the data set it comes from: a mixture's own word for it, else the data set's name."""
    said = next((row[key] for key in ("source", "data_source") if isinstance(row.get(key), str) and row[key]), None)
    path = Path(name)
    stem = path.name if name.lower() in HUB or not path.exists() else path.name.partition(".")[0]
    return {**row, "source": said or stem}


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
            yield from _json(path, "".join(read_lines(path, DatasetError)))
        case ".csv":
            yield from _csv(path)
        case ".jsonl" | ".ndjson":
            yield from _json_lines(path, read_lines(path, DatasetError))
        case _:
            raise DatasetError(f"{path} has an unknown ending {path.suffix!r}; known: {', '.join(SUFFIXES)}")


def _json_lines(path: Path, lines: Iterable[str]) -> Iterator[Any]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield json.loads(line)
            except (ValueError, RecursionError) as error:
                cut = "" if line.endswith("\n") else "; the file ends there: is it cut off?"
                raise DatasetError(f"{path}, line {number} is not JSON: {error}{cut}") from None


def _json(path: Path, content: str) -> Iterator[Any]:
    try:
        data = json.loads(content)
    except (ValueError, RecursionError) as error:
        # JSON lines under the wrong name; only line feeds part them, since strings may hold every other separator
        first, _, rest = content.partition("\n")
        if not rest.strip() or not first.rstrip().endswith("}"):
            cut = isinstance(error, json.JSONDecodeError) and error.pos >= len(content.rstrip())
            why = f"{error}; the file ends there: is it cut off?" if cut else str(error)
            raise DatasetError(f"{path} is not JSON: {why}") from None
        yield from _json_lines(path, io.StringIO(content, newline="\n"))
        return
    if isinstance(data, Mapping):
        data = next((data[name] for name in ("data", "Data", "rows") if isinstance(data.get(name), list)), [data])
    yield from data if isinstance(data, list) else [data]


def _csv(path: Path) -> Iterator[Row]:
    last = ""

    def lines() -> Iterator[str]:
        nonlocal last
        for line in read_lines(path, DatasetError):
            last = line
            yield line

    reader = csv.reader(lines(), strict=True)  # strict: a quote that stays open is an error
    names: list[str] = []
    try:
        for cells in reader:
            if not names:
                names = cells
            elif cells:
                if len(cells) < len(names) and not last.endswith(("\n", "\r")):
                    raise DatasetError(
                        f"{path}, line {reader.line_num} has {len(cells)} of {len(names)} columns, and the file ends "
                        "there: is it cut off?"
                    )
                yield dict(zip_longest(names, cells[: len(names)]))
    except csv.Error as error:
        raise DatasetError(
            f"{path}, line {reader.line_num} is not CSV: {error}. Mend the line, or use .jsonl."
        ) from None


def _parquet(path: Path) -> Iterator[Any]:
    try:
        arrow: Any = import_module("pyarrow")
        parquet: Any = import_module("pyarrow.parquet")
    except ModuleNotFoundError:
        raise DatasetError(f"reading {path} needs pyarrow: pip install pyarrow, or convert it to .jsonl") from None
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches():
                yield from batch.to_pylist()
    except (ValueError, OSError, arrow.ArrowException) as error:
        why = " ".join(str(error).split())[:200]
        raise DatasetError(f"{path} is not a Parquet file, or is damaged: {why}. Fetch or write it again.") from None


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
