"""Finding passages: one protocol, `Retriever`, and three of them behind names.

``bm25`` (in memory, Python), ``pyserini`` (Lucene, with Java from pip), ``http://…`` (a server), and ``none``, which
finds nothing (closed book). Questions and answers are not known here.
"""

from __future__ import annotations

import difflib
from functools import lru_cache
from pathlib import Path

from whale_env.retrieval.base import MAX_K, FakeRetriever, Passage, Retriever, RetrieverError
from whale_env.retrieval.corpus import passage_of, read_corpus
from whale_env.retrieval.http import HTTPRetriever

__all__ = [
    "MAX_K",
    "FakeRetriever",
    "HTTPRetriever",
    "Passage",
    "Retriever",
    "RetrieverError",
    "opened",
    "passage_of",
    "read_corpus",
]

NAMES = ("bm25[:CORPUS]", "pyserini[:CORPUS or INDEX]", "http://…", "none")


@lru_cache(maxsize=4)
def opened(name: str, corpus: str = "") -> Retriever:
    """Opens a retriever by name; the same arguments give the same object.

    Args:
        name: ``"bm25"`` or ``"bm25:CORPUS"``; ``"pyserini"``, ``"pyserini:CORPUS"`` or ``"pyserini:INDEX_DIRECTORY"``;
            the address of a Search-R1 server; or ``"none"``.
        corpus: The corpus where the name has none.

    Returns:
        The retriever.

    Raises:
        RetrieverError: No such retriever, or what it needs is missing.
        whale_env.rows.DatasetError: The corpus cannot be read.
    """
    kind, _, rest = name.partition(":")
    place = rest or corpus
    match kind:
        case "http" | "https":
            return HTTPRetriever(name)
        case "none":
            return FakeRetriever(())
        case "bm25":
            from whale_env.retrieval.bm25 import BM25Retriever

            return BM25Retriever(tuple(read_corpus(place)))
        case "pyserini":
            from whale_env.retrieval.lucene import LuceneRetriever, build_index

            is_corpus = Path(place).is_file() or (Path(place).is_dir() and any(Path(place).glob("*.jsonl")))
            return LuceneRetriever(build_index(place) if is_corpus else place)
    near = difflib.get_close_matches(kind, ("bm25", "pyserini", "none"), n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise RetrieverError(f"unknown retriever {name!r}.{hint} Known: {', '.join(NAMES)}")
