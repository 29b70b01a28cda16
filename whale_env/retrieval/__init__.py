"""Finding passages: one protocol, `Retriever`, and its kinds behind names.

``bm25`` (in memory, Python), ``pyserini`` (Lucene, with Java from pip), ``faiss`` (dense vectors), ``http://…`` (a
server), and ``none``, which finds nothing (closed book). Questions and answers are not known here.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from functools import lru_cache
from pathlib import Path

from whale_env.retrieval.base import MAX_K, FakeRetriever, Passage, Retriever, RetrieverError
from whale_env.retrieval.corpus import passage_of, read_corpus
from whale_env.retrieval.http import HTTPRetriever
from whale_env.text_files import stamp
from whale_env.wording import did_you_mean

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

NAMES = (
    "bm25[:CORPUS]",
    "pyserini[:CORPUS, INDEX_DIRECTORY or PREBUILT_NAME]",
    "faiss:INDEX@[KIND=]ENCODER[@TEXTS]",
    "http://…",
    "none",
)
_PREBUILT_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*")


def opened(name: str, corpus: str = "") -> Retriever:
    """Opens a retriever by name; the same arguments give the same object as long as its files are the same.

    Args:
        name: ``"bm25"`` or ``"bm25:CORPUS"``; ``"pyserini"``, ``"pyserini:CORPUS"``, ``"pyserini:INDEX_DIRECTORY"`` or
            ``"pyserini:NAME"`` with the name of one of pyserini's prebuilt indexes, which is fetched on first use;
            ``"faiss:INDEX@ENCODER"`` with a directory or a prebuilt name and a query encoder (`dense.FaissRetriever`),
            and ``"@TEXTS"`` after it, a corpus or a Lucene index, unless the prebuilt index names its own; the address
            of a Search-R1 server; or ``"none"``.
        corpus: The corpus where the name has none.

    Returns:
        The retriever.

    Raises:
        RetrieverError: No such retriever, or what it needs is missing.
        whale_env.rows.DatasetError: The corpus cannot be read.
    """
    return _opened(name, corpus, stamp(*name.partition(":")[2].split("@"), corpus))


@lru_cache(maxsize=4)
def _opened(name: str, corpus: str, files: Hashable) -> Retriever:
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
            return LuceneRetriever(build_index(place) if is_corpus else _directory(place))
        case "faiss":
            from whale_env.retrieval.dense import FaissRetriever

            index, _, encoder = rest.partition("@")
            encoder, _, texts = encoder.partition("@")
            return FaissRetriever(*_dense(index, encoder, texts, corpus))
    hint = did_you_mean(kind, ("bm25", "pyserini", "faiss", "none"))
    raise RetrieverError(f"unknown retriever {name!r}.{hint} Known: {', '.join(NAMES)}")


def _directory(place: str) -> Path:
    """The directory of a Lucene index, given as one or by its prebuilt name."""
    if not _is_name(place):
        return Path(place)
    from whale_env.retrieval.prebuilt import prebuilt

    return prebuilt(place, "lucene").directory


def _dense(index: str, encoder: str, texts: str, corpus: str) -> tuple[Path, str, Path]:
    from whale_env.retrieval.dense import encoder_of
    from whale_env.retrieval.prebuilt import prebuilt

    encoder_of(encoder)  # a wrong one is told before anything is fetched
    directory = Path(index)
    if _is_name(index):
        found = prebuilt(index, "faiss")
        directory, texts = found.directory, texts or found.texts or ""
    elif not directory.is_dir():
        raise RetrieverError(f"no FAISS index at {index!r}: neither a directory nor the name of a prebuilt index")
    texts = texts or corpus
    if not texts:
        raise RetrieverError(
            f"a FAISS index holds no texts: name them, 'faiss:{index}@{encoder}@CORPUS_OR_LUCENE_INDEX'"
        )
    return directory, encoder, _directory(texts)


def _is_name(place: str) -> bool:
    from whale_env.rows import SUFFIXES

    return bool(_PREBUILT_NAME.fullmatch(place)) and not Path(place).exists() and not place.endswith(SUFFIXES)
