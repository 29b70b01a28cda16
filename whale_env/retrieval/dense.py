"""Dense retrieval: pyserini's FAISS searcher with the query encoder that fits the index.

A FAISS index holds vectors and ids only, so the texts come from a corpus or from a Lucene index. pyserini brings Java
in whatever it is asked to do, so the rule of `lucene` holds here too: each process searches first after its fork.
Building indexes is pyserini's business (``python -m pyserini.encode``).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from whale_env.retrieval.base import Passage, RetrieverError
from whale_env.retrieval.corpus import read_corpus
from whale_env.retrieval.lucene import INSTALL, LuceneRetriever, calling_java, jar, java, start_jvm
from whale_env.wording import did_you_mean, first_line

ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "ance": ("AnceQueryEncoder", {}),
    "auto": ("AutoQueryEncoder", {}),
    "bge": (
        "AutoQueryEncoder",
        {"l2_norm": True, "prefix": "Represent this sentence for searching relevant passages:"},
    ),
    "contriever": ("AutoQueryEncoder", {"pooling": "mean"}),
    "dkrr": ("DkrrDprQueryEncoder", {}),
    "dpr": ("DprQueryEncoder", {}),
    "sentence": ("AutoQueryEncoder", {"pooling": "mean", "l2_norm": True}),
    "tct_colbert": ("TctColBertQueryEncoder", {}),
}
"""Kind of encoder → class of ``pyserini.encode`` and its options. ``auto`` takes the first token's vector."""


class FaissRetriever:
    """Nearest neighbours of the query's vector. One searcher in each process, made on its first search."""

    def __init__(self, index: str | Path, encoder: str, texts: str | Path) -> None:
        """Checks what can be checked without loading anything.

        Args:
            index: Directory of a FAISS index as pyserini writes it: the files ``index`` and ``docid``.
            encoder: Query encoder: a directory or a hub name, with its kind from `ENCODERS` before it if the name does
                not say it (``"dpr=/models/questions"``).
            texts: Where the passages' texts are: a corpus file, or the directory of a Lucene index.

        Raises:
            RetrieverError: The index, faiss, pyserini or Java is missing, or the encoder's kind is unknown.
            whale_env.rows.DatasetError: The corpus cannot be read.
        """
        self._index, self._encoder = Path(index), encoder
        self._kind, self._model = encoder_of(encoder)
        if not self._index.is_dir():
            raise RetrieverError(f"no FAISS index at {str(index)!r}; build one with python -m pyserini.encode")
        missing = [name for name in ("index", "docid") if not (self._index / name).is_file()]
        if missing:
            raise RetrieverError(f"{str(index)!r} holds no FAISS index of pyserini: no file {' and '.join(missing)}")
        if find_spec("faiss") is None:
            raise RetrieverError("faiss is not installed: pip install faiss-cpu")
        jar(), java()
        self._texts = texts
        self._passage = _passages_of(texts)
        self._searcher: tuple[int, Any] | None = None
        with (self._index / "docid").open(encoding="utf-8") as ids:
            first = ids.readline().rstrip()
        if not first:
            raise RetrieverError(f"the index {str(index)!r} is empty; build it again")
        if Path(texts).is_file():
            self._passage(first)

    def search(self, query: str, k: int) -> tuple[Passage, ...]:
        """See `Retriever.search`."""
        with calling_java():
            searcher = self._of_this_process()
            try:
                hits = [(str(hit.docid), float(hit.score)) for hit in searcher.search(query, k)]
            except Exception as error:  # of torch, transformers, faiss or pyserini
                raise RetrieverError(f"the search for {query!r:.80} failed: {first_line(error)}") from None
            found = [(self._passage(docid), score) for docid, score in hits]
        return tuple(Passage(passage.id, passage.title, passage.text, score) for passage, score in found)

    def __reduce__(self) -> tuple[Any, ...]:
        return FaissRetriever, (str(self._index), self._encoder, str(self._texts))

    def _of_this_process(self) -> Any:
        if self._searcher is None or self._searcher[0] != os.getpid():
            start_jvm()
            name, options = ENCODERS[self._kind]
            encode, faiss = pyserini("encode"), pyserini("search.faiss")
            try:
                encoder = getattr(encode, name)(encoder_dir=self._model, **options)
            except Exception as error:  # of transformers and the hub: names, files, the network
                raise RetrieverError(
                    f"cannot load the query encoder {self._model!r} as {self._kind!r}: {first_line(error)} "
                    "Give the directory of a downloaded one if there is no network"
                ) from None
            try:
                searcher = faiss.FaissSearcher(str(self._index), encoder)
                size = len(encoder.encode("size"))
            except Exception as error:
                raise RetrieverError(f"cannot open the index {str(self._index)!r}: {first_line(error)}") from None
            if size != searcher.dimension:
                raise RetrieverError(
                    f"the query encoder {self._model!r} makes vectors of {size} numbers, the index "
                    f"{str(self._index)!r} holds vectors of {searcher.dimension}; take the encoder that it was made for"
                )
            self._searcher = os.getpid(), searcher
        return self._searcher[1]


def pyserini(part: str) -> Any:
    """Imports a module of pyserini; Java must run (`lucene.start_jvm`).

    Raises:
        RetrieverError: Something that it needs is missing.
    """
    # one of its encoders makes a client of a paid service on import, and that asks for a key
    keyless = "OPENAI_API_KEY" not in os.environ
    if keyless:
        os.environ["OPENAI_API_KEY"] = "unused"
    try:
        return import_module(f"pyserini.{part}")
    except ModuleNotFoundError as error:
        raise RetrieverError(f"pyserini needs {error.name}, which is not installed: {INSTALL}") from None
    except Exception as error:
        raise RetrieverError(f"pyserini cannot be imported: {first_line(error)}") from None
    finally:
        if keyless:
            del os.environ["OPENAI_API_KEY"]


def encoder_of(text: str) -> tuple[str, str]:
    """Splits ``KIND=NAME``; without a kind it is the one that the last part of the name holds as a word, else ``auto``.

    Raises:
        RetrieverError: The kind is unknown or the name is empty.
    """
    kind, separator, name = text.partition("=")
    if not separator:
        name = text
        last = Path(text).name.lower()
        kind = next((kind for kind in ENCODERS if re.search(rf"(?<![a-z]){kind}(?![a-z])", last)), "auto")
    if not name.strip():
        raise RetrieverError("a dense index needs its query encoder: 'faiss:INDEX@ENCODER', a directory or a hub name")
    if kind not in ENCODERS:
        hint = did_you_mean(kind, ENCODERS)
        raise RetrieverError(f"unknown kind of encoder {kind!r} in {text!r}.{hint} Known: {', '.join(ENCODERS)}")
    return kind, name


def _passages_of(texts: str | Path) -> Callable[[str], Passage]:
    if Path(texts).is_dir() and any(Path(texts).glob("segments_*")):
        return LuceneRetriever(texts).passage
    passages = {passage.id: passage for passage in read_corpus(texts)}

    def found(docid: str) -> Passage:
        if docid not in passages:
            raise RetrieverError(f"{str(texts)!r} has no passage {docid!r}, which the FAISS index names")
        return passages[docid]

    return found
