"""The one way the parsers search a text, and the shortening of excerpts. Knows no dialect."""

from __future__ import annotations

import re

EXCERPT = 120
_QUOTES = frozenset("`'\"")


def find(pattern: re.Pattern[str], text: str, start: int) -> re.Match[str] | None:
    """Returns the first match at or after `start`. All scanning goes through here, so that a test can count it."""
    return pattern.search(text, start)


def excerpt(text: str, start: int = 0, end: int | None = None) -> str:
    """Returns the part of a text, shortened to what fits a message, storable as UTF-8."""
    end = len(text) if end is None else end
    part = text[start:end] if end - start <= EXCERPT else text[start : start + EXCERPT] + "…"
    return part.encode("utf-8", "replace").decode()


def quoted(text: str, start: int, end: int) -> bool:
    """Whether the tag at [start, end) stands alone between two equal quote marks: talk about the tag, not its use."""
    return start > 0 and end < len(text) and text[start - 1] in _QUOTES and text[start - 1] == text[end]
