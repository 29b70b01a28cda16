"""What a text says and chooses: the domain's side of the commit rule.

A committing call counts only if the model said its argument, and as its choice. Whether it was said is `said_verbatim`.
What was chosen follows from all values of the call's kind that the text names (`Named`): any of at most three, else the
last one. So a list of all options leaves nothing to pick from. Which texts are looked at is `harness_sdk.commit_rule`'s
business.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import Any

from whale_env.types import Json, ToolCall

FEW = 3
"""Of so many different values that a text names, any may be meant; of more, only the last."""

LONG_PIECE = 16
"""In a piece of text with more words, a value stands at its beginning or its end."""


@dataclass(frozen=True, slots=True)
class Named:
    """What a text names of the kind that one argument of a committing call is of.

    Attributes:
        values: The values, in the order in which they stand in the text.
        value: The one that the call commits; None where the text does not name it.
        exact: Whether the committed text is that whole value, and not a part of it.
        places: How many arguments of this kind the call has; as many values are chosen at once.
        leads: Whether the committed text begins what the text says, where that does not follow from the values.
    """

    values: tuple[Hashable, ...]
    value: Hashable = None
    exact: bool = True
    places: int = 1
    leads: bool = False

    @property
    def first(self) -> bool:
        """Whether the value is the first that the text names."""
        return self.leads or (self.value is not None and self.values[:1] == (self.value,))

    @property
    def chosen(self) -> bool:
        """Whether the text chooses the value."""
        if self.value is None or self.value not in self.values:
            return False
        return len(set(self.values)) <= FEW * self.places or self.value in self.values[-self.places :]


def said_verbatim(call: ToolCall, text: str) -> bool:
    """Whether every argument of a call stands in a text, case and white space aside, as whole words.

    Args:
        call: A committing call.
        text: What the model wrote.

    Returns:
        True if each argument occurs and is not part of a longer word or number; a number may be written in any way
        (``1,234.50`` says 1234.5).
    """
    folded = _fold(text)
    return bool(call.arguments) and all(_says(value, folded) for value in call.arguments.values())


def named_verbatim(call: ToolCall, text: str, choices: Mapping[str, Sequence[Json]] | None = None) -> tuple[Named, ...]:
    """Returns what a text names of the kinds that a call's arguments are of.

    The kind of a number is all numbers that stand alone in the text, that of a listed choice all choices; of any other
    text it is the pieces between marks: lines, sentences, parts set off by commas, quotes, tags.

    Args:
        call: A committing call.
        text: What the model wrote.
        choices: By argument, the values it is restricted to.

    Returns:
        One entry for each single value in the arguments.
    """
    found = []
    for name, argument in call.arguments.items():
        listed = (choices or {}).get(name)
        for value in leaves(argument):
            found.append(_choice(value, listed, text) if listed else _number(value, text) or _piece(str(value), text))
    kinds = [entry.values for entry in found]
    return tuple(replace(entry, places=kinds.count(entry.values)) for entry in found)


def leaves(value: Json) -> Iterator[Json]:
    """Yields the single values within a call's arguments, which the model must have said one by one."""
    if isinstance(value, Mapping):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def pieces(text: str) -> list[str]:
    """Returns the pieces of a text: what stands between line ends, sentence ends, commas, quotes, brackets and tags."""
    folded = _folded_lines(text)
    return [folded[begin:end] for begin, end in _spans(folded)]


_IDLE = re.compile(r"(?:import|from)\s.*|#.*|try:|finally:|else:|pass|except\b[^:]*:|print\(\)")
"""Lines of a program that compute nothing."""


def said_code(code: str, text: str) -> bool:
    """Whether the lines of a program stand in a text; imports, comments and a ``print`` around a line are form.

    Args:
        code: The program.
        text: All that the model wrote.
    """
    said = " ".join(text.split())
    for line in code.splitlines():
        plain = " ".join(line.split())
        if not plain or _IDLE.fullmatch(plain) or _stands(plain, said):
            continue
        inner = plain.removeprefix("print(").removesuffix(")").strip()
        if inner == plain or (inner and not _stands(inner, said)):
            return False
    return True


_DIGITS = r"(?:\d{1,3}(?:,\d{3}){1,12}|\d{1,40})(?:\.\d{1,40})?"
_NUMBER = re.compile(
    rf"(?:(?<![\w.,/^\u2212)\]}}-])(?P<minus>[-\u2212])|(?<=[\w)\]}}])[-\u2212]|(?<![\w.,/^\u2212-]))"
    rf"(?P<above>{_DIGITS}(?:e[+-]?\d{{1,3}})?)(?:/(?P<below>{_DIGITS}))?(?![\w/^]|[.,]\d)"
)
"""A number that stands alone: not the 8 of ``8m``, ``0.8`` or ``3/8``. A hyphen behind a word is no sign."""


@lru_cache(maxsize=32)
def numbers(text: str) -> tuple[Fraction, ...]:
    """Returns the numbers that stand alone in a text, in order."""
    found = []
    for match in _NUMBER.finditer(text.casefold()):
        above, below = (Fraction(Decimal((part or "1").replace(",", ""))) for part in match.group("above", "below"))
        if below:
            found.append((-above if match["minus"] else above) / below)
    return tuple(found)


def _as_number(value: Json) -> Fraction | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None
    text = str(value).strip().casefold()
    match = _NUMBER.fullmatch(text)
    found = numbers(text) if match else ()
    return found[0] if len(found) == 1 else None


def _says(value: Any, text: str) -> bool:
    number = _as_number(value)
    if number is not None:
        return number in numbers(text)
    return _stands(_fold(str(value)), text)


def _number(value: Json, text: str) -> Named | None:
    number = _as_number(value)
    return None if number is None else Named(numbers(text), number)


def _choice(value: Json, listed: Sequence[Json], text: str) -> Named:
    words = {_fold(str(item)): item for item in listed}
    longest_first = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    found = re.findall(rf"(?<![^\W_])(?:{longest_first})(?![^\W_])", _fold(text))
    return Named(tuple(found), _fold(str(value)))


_BREAK = re.compile(
    r"</?[\w:.-]+/?>|[\n,;:!?()\[\]{}<>\"\u201c\u201d\u201e\u00ab\u00bb*`|=$~#\u2022\u2013\u2014]+"
    r"|\.(?=\s|$)|'(?=\s|$)|(?<=\s)'|(?<=\s)-(?=\s)"
)


@lru_cache(maxsize=32)
def _spans(folded: str) -> list[tuple[int, int]]:
    edges = [0, *(place for match in _BREAK.finditer(folded) for place in match.span()), len(folded)]
    return [(begin, end) for begin, end in list(pairwise(edges))[::2] if any(c.isalnum() for c in folded[begin:end])]


def _piece(value: str, text: str) -> Named:
    """Finds the piece in which a text ends, at its last occurrence; one that is chosen is preferred."""
    folded, wanted = _folded_lines(text), _fold(value)
    spans = _spans(folded)
    values = tuple(folded[begin:end].strip() for begin, end in spans)
    if not any(c.isalnum() for c in wanted):
        return Named((wanted,) if _stands(wanted, folded) else values, wanted)
    if not spans:
        return Named(values)
    found = Named(values)
    begins_of, ends_of = zip(*spans, strict=True)
    for match in _occurrences(wanted, folded):
        low = bisect_right(ends_of, match.start())
        high = bisect_left(begins_of, match.end()) - 1
        if low > high:
            continue
        first, last = spans[low], spans[high]
        begins = not any(c.isalnum() for c in folded[first[0] : match.start()])
        ends = not any(c.isalnum() for c in folded[match.end() : last[1]])
        if begins or ends or len(folded[last[0] : last[1]].split()) <= LONG_PIECE:
            leads = found.leads or (begins and low == 0)
            entry = Named(values, values[high], begins and ends and low == high, leads=leads)
            found = entry if entry.chosen or not found.chosen else found
    return found


def _occurrences(wanted: str, folded: str) -> Iterator[re.Match[str]]:
    pattern = r"\s".join(re.escape(word) for word in wanted.split(" "))
    return re.finditer(_edged(wanted, pattern), folded)


def _stands(needle: str, text: str) -> bool:
    return bool(needle) and re.search(_edged(needle, re.escape(needle)), text) is not None


def _edged(needle: str, pattern: str) -> str:
    before = r"(?<![^\W_])" if needle[0].isalnum() else ""
    after = r"(?![^\W_])" if needle[-1].isalnum() else ""
    return before + pattern + after


def _fold(text: str) -> str:
    return " ".join(text.casefold().split())


def _folded_lines(text: str) -> str:
    return "\n".join(" ".join(line.split()) for line in text.casefold().splitlines())
