"""From cleaned text to a value: lists, names, relations, sets, intervals, tuples and ratios around expressions.

The text is cut at separators outside brackets, from the loosest (semicolons, "and") to the tightest; what remains are
the leaves of `leaf`. Nothing is compared here.
"""

from __future__ import annotations

import re
from itertools import product
from operator import and_, or_, sub
from typing import Any

import sympy

from whale_env.math.equality.grammar import WORDS, Unreadable
from whale_env.math.equality.leaf import TEXT_ONLY, depths, grouped, leaf
from whale_env.math.equality.text import cleaned, without_prose
from whale_env.math.equality.values import (
    Bracketed,
    Choice,
    Finite,
    Items,
    Named,
    Quantity,
    Ratio,
    Relation,
    Text,
    Value,
    exact,
    marked,
    marks_of,
    unmarked,
)

_MAX_ITEMS = 300
_MAX_LENGTH = 5_000

_SPLIT_WORD = re.compile(
    r"\\text\{\s*,?\s*(and|or|And|Or)\s*,?\s*\}|(?<![A-Za-z\\])(and|or)(?![a-z])|\\(?:land|lor|vee|wedge)(?![A-Za-z])"
)


def _split(text: str, pattern: re.Pattern[str]) -> tuple[list[str], list[str]]:
    """``text`` cut at the matches of ``pattern`` outside brackets, and the matches."""
    depth = depths(text)
    parts, marks, start = [], [], 0
    for match in pattern.finditer(text):
        if depth[match.start()] == 0:
            parts.append(text[start : match.start()])
            marks.append(match.group())
            start = match.end()
    parts.append(text[start:])
    return parts, marks


_SEMICOLON = re.compile(";|\\\\\\\\")
_COMMA = re.compile(",")
_OPERATOR = re.compile(r"\\(?:le|ge|ne)(?![A-Za-z])|[=<>]")
_OPERATORS = {"\\le": "<=", "\\ge": ">=", "\\ne": "!=", "=": "=", "<": "<", ">": ">"}
_APPROX = re.compile(r"\\approx(?![A-Za-z])|≃|≅")
_MEMBER = re.compile(r"\\in(?![A-Za-z])")
_SET_OPERATOR = re.compile(r"\\(?:cup|cap|setminus)(?![A-Za-z])|(?<=[\])}]) ?[Uu] ?(?=[\[({\\])")
_NUMBER_SETS = {
    "R": sympy.S.Reals,
    "Z": sympy.S.Integers,
    "N": sympy.S.Naturals,
    "Q": sympy.S.Rationals,
    "C": sympy.S.Complexes,
}
_NUMBER_SET = re.compile(r"\\mathbb\s*\{?\s*([RZNQC])\s*\}?")
# possessive, since runs of letters could be cut in exponentially many ways
_LABEL_PART = r"(?:\\?[A-Za-z]++'*+(?:_(?:\{[^{}]*\}|[A-Za-z0-9]))?+'*+)"
_LABEL = re.compile(
    rf"\s*(?:\\(?:angle|overline|triangle|text|mathrm|operatorname|overrightarrow|vec|bar|hat|measuredangle)\s*)*"
    rf"(?:\|?\{{?\s*{_LABEL_PART}(?:\s*{_LABEL_PART})*\s*\}}?\|?)(?:\([^()=]*\))?\s*"
)
_LABEL_RATIO = re.compile(r"\s*\\frac\s*\{\s*[A-Z][A-Za-z_0-9{}]*\s*\}\s*\{\s*[A-Z][A-Za-z_0-9{}]*\s*\}\s*")
_LABEL_DERIVATIVE = re.compile(r"\s*\\frac\s*\{\s*d\s*[A-Za-z]?\s*\}\s*\{\s*d\s*[a-z]\s*\}\s*")
_LABEL_TUPLE = re.compile(r"\s*\(\s*[A-Za-z][A-Za-z_0-9{}]*(?:\s*,\s*[A-Za-z][A-Za-z_0-9{}]*)+\s*\)\s*")
_ARITHMETIC = re.compile(r"[-+*/^]|\\(?:cdot|times|frac|sqrt|pm)")


def _is_label(text: str) -> bool:
    if not text.strip() or len(text) > 80:
        return False
    text = text.replace("^{-1}", "")  # the name of an inverse function
    if any(pattern.fullmatch(text) for pattern in (_LABEL_RATIO, _LABEL_TUPLE, _LABEL_DERIVATIVE)):
        return True
    return all(map(_is_name, text.split(":")))


def _is_name(text: str) -> bool:
    """One letter, capitals (``AB`` is a segment) or a word; ``xy`` is a product."""
    if not _LABEL.fullmatch(text) or _ARITHMETIC.search(text):
        return False
    letters = re.sub(r"\\[A-Za-z]+|\{[^{}]*\}(?=\s*$)|_.|\(.*|[^A-Za-z]", "", text.replace("\\text{", "").strip())
    return len(letters) <= 1 or letters.isupper() or len(letters) >= 3 or "\\" in text


def parse(text: str, *, reference: bool = False) -> Value:
    """The value of one answer.

    Args:
        text: LaTeX or plain text, without its box.
        reference: Whether it is the trusted side, whose surrounding prose and double escapes are forgiven.

    Raises:
        Unreadable: If it is neither mathematics in the grammar nor words.
    """
    text = cleaned(without_prose(text, reference=reference), reference=reference)
    if len(text) > _MAX_LENGTH:
        raise Unreadable("it is too long")
    return _value(text)


_CHOICE = re.compile(r"(?:\(\s*([A-J])\s*\)|\\text\{\s*\(?\s*([A-J])\s*[).]\s*\}|([A-J])[.)])\s*(.*)", re.DOTALL)
_WORDY = re.compile(r"(?:\\text\{[^{}]*\}|[A-Za-z]|[ \-'’.,!?()]|\\(?:quad|qquad))+")  # noqa: RUF001
_LONG_WORD = re.compile(r"[A-Za-z]{3,}")


def _value(text: str) -> Value:
    text = text.strip()
    if not TEXT_ONLY.sub(r"\1", text).strip():
        raise Unreadable("it is empty")
    choice = _CHOICE.fullmatch(text)
    if choice:
        letter = next(group for group in choice.groups()[:3] if group)
        rest = choice.group(4).strip()
        if not rest:
            return Text(letter)
        if choice.group(1) is None or rest[0] not in "(^_":
            return Choice(letter, _try(rest))
    listed = TEXT_ONLY.fullmatch(text)
    if listed and _is_word_list(listed.group(1)):
        text = listed.group(1).strip()
    # a parameter's domain says nothing about the value
    domain = _DOMAIN.search(text)
    if domain and text[: domain.start()].strip():
        text = text[: domain.start()].strip()
    words = _words(text)
    if words is not None:
        return Text(words)
    text = grouped(text)
    structured = _structured(text)
    return structured if structured is not None else _single(text)


_DOMAIN = re.compile(
    r"(?:,|;|\s)\s*(?:\\text\{[^{}]*\}\s*)?\(?\s*[a-z]\s*\\in\s*\\mathbb\s*\{?\s*[ZNQR]\s*\}?(?:\^[+*])?\s*\)?$"
)
_WORD_SEPARATOR = re.compile(r"\s*,\s*(?:(?:and|or)\b)?|\b(?:and|or)\b")


def _is_word_list(text: str) -> bool:
    parts = _WORD_SEPARATOR.split(text)
    return len(parts) > 1 and all(0 < len(part.split()) <= 2 for part in parts)


def _try(text: str) -> Value:
    try:
        return _value(text)
    except Unreadable:
        return Text(text)


def _words(text: str) -> str | None:
    if not _WORDY.fullmatch(text) or "\\" in TEXT_ONLY.sub("", text):
        return None
    plain = TEXT_ONLY.sub(r"\1", text)
    if re.search(r"[0-9=<>^_\\]", plain) or (_SPLIT_WORD.search(text) and not _LONG_WORD.sub("", plain).strip(" ,")):
        return None
    if _SPLIT_WORD.search(text):
        return None
    if "," in plain and _is_word_list(plain):
        return None
    if TEXT_ONLY.search(text):
        return plain.strip() if re.search(r"[A-Za-z]{2}", plain) else None
    runs = re.findall(r"[A-Za-z]+", plain)
    if any(len(run) >= 3 and run not in WORDS and _looks_like_word(run) for run in runs) and not re.search(
        r"[(),]", plain.replace(", ", "")
    ):
        return plain.strip()
    return plain.strip() if runs and plain.strip().lower() in ("no", "yes", "none", "odd", "even") else None


def _looks_like_word(run: str) -> bool:
    # three letters of which one is a vowel and not in alphabetical order: "odd" is a word, "abc" and "xyz" products
    return re.search(r"[aeiouyAEIOUY]", run) is not None and list(run.lower()) != sorted(set(run.lower()))


def _structured(text: str) -> Value | None:
    """Lists: by semicolons or words first, then by commas."""
    normal = re.sub(r",\s*(?:\\text\{\s*(?:and|or)\s*\}|(?:and|or)(?![A-Za-z]))", ",", text)
    parts, marks = _split(normal, _SPLIT_WORD)
    if len(parts) > 1:
        joint = "or" if any("or" in mark.lower() or "vee" in mark for mark in marks) else "and"
        return _list([part for part in parts if part.strip()], joint)
    parts, _ = _split(normal, _SEMICOLON)
    parts = [part for part in parts if part.strip()]
    if len(parts) > 1:
        return _list(parts, ",")
    parts, _ = _split(normal, _COMMA)
    if len(parts) > 1:
        return _list([part for part in parts if part.strip()], "or" if re.search(r"\bor\b", text) else ",")
    return None


def _list(parts: list[str], joint: str) -> Value:
    if len(parts) > _MAX_ITEMS:
        raise Unreadable("a list too long to compare")
    values = [_value(part) for part in parts]
    nested = [len(value.items) if isinstance(value, Items) else 1 for value in values]
    if len(set(nested)) == 1 and nested[0] > 1 and all("\\pm" not in part for part in parts):
        return Items(tuple(values), joint)
    flat: list[Value] = []
    for value in values:
        flat.extend(value.items if isinstance(value, Items) else (value,))
    if not flat:
        raise Unreadable("a list of nothing")
    return Items(tuple(flat), joint) if len(flat) > 1 else flat[0]


def _single(text: str) -> Value:
    parts, _ = _split(text, _APPROX)
    if len(parts) > 1:
        text = parts[-1] if not parts[0].strip() or _is_label(parts[0]) else parts[0]
    members, _ = _split(text, _MEMBER)
    if len(members) == 2 and (_is_label(members[0]) or len(members[0].strip()) <= 3):
        return _single(members[1].strip())
    sides, marks = _split(text, _OPERATOR)
    if len(sides) > 1:
        return _relation([side.strip() for side in sides], [_OPERATORS[mark.strip()] for mark in marks])
    return _term(text.strip())


def _relation(sides: list[str], operators: list[str]) -> Value:
    if any(not side for side in sides[1:]) or (not sides[0] and operators[0] != "="):
        raise Unreadable("a relation with an empty side")
    if set(operators) == {"="}:
        if not sides[0] or _is_label(sides[0]):
            value = _value(sides[-1])
            return Named(_label(sides[0]), value, _argument(sides[0])) if sides[0] else value
        if len(sides) > 2 or not any(map(_has_letters, sides)):
            return _value(sides[-1])
        if _is_label(sides[1]) and not _has_letters(sides[0]):
            return Named(_label(sides[1]), _value(sides[0]), _argument(sides[1]))
    return Relation(tuple(_plain_expression(side) for side in sides), tuple(operators))


def _has_letters(text: str) -> bool:
    return re.search("[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", text)) is not None


def _argument(text: str) -> str:
    call = re.search(r"\(\s*([A-Za-z])\s*\)\s*$", text)
    return call.group(1) if call else ""


def _label(text: str) -> str:
    return re.sub(r"\\text|[\s{}\\]", "", re.sub(r"\([^()]*\)\s*$", "", text) or text)


def _plain_expression(text: str) -> Any:
    value = leaf(text)
    bare, marks = exact(value), marks_of(value)
    if not isinstance(bare, sympy.Expr):
        raise Unreadable("a relation between things that are no expressions")
    return marked(bare / 100 if isinstance(value, Quantity) and value.unit == "%" else bare, marks)


def _term(text: str) -> Value:
    """A set, a bracketed tuple, a ratio, or a leaf."""
    if not text:
        raise Unreadable("a part is empty")
    parts, marks = _split(text, _SET_OPERATOR)
    if len(parts) > 1:
        first, written = unmarked(_term(parts[0].strip()))
        result = as_set(first)
        for part, mark in zip(parts[1:], marks, strict=True):
            other, more = unmarked(_term(part.strip()))
            combine = {"\\cap": and_, "\\setminus": sub}.get(mark.strip(), or_)
            result, written = combine(result, as_set(other)), written | more
        return marked(result, written)
    number_set = _NUMBER_SET.fullmatch(text)
    if number_set:
        return _NUMBER_SETS[number_set.group(1)]
    if text == "\\emptyset":
        return Finite(())
    bracketed = _bracketed(text)
    if bracketed is not None:
        return bracketed
    parts, _ = _split(text, re.compile(":"))
    if len(parts) > 1:
        parts = [part.strip() for part in parts]
        return Ratio(tuple(leaf(part) for part in parts), re.sub(r"\s", "", text))
    return leaf(text)


_BUILDER = re.compile(r"\s*[A-Za-z]\s*(?:\\in\s*(?:\\mathbb\s*\{?\s*R\s*\}?|R)\s*)?[|:]")


def _bracketed(text: str) -> Value | None:
    if text.startswith("\\{") and text.endswith("\\}"):
        inner = text[2:-2]
        if min(depths(inner), default=0) < 0:
            return None
        builder = _BUILDER.match(inner)
        if builder:
            return _value(inner[builder.end() :])
        return Finite(_elements(inner)) if inner.strip() else Finite(())
    french = re.fullmatch(r"([\[\]])([^\[\]]*)([\[\]])", text)
    if french and (french.group(1) == "]" or french.group(3) == "["):
        items = _elements(french.group(2))
        if len(items) == 2:
            return Bracketed("(" if french.group(1) == "]" else "[", items, ")" if french.group(3) == "[" else "]")
    if text[0] not in "([" or text[-1] not in ")]":
        return None
    inner = text[1:-1]
    if min(depths(inner), default=0) < 0:
        return None
    parts, _ = _split(inner, re.compile("[,;]"))
    if len(parts) == 1:
        if text[0] == "(" and text[-1] == ")":
            return _value(inner)
        return None
    if "\\pm" in inner or "\\mp" in inner:
        branches = [_branches(part) for part in parts]
        if len(branches) <= 6:
            return Items(tuple(Bracketed(text[0], items, text[-1]) for items in product(*branches)))
    return Bracketed(text[0], _elements(inner), text[-1])


def _branches(text: str) -> tuple[Value, ...]:
    value = _value(text)
    return value.items if isinstance(value, Items) else (value,)


def _elements(text: str) -> tuple[Value, ...]:
    parts, _ = _split(text, re.compile("[,;]"))
    if len(parts) > _MAX_ITEMS:
        raise Unreadable("a list too long to compare")
    items: list[Value] = []
    for part in parts:
        value = _value(part)
        items.extend(value.items if isinstance(value, Items) and "\\pm" in part else (value,))
    return tuple(items)


def as_set(value: Value) -> Any:
    """The sympy set that ``value`` denotes.

    Raises:
        Unreadable: If it denotes none.
    """
    if isinstance(value, sympy.Set):
        return value
    if isinstance(value, Finite):
        return sympy.FiniteSet(*(_element(item) for item in value.items))
    if isinstance(value, Bracketed) and len(value.items) == 2:
        low, high = (exact(item) for item in value.items)
        if isinstance(low, sympy.Expr) and isinstance(high, sympy.Expr):
            return sympy.Interval(low, high, value.opening == "(", value.closing == ")")
    raise Unreadable("no set")


def _element(item: Value) -> Any:
    item = exact(item)
    if isinstance(item, Bracketed):
        return sympy.Tuple(*(_element(part) for part in item.items))
    if not isinstance(item, sympy.Basic):
        raise Unreadable("a set of things that are no expressions")
    return item
