"""How texts of the archive are put together: bounded, quoted and cleaned, so that nothing passes for its own words."""

from __future__ import annotations

import difflib
import hashlib
import re

from whale_env.wording import in_one_line

MAX_QUOTE = 6_000
"""Characters of one quoted message, completion or result."""

MAX_DIFF = 20_000
"""Characters of one diff."""

MAX_ROWS = 12
"""Rows of one table; longer ones say how many are left out."""


def clean(text: str) -> str:
    """Returns text with control characters and lone surrogates written as escapes: one NUL makes a file binary."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t " else c.encode("unicode_escape").decode() for c in text)


def slug(text: str, length: int = 48) -> str:
    """Returns a file name for an arbitrary text; different texts give different names."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "_", text)
    plain = plain.lstrip(".-")[:length]
    if plain and plain == text:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:6]
    return f"{plain}_{digest}" if plain else digest


def one_line(text: str, limit: int = 600) -> str:
    """Returns a text on one line, cleaned and cut to a length."""
    return in_one_line(clean(str(text)), limit)


def cell(text: str, limit: int = 60) -> str:
    """Returns a text as a cell of a table."""
    return one_line(text, limit).replace("|", "\\|").replace("`", "'")


def quoted(text: str) -> str:
    """Returns what a model or a harness wrote, each line marked, so that it cannot pass for the words around it."""
    cut = without_middle(clean(text), MAX_QUOTE)
    return "\n".join(f"| {line}" for line in cut.split("\n"))


def without_middle(text: str, limit: int) -> str:
    """Returns a text with its middle left out beyond the limit."""
    if len(text) <= limit:
        return text
    half = limit // 2 - 20
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"


def unified(before: str, after: str, context: int) -> str:
    """Returns the difference of two texts."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), "before", "after", lineterm="", n=context)
    return without_middle(clean("\n".join(lines)), MAX_DIFF)


def fenced(text: str, language: str) -> str:
    """Returns a text as a block of code that it cannot end by itself."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def left_out(count: int, where: str) -> list[str]:
    """Returns lines that say how many rows of a table were left out, if any were."""
    return ["", f"{count - MAX_ROWS} more: see {where}."] if count > MAX_ROWS else []
