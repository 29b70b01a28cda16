"""How messages are worded: the nearest known name, and texts cut to a bearable length."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Returns `` Did you mean 'x'?`` for the known name that is most like a word, or an empty text.

    Args:
        word: What was given; case does not count, nor does more than its first 100 characters.
        known: What there is.
        cutoff: How alike the two must be, from 0 to 1.
    """
    names = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word[:100].lower(), names, n=1, cutoff=cutoff)
    return f" Did you mean {names[near[0]]!r}?" if near else ""


def shortened(text: str, limit: int) -> str:
    """Returns a text, cut with an ellipsis where it has more characters than the limit."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def first_line(error: BaseException, limit: int = 500) -> str:
    """Returns the first line of what an error says, or its kind where it says nothing."""
    return shortened((str(error).strip() or type(error).__name__).splitlines()[0], limit)


def in_one_line(text: object, limit: int = 500) -> str:
    """Returns a text on one line, white space folded, cut to a length."""
    return shortened(" ".join(str(text).split()), limit)
