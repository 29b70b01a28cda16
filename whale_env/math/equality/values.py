"""The kinds of mathematical answer that the parser produces and the comparison reads.

Plain data: no parsing and no notion of equality here. Numbers and expressions are sympy objects; what sympy has no
faithful type for (a list of roots, a bracketed pair that may be a point or an interval, a ratio, a numeral in another
base, a quantity with its unit) has a record of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Text:
    """Words: a name, "even", "no solution"."""

    words: str


@dataclass(frozen=True, slots=True)
class Decimal:
    """A decimal literal, exact value and number of significant digits and decimal places."""

    value: Any
    digits: int
    places: int


@dataclass(frozen=True, slots=True)
class Quantity:
    """A value with what followed it: a unit in words or symbols, or ``%``."""

    value: Value
    unit: str


@dataclass(frozen=True, slots=True)
class Based:
    """A numeral with a base subscript, such as ``204_5``."""

    digits: str
    base: str


@dataclass(frozen=True, slots=True)
class Ratio:
    """``a : b`` or ``a : b : c``; also a time of day."""

    parts: tuple[Value, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Items:
    """Several answers without brackets; ``joint`` is the word that joined them: "," or "and" or "or"."""

    items: tuple[Value, ...]
    joint: str = ","


@dataclass(frozen=True, slots=True)
class Finite:
    """A finite set in braces."""

    items: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Bracketed:
    """A tuple, point, vector or interval: ordered items between ``(`` or ``[`` and ``)`` or ``]``."""

    opening: str
    items: tuple[Value, ...]
    closing: str


@dataclass(frozen=True, slots=True)
class Named:
    """``label = value``; the label is the text of a name such as ``x``, ``f`` (with its argument) or ``(p, q)``."""

    label: str
    value: Value
    argument: str = ""


@dataclass(frozen=True, slots=True)
class Relation:
    """A chain ``e0 op0 e1 op1 …`` with operators among ``= < > <= >= !=``."""

    sides: tuple[Any, ...]
    operators: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """A multiple-choice answer with its letter and what stands behind it."""

    letter: str
    content: Value


@dataclass(frozen=True, slots=True)
class Marked:
    """An expression that is no plain number, with marks that say what else its text holds.

    `CONSTANT` stands for roots, pi, e, i and logarithms that have no rational value; an `ANGLE` in degrees and the
    `APPROXIMATION` of a long decimal may stand for such. Any other mark names arithmetic that is yet to be done, such
    as ``"sum"`` in ``10+80``. Only parsing knows this class: `unmarked` ends it.
    """

    value: Value
    marks: frozenset[str]


CONSTANT, ANGLE, APPROXIMATION = "constant", "angle", "approximation"
MIN_APPROXIMATION = 10  # significant digits from which a decimal may stand for an exact value

# Beside these a value may be a sympy Expr, Set or Matrix.
Value: TypeAlias = Any


def exact(value: Value) -> Any:
    """The bare value of a decimal or quantity; anything else as it is."""
    while isinstance(value, Decimal | Quantity | Marked):
        value = value.value
    return value


def marks_of(value: Value) -> frozenset[str]:
    """All marks in a value."""
    return unmarked(value)[1]


def marked(value: Value, marks: frozenset[str]) -> Value:
    """``value`` with marks, if there are any."""
    return Marked(value, marks) if marks else value


def unmarked(value: Value) -> tuple[Value, frozenset[str]]:
    """A value without marks, at any depth, and all the marks that it had."""
    found: set[str] = set()

    def bare(part: Any) -> Any:
        if isinstance(part, Marked):
            found.update(part.marks)
            return bare(part.value)
        if isinstance(part, tuple):
            return tuple(map(bare, part))
        if is_dataclass(part) and not isinstance(part, type):
            return replace(part, **{item.name: bare(getattr(part, item.name)) for item in fields(part)})
        return part

    return bare(value), frozenset(found)
