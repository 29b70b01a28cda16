"""BM25 by Lucene and by bm25s on one corpus: ``python -m benchmarks.retrieval [--corpus FILE] [--queries N]``.

Prints for each engine the seconds to index the corpus and to answer the first query, queries per second (the best of
several rounds, taken in turns), and how far both agree on the first ten passages; with a query file that names gold
passages also how many of them are found. Queries are phrases drawn from the corpus by seed, or come from a file. The
engines differ on purpose: Lucene stems words, drops common ones and rounds passage lengths, the other does not, so the
agreement is not expected to be whole. An engine that is not installed is said to be so. Whether scores are right is the
tests' business.
"""

from __future__ import annotations

import json
import random
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path

from benchmarks import command
from whale_env.retrieval import MAX_K, Passage, Retriever, RetrieverError, lucene, read_corpus
from whale_env.retrieval.bm25 import BM25Retriever
from whale_env.rows import DatasetError, read_rows
from whale_env.searchqa.questions import EMBEDDED

_TEXT_COLUMNS = ("question", "query", "text")
_GOLD_COLUMNS = ("gold_docs", "gold")
_PART = re.compile(r"[-_#:][0-9]+\Z")


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked, and the ids of the passages that should be found, where known."""

    text: str
    gold: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Engine:
    """A search engine: its name, why it is missing here (empty if it is not), and how it indexes a corpus."""

    name: str
    missing: str
    index: Callable[[Path, Sequence[Passage], Path], Retriever]


@dataclass(slots=True)
class Figures:
    """What was measured of one engine.

    Attributes:
        engine: Its name.
        index: Seconds to index the passages.
        first: Seconds of the first query, which opens the index.
        best: Queries per second in the best round.
        worst: The same in the worst round.
        per_cpu: Queries per second of processor time in the best round.
        recall: Share of the gold passages among those found; None without gold.
    """

    engine: str
    index: float
    first: float
    best: float = 0.0
    worst: float = float("inf")
    per_cpu: float = 0.0
    recall: float | None = None


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far two engines find the same.

    Attributes:
        engines: Their names.
        overlap: Mean share of common passages among the first k.
        same_first: Share of the queries with the same first passage.
        same_set: Share of the queries with the same k passages.
    """

    engines: tuple[str, str]
    overlap: float
    same_first: float
    same_set: float


def engines() -> tuple[Engine, ...]:
    """Returns the engines, those that are missing included."""
    return (
        Engine("pyserini", _lucene_missing(), _with_lucene),
        Engine(
            "bm25s",
            "" if find_spec("bm25s") else "pip install bm25s",
            lambda corpus, passages, work: BM25Retriever(passages),
        ),
    )


def _lucene_missing() -> str:
    if find_spec("jnius") is None:
        return "pip install -e '.[search]'"
    try:
        lucene.java(), lucene.jar()
    except RetrieverError as error:
        return f"pip install -e '.[search]' ({error})"
    return ""


def _with_lucene(corpus: Path, passages: Sequence[Passage], work: Path) -> Retriever:
    return lucene.LuceneRetriever(lucene.build_index(corpus, cache=work, progress=lambda line: None))


def phrases(passages: Sequence[Passage], count: int, seed: int) -> list[Query]:
    """Draws phrases of two to six words from the passages, each with a word of four letters or more.

    Args:
        passages: Where they come from.
        count: How many.
        seed: Same seed, same phrases.

    Raises:
        ValueError: The passages have no such phrase.
    """
    rng = random.Random(seed)
    texts = [passage.text for passage in passages if re.search(r"[^\W\d_]{4}", passage.text)]
    if not texts:
        raise ValueError(f"none of {len(passages)} passages has a word of four letters to ask for")
    found: list[Query] = []
    while len(found) < count:
        words = rng.choice(texts).split()
        start, length = rng.randrange(len(words)), rng.randrange(2, 7)
        text = " ".join(words[start : start + length])
        if re.search(r"[^\W\d_]{4}", text):
            found.append(Query(text))
    return found


def read_queries(path: str) -> list[Query]:
    """Reads queries: the lines of a ``.txt`` file, or rows with a question and perhaps gold passages.

    Raises:
        DatasetError: The file cannot be read, or a row has no question.
    """
    if path.endswith(".txt"):
        try:
            lines = Path(path).read_text("utf-8").split("\n")  # a query may hold any other separator
        except (OSError, UnicodeDecodeError) as error:
            raise DatasetError(f"{path} cannot be read: {error}") from None
        queries = [Query(line.strip()) for line in lines if line.strip()]
        if not queries:
            raise DatasetError(f"{path} holds no query")
        return queries
    queries = []
    for where, row in read_rows(path):
        text = next((row[name] for name in _TEXT_COLUMNS if isinstance(row.get(name), str) and row[name].strip()), None)
        if text is None:
            raise DatasetError(f"{where} has no query in {', '.join(_TEXT_COLUMNS)}; its columns: {', '.join(row)}")
        gold: list[object] = next((row[name] for name in _GOLD_COLUMNS if isinstance(row.get(name), list)), [])
        queries.append(Query(text, frozenset(map(str, gold))))
    return queries


def agreement(one: str, two: str, left: Sequence[Sequence[str]], right: Sequence[Sequence[str]]) -> Agreement:
    """Compares the ids that two engines found for the same queries; two empty results agree."""
    shares = [len({*a} & {*b}) / max(len(a), len(b)) if a or b else 1.0 for a, b in zip(left, right, strict=True)]
    first = [a[:1] == b[:1] for a, b in zip(left, right, strict=True)]
    sets = [{*a} == {*b} for a, b in zip(left, right, strict=True)]
    return Agreement((one, two), statistics.mean(shares), statistics.mean(first), statistics.mean(sets))


def recall(queries: Sequence[Query], found: Sequence[Sequence[str]]) -> float | None:
    """Returns the share of gold passages that were found, or None where no query names one.

    A gold id may be that of a document; its passages are then those that add a number to it (``doc-0``, ``doc#1``).
    """
    gold = sum(len(query.gold) for query in queries)
    hits = 0
    for query, ids in zip(queries, found, strict=True):
        hits += len(query.gold & {*ids, *(_PART.sub("", name) for name in ids)})
    return hits / gold if gold else None


def measure(
    corpus: Path, queries: Sequence[Query], passages: Sequence[Passage], *, k: int, rounds: int
) -> tuple[list[Figures], list[Agreement]]:
    """Indexes the corpus with each engine that is here and asks all of them all queries, round by round.

    Args:
        corpus: The corpus file.
        queries: What is asked, at least one.
        passages: The corpus as it was read.
        k: Passages to a query.
        rounds: How often; the best round counts.

    Returns:
        The figures of each engine, and the agreement of each pair.
    """
    figures: list[Figures] = []
    retrievers: list[Retriever] = []
    found: list[list[list[str]]] = []
    with tempfile.TemporaryDirectory(prefix="whale-retrieval-") as work:
        for engine in engines():
            if engine.missing:
                continue
            began = time.perf_counter()
            retrievers.append(engine.index(corpus, passages, Path(work)))
            indexed = time.perf_counter()
            retrievers[-1].search(queries[0].text, k)
            figures.append(Figures(engine.name, indexed - began, time.perf_counter() - indexed))
            found.append([])
        for _ in range(rounds):
            for place, retriever in enumerate(retrievers):
                began, busy = time.perf_counter(), time.process_time()
                found[place] = [[passage.id for passage in retriever.search(query.text, k)] for query in queries]
                rate = len(queries) / (time.perf_counter() - began)
                own = figures[place]
                own.best, own.worst = max(own.best, rate), min(own.worst, rate)
                own.per_cpu = max(own.per_cpu, len(queries) / max(time.process_time() - busy, 1e-9))
    for own, ids in zip(figures, found, strict=True):
        own.recall = recall(queries, ids)
    pairs = [
        agreement(figures[i].engine, figures[j].engine, found[i], found[j])
        for i in range(len(figures))
        for j in range(i + 1, len(figures))
    ]
    return figures, pairs


def show(figures: Sequence[Figures], pairs: Sequence[Agreement], k: int) -> None:
    """Prints the tables; ratios are to the slowest engine."""
    slowest = min((own.best for own in figures), default=1.0)
    print(
        f"  {'':10}{'index s':>9}{'first s':>9}{'queries/s':>11}{'worst':>9}{'CPU s':>9}{'ratio':>8}{'gold found':>12}"
    )
    for own in figures:
        gold = "" if own.recall is None else f"{own.recall:.1%}"
        print(
            f"  {own.engine:10}{own.index:9.2f}{own.first:9.2f}{own.best:11,.0f}{own.worst:9,.0f}{own.per_cpu:9,.0f}"
            f"{own.best / slowest:7.1f}x{gold:>12}"
        )
    for engine in engines():
        if engine.missing:
            print(f"  {engine.name:10} not installed: {engine.missing}")
    for pair in pairs:
        print(
            f"  {' and '.join(pair.engines)}: {pair.overlap:.1%} of the first {k} in common, "
            f"{pair.same_first:.1%} with the same first, {pair.same_set:.1%} with the same {k}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit status."""
    parser = command.parser("retrieval", "BM25 by Lucene and by bm25s on one corpus.")
    parser.add_argument("--corpus", type=Path, default=EMBEDDED, metavar="FILE", help="default: the embedded one")
    parser.add_argument("--queries", type=int, default=500, metavar="N", help="how many (default: %(default)s)")
    parser.add_argument("--query-file", metavar="FILE", help="ask these (.txt lines, or rows with a question)")
    parser.add_argument("--k", type=int, default=10, help="passages to a query (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="the best counts (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="what phrases are drawn from (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    options = parser.parse_args(arguments)
    if options.queries < 1 or options.rounds < 1 or not 1 <= options.k <= MAX_K:
        parser.error(f"--queries and --rounds must be at least 1, and --k from 1 to {MAX_K}")
    try:
        passages = tuple(read_corpus(options.corpus))
        if options.query_file:
            queries = read_queries(options.query_file)[: options.queries]
        else:
            queries = phrases(passages, options.queries, options.seed)
        print(
            f"{len(passages):,} passages, {len(queries):,} queries, {options.k} passages each, {options.rounds} rounds"
        )
        figures, pairs = measure(options.corpus, queries, passages, k=options.k, rounds=options.rounds)
    except (DatasetError, RetrieverError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    show(figures, pairs, options.k)
    if options.json:
        written = {"engines": [asdict(own) for own in figures], "agreement": [asdict(pair) for pair in pairs]}
        options.json.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    command.finish(main)
