"""BM25 in memory, in Python: needs neither Java nor a server. For corpora up to some million passages.

Scores come from bm25s; the order of equal scores is the corpus's, so that results are the same everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np

from whale_env.retrieval.base import Passage, RetrieverError


class BM25Retriever:
    """Okapi BM25 over title and text (Robertson and Zaragoza 2009), Lucene's variant of the term weights."""

    def __init__(self, passages: Sequence[Passage], *, k1: float = 0.9, b: float = 0.4) -> None:
        """Indexes passages.

        Args:
            passages: The corpus, at least one passage.
            k1: Saturation of term counts.
            b: How much long passages are discounted.

        Raises:
            RetrieverError: The corpus has no words.
        """
        self._passages = tuple(passages)
        tokens = [words(f"{passage.title} {passage.text}") for passage in self._passages]
        if not any(tokens):
            raise RetrieverError(f"nothing to index: {len(tokens)} passages without a word")
        bm25s: Any = import_module("bm25s")
        self._index = bm25s.BM25(method="lucene", k1=k1, b=b)
        self._index.index(tokens, show_progress=False)

    def search(self, query: str, k: int) -> tuple[Passage, ...]:
        """See `Retriever.search`; passages that share no word with the query are not returned."""
        known = [word for word in words(query) if word in self._index.vocab_dict]
        if not known:
            return ()
        scores = self._index.get_scores(known)
        k = min(k, len(self._passages))
        least = np.partition(scores, -k)[-k]
        found = np.flatnonzero(scores >= max(least, np.nextafter(np.float32(0), np.float32(1))))
        order = found[np.lexsort((found, -scores[found]))][:k]
        return tuple(replace(self._passages[i], score=round(float(scores[i]), 6)) for i in order)


def words(text: str) -> list[str]:
    """Splits a text into lower-case words; plurals lose their ``s``, and a name after a dot (``.no``) keeps the dot."""
    found = re.findall(r"(?<!\w)\.\w+|\w+", text.casefold())
    return [word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word for word in found]
