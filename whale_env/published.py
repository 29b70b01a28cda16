"""The published data sets, fetched by name and split as in the paper (arXiv 2609.00196); see `get`.

Draws depend on the seed and on what is asked alone, not on the order of a file. The splits are written as files that
``--env-args '{"source": {"train": …, "search": …, "test": …}}'`` takes, beside a manifest with counts and checksums.
"""

from __future__ import annotations

import csv
import hashlib
import heapq
import io
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import zstandard

from whale_env.chess.puzzles import puzzle_of, rows_of
from whale_env.errors import InputError
from whale_env.math.problems import read_problem
from whale_env.rows import DatasetError, Row, read_rows, with_source
from whale_env.searchqa.questions import read_question
from whale_env.slices import drawn
from whale_env.types import SPLITS, Split
from whale_env.wording import did_you_mean

SEED = 42
LICHESS = "https://database.lichess.org/lichess_db_puzzle.csv.zst"
PLIES = range(1, 10)
"""Plies of a chess solution, from the solver's first move: 1 to 9."""
LEAST = 0.9
"""Share of the published training size that must be there: published copies repeat themselves to various extents."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a domain's splits are made.

    Attributes:
        pool: Data set that train and search, and test where ``tests`` is empty, are drawn from.
        tests: Data sets that are the test split, whole.
        sizes: Tasks to draw for each split; the test split of whole data sets has none.
    """

    pool: str
    tests: tuple[str, ...]
    sizes: Mapping[Split, int]


RECIPES: Mapping[str, Recipe] = {
    "chess": Recipe("lichess", (), {"test": 256, "search": 256, "train": 16_384}),
    "math": Recipe("dapo-math-17k", ("aime24", "aime25"), {"search": 256, "train": 17_917}),
    "searchqa": Recipe(
        "search-r1",
        ("nq-open", "triviaqa", "popqa", "hotpotqa", "2wikimultihopqa", "musique", "bamboogle"),
        {"search": 256, "train": 18_946},
    ),
}

Record: TypeAlias = "tuple[str, str, dict[str, Any]]"
"""Key of what is asked, source, and the row that is written."""


def get(domain: str, out: Path, files: Mapping[str, str] | None = None, seed: int = SEED) -> dict[str, Any]:
    """Fetches and splits a domain's published data.

    Args:
        domain: ``chess``, ``math`` or ``searchqa``.
        out: Folder for ``train``, ``search``, ``test`` and ``manifest.json``.
        files: Copies that are here already, by the names in `RECIPES`; the others are fetched.
        seed: Seed of the draws.

    Returns:
        The manifest. A folder that holds it already, with its files unharmed, stays as it is.

    Raises:
        DatasetError: A data set cannot be fetched or read, or is too small.
        InputError: An unknown domain or name, or the folder cannot be written.
    """
    if domain not in RECIPES:
        raise InputError(f"no published data of {domain!r}.{did_you_mean(domain, RECIPES)} Known: {', '.join(RECIPES)}")
    recipe, given = RECIPES[domain], dict(files or {})
    names = (recipe.pool, *recipe.tests)
    for name in given:
        if name not in names:
            raise InputError(f"{domain} uses no {name!r}.{did_you_mean(name, names)} Known: {', '.join(names)}")
    if (done := _present(out)) and done["domain"] == domain and done["seed"] == seed:
        return done
    try:
        out.mkdir(parents=True, exist_ok=True)
        return _made(domain, out, given, seed)
    except OSError as error:
        raise InputError(f"cannot write to {out}: {error.strerror or error}") from error


def _made(domain: str, out: Path, given: Mapping[str, str], seed: int) -> dict[str, Any]:
    recipe = RECIPES[domain]
    refused = 0

    def records(name: str) -> Iterator[Record]:
        nonlocal refused
        for record in (
            _chess(_lichess(out, given.get(name)), seed) if domain == "chess" else _texts(domain, name, given)
        ):
            if record is None:
                refused += 1
            else:
                yield record

    seen: set[str] = set()
    splits: dict[Split, Sequence[Record]] = {"train": (), "search": (), "test": ()}
    if recipe.tests:
        splits["test"] = [record for name in recipe.tests for record in _new(records(name), seen)]
    pool = list(_new(records(recipe.pool), seen))
    rest = drawn(pool, len(pool), seed, lambda record: record[0], lambda record: record[1])
    for split, size in recipe.sizes.items():
        splits[split], rest = rest[:size], rest[size:]
        least = size * LEAST if split == "train" else size
        if len(splits[split]) < least:
            raise DatasetError(
                f"{recipe.pool} has {len(pool)} distinct tasks that can be read; {domain} needs "
                f"{sum(recipe.sizes.values())}. Is the copy complete?"
            )
    _check_disjoint(splits)
    ending = ".csv.zst" if domain == "chess" else ".jsonl.zst"
    told: dict[str, Any] = {}
    for split in SPLITS:
        content = _packed(domain, [row for _, _, row in splits[split]])
        name = split + ending
        _replace(out / name, content)
        digest = hashlib.sha256(content).hexdigest()
        told[split] = {"file": name, "tasks": len(splits[split]), "sha256": digest, "sources": _counts(splits[split])}
    manifest = {"domain": domain, "seed": seed, "refused_rows": refused, "splits": told}
    _replace(out / MANIFEST, (json.dumps(manifest, indent=2) + "\n").encode())
    return manifest


MANIFEST = "manifest.json"


def source_of_folder(out: Path) -> dict[str, str]:
    """Returns the environment's ``source`` argument for a folder that `get` wrote."""
    told = json.loads((out / MANIFEST).read_text("utf-8"))
    return {split: str(out / facts["file"]) for split, facts in told["splits"].items()}


def _present(out: Path) -> dict[str, Any] | None:
    try:
        manifest: dict[str, Any] = json.loads((out / MANIFEST).read_text("utf-8"))
        for facts in manifest["splits"].values():
            if hashlib.sha256((out / facts["file"]).read_bytes()).hexdigest() != facts["sha256"]:
                return None
    except (OSError, ValueError, KeyError):
        return None
    return manifest


def _new(records: Iterable[Record], seen: set[str]) -> Iterator[Record]:
    for record in records:
        if record[0] not in seen:
            seen.add(record[0])
            yield record


def _check_disjoint(splits: Mapping[Split, Sequence[Record]]) -> None:
    keys = [key for records in splits.values() for key, _, _ in records]
    if len(keys) != len(set(keys)):
        raise DatasetError("train, search and test are not disjoint; nothing was written")


def _counts(records: Sequence[Record]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for _, source, _ in records:
        counts[source] = counts.get(source, 0) + 1
    return counts


def _texts(domain: str, name: str, given: Mapping[str, str]) -> Iterator[Record | None]:
    whole = name in RECIPES[domain].tests
    for where, raw in read_rows(given.get(name, name)):
        # a mixture says for each row where it is from; a test set is known by its own name
        row: Row = {**raw, "source": name} if whole else with_source(raw, name)
        try:
            record = _record(domain, row, where)
        except DatasetError:
            yield None
        else:
            if record is not None:
                yield record


def _record(domain: str, row: Row, where: str) -> Record | None:
    if domain == "math":
        problem = read_problem(row, where, SPLITS)
        told = {"problem": problem.text, "answer": problem.answer, "source": problem.source}
        return problem.id, problem.source, told
    question = read_question(row, where, SPLITS)
    if question is None:
        return None
    asked = {"question": question.text, "golden_answers": list(question.answers), "source": question.source}
    return question.id, question.source, asked


def _lichess(out: Path, given: str | None) -> Path:
    if given is not None:
        return Path(given)
    path = out / "lichess_db_puzzle.csv.zst"
    if not path.exists():
        download(LICHESS, path)
    return path


def download(url: str, path: Path) -> None:
    """Downloads a file; what an earlier try left in ``PATH.part`` is gone on with.

    Raises:
        DatasetError: The server cannot be reached, or refuses.
        OSError: The disk is full.
    """
    part = path.with_name(path.name + ".part")
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        reply = urllib.request.urlopen(request, timeout=60)
    except (urllib.error.URLError, TimeoutError) as error:
        raise DatasetError(f"cannot fetch {url}: {error}. Is there a network? A copy is taken with --file.") from None
    with reply, part.open("ab" if reply.status == 206 else "wb") as file:
        left = int(reply.headers.get("Content-Length", 0))
        while block := reply.read(1 << 20):
            file.write(block)
            left -= len(block)
    if left > 0:
        raise DatasetError(f"the download of {url} broke off; the same command goes on with it")
    os.replace(part, path)


def _chess(path: Path, seed: int) -> Iterator[Record | None]:
    """Yields puzzles in a seeded order. Twice what is needed is drawn before any is checked: a check takes long."""
    needed = 2 * sum(RECIPES["chess"].sizes.values())
    lots = (
        (hashlib.sha256(f"{seed}:{row.get('PuzzleId')}".encode()).hexdigest(), line, row)
        for line, row in rows_of(path)
        if row.get("Moves", "").count(" ") in PLIES  # the first move is the trigger: the spaces count the rest
    )
    for _, _, row in heapq.nsmallest(needed, lots, key=lambda lot: lot[:2]):
        try:
            puzzle = puzzle_of(row)
        except ValueError:
            yield None
        else:
            yield puzzle.key, "lichess", {name: row.get(name, "") for name in _CHESS_COLUMNS}


_CHESS_COLUMNS = ("PuzzleId", "FEN", "Moves", "Rating", "Themes")


def _packed(domain: str, rows: Sequence[dict[str, Any]]) -> bytes:
    text = io.StringIO(newline="")
    if domain == "chess":
        writer = csv.DictWriter(text, _CHESS_COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    else:
        text.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    return zstandard.ZstdCompressor(level=10).compress(text.getvalue().encode("utf-8", "replace"))


def _replace(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all."""
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
