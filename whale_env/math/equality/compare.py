"""Equality of parsed answers.

The rules are those of ``docs/verifiers.md``; when two expressions have the same value is decided in `same_value`, for
equations, inequalities and sets in `relations`. The two sides are not symmetric: the reference decides what form is
asked for. Runs in a worker; neither parses text nor bounds its own time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import sympy
from sympy.core.function import AppliedUndef

from whale_env.math.equality.expression import expression
from whale_env.math.equality.grammar import Unreadable
from whale_env.math.equality.leaf import letter_unit
from whale_env.math.equality.parse import parse
from whale_env.math.equality.relations import same_relation, same_set
from whale_env.math.equality.same_value import same_expression, same_number
from whale_env.math.equality.text import canonical, cleaned, without_prose
from whale_env.math.equality.units import same_unit
from whale_env.math.equality.values import (
    ANGLE,
    APPROXIMATION,
    CONSTANT,
    Based,
    Bracketed,
    Choice,
    Decimal,
    Finite,
    Items,
    Named,
    Quantity,
    Ratio,
    Relation,
    Text,
    Value,
    exact,
    unmarked,
)

_TIME = re.compile(r"[0-9]{1,2}:[0-5][0-9](?::[0-5][0-9])?")
_DECIMAL_COMMA = re.compile(r"([-+]?[0-9]+),([0-9]+)")
_DECIMAL_POINT = re.compile(r"[-+]?[0-9]*\.[0-9]+")


def equal(reference: str, answer: str) -> bool:
    """Whether two texts denote the same answer; False where either cannot be read and the texts differ."""
    wanted, given = cleaned(without_prose(reference, reference=True), reference=True), cleaned(without_prose(answer))
    if not given:
        return False
    if _commas_are_points(wanted, given):
        return True
    left: Value | None
    right: Value | None
    left = right = None
    asked = done = frozenset[str]()
    try:
        left, asked = unmarked(parse(reference, reference=True))
    except Unreadable as refused:
        if str(refused) in ("it is undefined", "it is empty") or "division by zero" in str(refused):
            return False
    if reference.strip() == answer.strip():
        return True
    with contextlib.suppress(Unreadable):
        right, done = unmarked(parse(answer))
    if left is None or right is None:
        return canonical(wanted) == canonical(given) and bool(canonical(wanted))
    if not _is_symbolic(left) and _leaves_work(asked, done):
        return False
    if same(left, right) or (isinstance(left, Text) and canonical(wanted) == canonical(given)):
        return True
    return _same_with_letter_unit(left, given)


_OPEN_TO_CONSTANTS = frozenset({ANGLE, APPROXIMATION})


def _leaves_work(asked: frozenset[str], given: frozenset[str]) -> bool:
    r"""Whether an answer with the marks ``given`` is no value where the numeric reference has the marks ``asked``.

    A reference that is itself unworked (``2^{200}``) accepts any form; one that is a plain number only plain numbers;
    any other (``6\sqrt{2}``) what holds constants, but no arithmetic that is yet to be done.
    """
    if asked & _OPEN_TO_CONSTANTS:
        asked = asked - _OPEN_TO_CONSTANTS | {CONSTANT}
    return asked <= {CONSTANT} and not given - _OPEN_TO_CONSTANTS <= asked


def _is_symbolic(value: Value) -> bool:
    """Whether an expression in unknowns stands anywhere in a value; the bare unknown of ``x > 7`` is only a name."""
    if isinstance(value, tuple):
        return any(map(_is_symbolic, value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return any(_is_symbolic(getattr(value, field.name)) for field in dataclasses.fields(value))
    if isinstance(value, sympy.Expr):
        return bool(value.free_symbols or value.atoms(AppliedUndef)) and not isinstance(
            value, sympy.Symbol | AppliedUndef
        )
    return isinstance(value, sympy.Basic) and bool(value.free_symbols)


def problem(reference: str) -> str:
    """Why ``reference`` cannot be read; empty when it can."""
    try:
        value = parse(reference, reference=True)
    except Unreadable as refused:
        return str(refused)
    if isinstance(value, Text) and value.words.lower() == "nan":
        return "it is not a value"
    return ""


def _commas_are_points(wanted: str, given: str) -> bool:
    """``2,74`` is ``2.74`` where the other side is a decimal number, and not where it is a thousands group."""
    for one, other in ((wanted, given), (given, wanted)):
        match = _DECIMAL_COMMA.fullmatch(one)
        if match and _DECIMAL_POINT.fullmatch(other):
            whole, fraction = match.groups()
            if len(fraction) == 3 and whole.lstrip("+-").lstrip("0") and len(whole.lstrip("+-")) <= 3:
                return False
            return bool(sympy.Rational(f"{whole}.{fraction}") == sympy.Rational(other))
    return False


def _same_with_letter_unit(left: Value, given: str) -> bool:
    """Reads ``5m`` as five metres where the reference has no letters that it could mean."""
    if not isinstance(_bare(left), sympy.Number):
        return False
    measured = letter_unit(given)
    return measured is not None and same(left, Quantity(*measured))


def _bare(value: Value) -> Any:
    while isinstance(value, Quantity | Decimal | Named):
        value = value.value
    return value


# ---------------------------------------------------------------- dispatch


def same(left: Value, right: Value) -> bool:
    """Whether the answer ``right`` satisfies the reference ``left``."""
    left, right = _unwrapped(left), _unwrapped(right)
    if isinstance(left, Named) or isinstance(right, Named):
        return _same_named(left, right)
    if isinstance(left, Choice) or isinstance(right, Choice):
        return _same_choice(left, right)
    if isinstance(left, Text) or isinstance(right, Text):
        return _same_text(left, right)
    if isinstance(left, Quantity) or isinstance(right, Quantity):
        return _same_quantity(left, right)
    if isinstance(left, Ratio) or isinstance(right, Ratio):
        return _same_ratio(left, right)
    if isinstance(left, Based) or isinstance(right, Based):
        return _same_numeral(left, right)
    if isinstance(left, Relation) and isinstance(right, Relation):
        return same_relation(left, right)
    if any(isinstance(side, sympy.Set | Relation) for side in (left, right)) or _conditions(left) != _conditions(right):
        return same_set(left, right)
    if isinstance(left, sympy.MatrixBase) or isinstance(right, sympy.MatrixBase):
        return _same_matrix(left, right)
    if isinstance(left, Items | Finite | Bracketed) or isinstance(right, Items | Finite | Bracketed):
        return _same_items(left, right)
    return same_number(left, right)


def _unwrapped(value: Value) -> Value:
    while isinstance(value, Items | Finite) and len(value.items) == 1:
        value = value.items[0]
    return value


def _conditions(value: Value) -> bool:
    return isinstance(value, Items) and all(isinstance(item, Relation) for item in value.items)


# ---------------------------------------------------------------- names, words, choices


def _same_named(left: Value, right: Value) -> bool:
    if isinstance(left, Named) and isinstance(right, Named):
        one, two = left.label.lower(), right.label.lower()
        if one != two:
            return False
        value = right.value
        if left.argument != right.argument and left.argument and right.argument and isinstance(value, sympy.Expr):
            value = value.subs(sympy.Symbol(right.argument), sympy.Symbol(left.argument))
        return same(left.value, value)
    named, other = (left, right) if isinstance(left, Named) else (right, left)
    if isinstance(other, Relation):
        return other.operators == ("=",) and same_relation(_as_relation(named), other)
    if isinstance(left, Named):
        return same(left.value, right)
    return same(left, named.value)


def _as_relation(named: Named) -> Relation:
    return Relation((sympy.Symbol(named.label), exact(named.value)), ("=",))


def _same_choice(left: Value, right: Value) -> bool:
    if isinstance(left, Choice) and isinstance(right, Choice):
        return left.letter == right.letter
    choice, other = (left, right) if isinstance(left, Choice) else (right, left)
    if isinstance(other, Text | sympy.Symbol) and str(getattr(other, "words", other)).strip("()") == choice.letter:
        return True
    return isinstance(left, Choice) and same(left.content, right)


def _same_text(left: Value, right: Value) -> bool:
    if isinstance(left, sympy.Mul) and isinstance(right, Text) and re.fullmatch("[A-Za-z]{3,8}", right.words):
        return same_expression(left, expression(right.words))  # "bac" is no word where a product is asked for
    one, two = (_word_form(side) for side in (left, right))
    if one is None or two is None:
        return _same_as_words(left, right)
    return one == two or (min(len(one), len(two)) > 1 and one.lower() == two.lower())


def _same_as_words(left: Value, right: Value) -> bool:
    """Whether words name the set on the other side."""
    text, other = (left, right) if isinstance(left, Text) else (right, left)
    words = " ".join(re.findall("[a-z]+", text.words.lower())) if isinstance(text, Text) else ""
    named = next((value for names, value in _NAMED_SETS if words in names), None)
    return named is not None and same_set(named, other)


_NAMED_SETS: tuple[tuple[frozenset[str], Any], ...] = (
    (
        frozenset({"all real numbers", "all reals", "the real numbers", "any real number", "real numbers"}),
        sympy.S.Reals,
    ),
    (frozenset({"all integers", "the integers", "any integer", "integers"}), sympy.S.Integers),
    (frozenset({"no solution", "no solutions", "the empty set", "empty set"}), Finite(())),
)


def _word_form(value: Value) -> str | None:
    if isinstance(value, Text):
        words = re.sub(r"[.,!?()'\"$]", " ", value.words).split()
        if " ".join(words).lower() == "no solutions":
            words = ["no", "solution"]
        return " ".join(words[1:] if len(words) > 1 and words[0].lower() in ("a", "an", "the") else words)
    if isinstance(value, sympy.Symbol):
        return str(value)
    if value is sympy.E or value is sympy.I:
        return "e" if value is sympy.E else "i"
    if isinstance(value, sympy.Mul) and all(isinstance(factor, sympy.Symbol) for factor in value.args):
        return None
    return None


# ---------------------------------------------------------------- numbers and quantities


def _same_quantity(left: Value, right: Value) -> bool:
    left_unit, left_value = _unit(left)
    right_unit, right_value = _unit(right)
    if "%" in (left_unit, right_unit):
        return _same_percent(left_unit, left_value, right_unit, right_value)
    if left_unit and right_unit:
        factor = same_unit(left_unit, right_unit)
        if factor is None:
            return False
        return same(left_value, right_value if factor == 1 else _times(right_value, factor))
    if same(left_value, right_value):
        return True
    if "degree" in (left_unit, right_unit) and not (left_unit and right_unit):
        radians = sympy.pi / 180
        if left_unit:
            return same(_times(left_value, radians), right_value)
        return same(left_value, _times(right_value, radians))
    return False


def _unit(value: Value) -> tuple[str, Value]:
    return (value.unit, value.value) if isinstance(value, Quantity) else ("", value)


def _times(value: Value, factor: Any) -> Value:
    value = exact(value)
    return value * factor if isinstance(value, sympy.Expr) else value


def _same_percent(left_unit: str, left: Value, right_unit: str, right: Value) -> bool:
    if same(left, right):
        return True
    if left_unit == right_unit:
        return False
    hundredth = sympy.Rational(1, 100)
    if left_unit == "%":
        return right_unit == "" and same(_times(left, hundredth), right)
    return left_unit == "" and same(left, _times(right, hundredth))


def _same_numeral(left: Value, right: Value) -> bool:
    if isinstance(left, Based) and isinstance(right, Based):
        return left.digits.upper() == right.digits.upper() and left.base == right.base
    if isinstance(left, Based):
        value = exact(right)
        return isinstance(value, sympy.Integer) and left.digits == str(value)
    value = exact(left)
    return right.base == "10" and isinstance(value, sympy.Integer) and right.digits == str(value)


def _same_ratio(left: Value, right: Value) -> bool:
    if isinstance(left, Ratio) and isinstance(right, Ratio):
        if len(left.parts) != len(right.parts):
            return False
        if all(same(one, two) for one, two in zip(left.parts, right.parts, strict=True)):
            return True
        ones, twos = ([exact(part) for part in side.parts] for side in (left, right))
        if _TIME.match(left.source) or not all(isinstance(part, sympy.Expr) and part != 0 for part in ones + twos):
            return False
        return all(same_expression(a * d, b * c) for (a, b), (c, d) in zip(pairwise(ones), pairwise(twos), strict=True))
    ratio, other = (left, right) if isinstance(left, Ratio) else (right, left)
    parts = [exact(part) for part in ratio.parts]
    if len(parts) != 2 or not all(isinstance(part, sympy.Expr) for part in parts) or parts[1] == 0:
        return False
    if isinstance(right, Ratio) and exact(left).is_Integer and parts[1] != 1:
        return False  # a division that is yet to be done
    return isinstance(exact(other), sympy.Expr) and same_expression(parts[0] / parts[1], exact(other))


# ---------------------------------------------------------------- collections


def _same_items(left: Value, right: Value) -> bool:
    if not isinstance(left, Items | Finite | Bracketed) or not isinstance(right, Items | Finite | Bracketed):
        return False
    ones, twos = list(left.items), list(right.items)
    if isinstance(left, Bracketed) and isinstance(right, Bracketed):
        if len(ones) == 2 and (left.opening, left.closing) != (right.opening, right.closing):
            return False
        return _same_in_order(ones, twos)
    if isinstance(left, Bracketed):
        return isinstance(right, Items) and left.opening + left.closing == "()" and _same_in_order(ones, twos)
    if isinstance(right, Bracketed):
        # square brackets are a program's list where they can be no interval
        listed = len(twos) > 2 or all(isinstance(two, Bracketed) for two in twos)
        return right.opening + right.closing in ("()", "[]" if listed else "()") and (
            _same_in_order(ones, twos) if _labels(ones) else _same_in_any_order(ones, twos)
        )
    if isinstance(left, Items) and isinstance(right, Items):
        flat = _flat(ones), _flat(twos)
        if _nested(ones) != _nested(twos) and not any(isinstance(item, Bracketed) for item in ones + twos):
            ones, twos = flat
    one_labels, two_labels = _labels(ones), _labels(twos)
    if (_numbered(one_labels) and len(two_labels) <= 1) or (_numbered(two_labels) and len(one_labels) <= 1):
        return _same_in_any_order([_unnamed(item) for item in ones], [_unnamed(item) for item in twos])
    if len(one_labels | two_labels) > 1 and bool(one_labels) != bool(two_labels):
        return _same_in_order([_unnamed(item) for item in ones], [_unnamed(item) for item in twos])
    if len(one_labels) <= 1 and len(two_labels) <= 1:
        if one_labels and two_labels and {x.lower() for x in one_labels} != {x.lower() for x in two_labels}:
            return False
        ones, twos = [_unnamed(item) for item in ones], [_unnamed(item) for item in twos]
    if isinstance(left, Finite) or isinstance(right, Finite) or isinstance(ones[0], Bracketed):
        # a point listed twice is one point; a number listed twice may be a double root
        ones, twos = _distinct(ones), _distinct(twos)
    return _same_in_any_order(ones, twos)


def _numbered(labels: set[str]) -> bool:
    """Whether the labels are ``x_1, x_2, …``, which number the roots in no order of their own."""
    bases = {label.partition("_")[0] for label in labels}
    return len(bases) == 1 and {label.partition("_")[2] for label in labels} == {str(k + 1) for k in range(len(labels))}


def _nested(items: list[Value]) -> bool:
    return any(isinstance(item, Items) for item in items)


def _flat(items: Sequence[Value]) -> list[Value]:
    flat: list[Value] = []
    for item in items:
        flat.extend(item.items if isinstance(item, Items) else (item,))
    return flat


def _labels(items: list[Value]) -> set[str]:
    return {item.label for item in items if isinstance(item, Named)}


def _unnamed(item: Value) -> Value:
    return item.value if isinstance(item, Named) else item


def _same_in_order(ones: list[Value], twos: list[Value]) -> bool:
    if len(ones) != len(twos):
        return False
    return all(same(_unnamed(one), _unnamed(two)) for one, two in zip(ones, twos, strict=True))


def _same_in_any_order(ones: list[Value], twos: list[Value]) -> bool:
    if len(ones) != len(twos):
        return False
    rest = list(twos)
    for one in ones:
        found = next((index for index, two in enumerate(rest) if same(one, two)), None)
        if found is None:
            return False
        del rest[found]
    return True


def _distinct(items: list[Value]) -> list[Value]:
    kept: list[Value] = []
    for item in items:
        if not any(same(item, other) for other in kept):
            kept.append(item)
    return kept


def _same_matrix(left: Value, right: Value) -> bool:
    left, right = _matrix_of_rows(left), _matrix_of_rows(right)
    if isinstance(left, Bracketed) or isinstance(right, Bracketed):
        left, right = _components(left), _components(right)
        return left is not None and right is not None and _same_in_order(left, right)
    if not isinstance(left, sympy.MatrixBase) or not isinstance(right, sympy.MatrixBase) or left.shape != right.shape:
        return False
    return all(same_expression(one, two) for one, two in zip(left, right, strict=True))


def _matrix_of_rows(value: Value) -> Value:
    """Reads a program's ``[[1, 2], [3, 4]]`` as the matrix with these rows; other values stay."""
    if not isinstance(value, Bracketed) or not all(isinstance(row, Bracketed) for row in value.items):
        return value
    rows = [[exact(item) for item in row.items] for row in value.items]
    same_length = len({len(row) for row in rows}) == 1
    if not rows or not same_length or not all(isinstance(item, sympy.Expr) for row in rows for item in row):
        return value
    return sympy.ImmutableMatrix(rows)


def _components(value: Value) -> list[Value] | None:
    """The entries of a vector, however it is written: a tuple, a row or a column."""
    if isinstance(value, Bracketed):
        return list(value.items) if value.opening + value.closing == "()" else None
    return list(value) if isinstance(value, sympy.MatrixBase) and 1 in value.shape else None
