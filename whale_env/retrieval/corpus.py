"""Passages from corpus files: rows with ``id`` and ``contents`` (Anserini, Search-R1) or with ``title`` and ``text``.

Parquet and the other layouts of `whale_env.rows` work as well. Indexing is the retrievers' business.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from whale_env.retrieval.base import Passage
from whale_env.rows import DatasetError, read_rows

_IDS = ("id", "_id", "docid", "doc_id", "pid")
_TEXTS = ("text", "contents", "content", "passage", "body")


def read_corpus(path: str | Path) -> Iterator[Passage]:
    """Reads passages, one by one.

    Args:
        path: The corpus file or a directory of files.

    Yields:
        The passages in their order.

    Raises:
        DatasetError: It cannot be read, holds nothing, or a row has no text or an id that came before.
    """
    seen: set[str] = set()
    for number, (where, row) in enumerate(read_rows(path)):
        if row.get("kind", "passage") != "passage":
            continue
        passage = passage_of(row, where, str(number))
        if passage.id in seen:
            raise DatasetError(f"{where} has the id {passage.id!r} of an earlier passage; ids must differ")
        seen.add(passage.id)
        yield passage
    if not seen:
        raise DatasetError(f"{path} holds no passage")


def passage_of(row: Mapping[str, Any], where: str, default_id: str = "") -> Passage:
    r"""Reads one passage; ``contents`` without a title column has it in its first line (``"Title"\ntext``).

    Args:
        row: Its columns.
        where: What to call it in an error.
        default_id: Its id where it has none.

    Returns:
        The passage.

    Raises:
        DatasetError: It has no text.
    """
    text = next((row[name] for name in _TEXTS if isinstance(row.get(name), str) and row[name].strip()), None)
    if text is None:
        raise DatasetError(
            f"{where} has no passage text in {', '.join(_TEXTS)}; its columns: {', '.join(map(str, row))}"
        )
    found = next((row[name] for name in _IDS if row.get(name) is not None), default_id)
    title = row.get("title")
    head, _, body = text.partition("\n")
    if isinstance(title, str) and title.strip():
        if body.strip() and head.strip(' "') == title.strip(' "'):
            text = body
    elif body.strip():
        title, text = head, body
    return Passage(str(found), title.strip().strip('"') if isinstance(title, str) else "", text.strip())


def fingerprint(path: str | Path) -> str:
    """Returns a hash of a corpus's bytes (16 hexadecimal digits), for naming what was made from it."""
    digest = hashlib.sha256()
    path = Path(path)
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        with file.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:16]
