"""A client of servers that speak the Search-R1 protocol: POST ``/retrieve`` with queries, topk and return_scores.

The server and its index are someone else's.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from whale_env.http_json import RequestError, post_json, without_login
from whale_env.retrieval.base import Passage, RetrieverError
from whale_env.retrieval.corpus import passage_of
from whale_env.rows import DatasetError


class HTTPRetriever:
    """Asks a retrieval server. Holds no connection, so it may be forked and used from any thread."""

    def __init__(self, url: str, *, timeout: float = 30.0, tries: int = 3) -> None:
        """Names the server.

        Args:
            url: Its address, with or without the path (``http://localhost:8000/retrieve``).
            timeout: Seconds to wait for one reply.
            tries: Requests before giving up.

        Raises:
            RetrieverError: The address is none.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise RetrieverError(
                f"{without_login(url)!r} is not the address of a retriever, e.g. http://localhost:8000/retrieve"
            )
        self.url = url if parts.path.strip("/") else f"{url.rstrip('/')}/retrieve"
        self._timeout, self._tries = timeout, tries

    def search(self, query: str, k: int) -> tuple[Passage, ...]:
        """See `Retriever.search`."""
        body = {"queries": [query], "topk": k, "return_scores": True}
        try:
            reply = post_json(self.url, body, timeout=self._timeout, tries=self._tries)
        except RequestError as error:
            raise RetrieverError(str(error)) from None
        try:
            hits = reply["result"][0]
            return tuple(
                _passage(hit, f"{without_login(self.url)}, hit {place}") for place, hit in enumerate(hits[:k], 1)
            )
        except DatasetError as error:
            raise RetrieverError(f"{error}") from None
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            why = "expected {'result': [[{'document': …, 'score': …}]]}"
            raise RetrieverError(f"{without_login(self.url)} gave an unknown reply ({why}): {reply!r:.120}") from None


def _passage(hit: Any, where: str) -> Passage:
    passage = passage_of(hit.get("document", hit), where)
    return Passage(passage.id, passage.title, passage.text, float(hit.get("score", 0.0)))
