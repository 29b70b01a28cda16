"""`Retriever`, the plug point of one method, its public fake, and the rules that hold for every retriever.

No retriever knows questions or answers. Which one an environment uses is said by a name (`whale_env.retrieval.opened`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from whale_env.errors import WhaleError
from whale_env.types import Json

MAX_K = 50
"""Passages that one search may ask for."""


class RetrieverError(WhaleError, RuntimeError):
    """A retriever cannot be opened or does not answer: one line that says what is missing and how to get it."""


@dataclass(frozen=True, slots=True)
class Passage:
    """One passage of a corpus.

    Attributes:
        id: Its name in the corpus.
        title: What it is about; may be empty.
        text: What it says.
        score: How well it fits the query; comparable within one search only.
    """

    id: str
    title: str
    text: str
    score: float = 0.0

    def to_json(self) -> dict[str, Json]:
        """Returns the passage as JSON data."""
        return {"id": self.id, "title": self.title, "text": self.text, "score": self.score}


class Retriever(Protocol):
    """Finds passages. Safe from any thread; must work in a process forked after it was made."""

    def search(self, query: str, k: int) -> tuple[Passage, ...]:
        """Finds passages for a query.

        Args:
            query: Plain words; not empty.
            k: How many at most, 1 to `MAX_K`.

        Returns:
            The best first, at most ``k``; fewer where nothing more fits.

        Raises:
            RetrieverError: It does not answer.
        """
        ...


class FakeRetriever:
    """A retriever with ready replies, for tests.

    Attributes:
        queries: The queries it was asked, in order.
    """

    def __init__(self, replies: Mapping[str, Sequence[Passage]] | Sequence[Passage]) -> None:
        """Takes the replies.

        Args:
            replies: Passages by query (others find nothing), or the passages that every query finds.
        """
        self._replies = replies
        self.queries: list[str] = []

    def search(self, query: str, k: int) -> tuple[Passage, ...]:
        """Returns the first ``k`` ready passages, scored by their place."""
        self.queries.append(query)
        found = self._replies.get(query, ()) if isinstance(self._replies, Mapping) else self._replies
        return tuple(replace(passage, score=1 / place) for place, passage in enumerate(found[:k], 1))
