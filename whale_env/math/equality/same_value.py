"""Whether two sympy expressions have the same value, at one point or as functions.

Numbers are equal when their difference vanishes to 90 digits (exact for rationals); expressions when they agree to 40
digits at seeded sample points of both signs, which for the analytic functions of the grammar leaves no room for chance
(Schwartz 1980, Zippel 1979 for polynomials).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
from sympy.core.function import AppliedUndef

from whale_env.math.equality.values import MIN_APPROXIMATION, Decimal, Value, exact


def same_number(left: Value, right: Value) -> bool:
    """Whether two values are the same number or expression; a decimal may be the rounding of the other."""
    for decimal, other in ((left, right), (right, left)):
        if isinstance(decimal, Decimal) and not isinstance(other, Decimal) and _approximates(decimal, other):
            return True
    one, two = exact(left), exact(right)
    if not isinstance(one, sympy.Expr) or not isinstance(two, sympy.Expr):
        return False
    return same_expression(one, two)


def _approximates(decimal: Decimal, other: Value) -> bool:
    """Whether a decimal of full precision is the rounding of a value that has no finite decimal form."""
    target = exact(other)
    if decimal.digits < MIN_APPROXIMATION or not isinstance(target, sympy.Expr) or target.free_symbols:
        return False
    if target.is_Rational and _terminates(int(target.q)):
        return False
    difference = sympy.Abs(_evaluated(target - decimal.value, 60))
    scale = sympy.Abs(_evaluated(target, 20))
    tolerance = sympy.Max(2 * sympy.Rational(10) ** -decimal.places, scale * sympy.Rational(10) ** -14)
    return bool(difference.is_number and difference <= tolerance)


def _terminates(denominator: int) -> bool:
    for prime in (2, 5):
        while denominator % prime == 0:
            denominator //= prime
    return denominator == 1


def _evaluated(value: Any, digits: int) -> Any:
    return sympy.sympify(value).evalf(digits, maxn=2000)


def same_expression(left: Any, right: Any) -> bool:
    """Whether two sympy expressions are the same function of their symbols."""
    if left == right:
        return True
    if left.is_Rational and right.is_Rational:
        return False
    left, right = functions_as_symbols([left, right])
    if left == right:
        return True
    if not (left.is_finite or right.is_finite) and (left.has(sympy.oo) or right.has(sympy.oo)):
        return False
    symbols = sorted(left.free_symbols | right.free_symbols, key=str)
    if not symbols:
        return _vanishes(left - right, left, right, 90)
    return _agree_at_samples(left, right, symbols)


def functions_as_symbols(values: Sequence[Any]) -> list[Any]:
    """Returns expressions with a symbol for each call of an unknown function."""
    calls = sorted(set().union(*(value.atoms(AppliedUndef) for value in values)), key=str)
    names = {call: sympy.Symbol(f"call:{sympy.expand(call)}") for call in calls}
    return [value.xreplace(names) for value in values]


def _vanishes(difference: Any, left: Any, right: Any, digits: int) -> bool:
    value = _evaluated(difference, 15)
    scale = _evaluated(sympy.Abs(left), 15) + _evaluated(sympy.Abs(right), 15)
    if not (value.is_number and scale.is_number) or value.has(sympy.nan, sympy.zoo, sympy.oo):
        return False
    if scale == 0:
        return True
    if sympy.Abs(value) > scale * sympy.Float(10) ** -12:
        return False
    # evalf lowers its own precision where a difference cancels to nothing, so both sides are evaluated apart
    precise = sympy.Abs(left.evalf(digits + 20, maxn=2000) - right.evalf(digits + 20, maxn=2000))
    return bool(precise <= scale * sympy.Float(10) ** -digits)


# Rationals of both signs, below and above one, away from roots of small equations.
_SAMPLES = (
    (7, 11), (13, 17), (-5, 13), (23, 7), (-31, 9), (41, 29), (-17, 41), (3, 37), (57, 19 * 5), (-47, 23), (67, 12),
    (91, 103), (-8, 59), (29, 97), (19, 71),
)  # fmt: skip
_WANTED_SAMPLES = 5


def _agree_at_samples(left: Any, right: Any, symbols: list[Any]) -> bool:
    complex_valued = left.has(sympy.I) or right.has(sympy.I)
    agreed = undefined = 0
    count = len(_SAMPLES)
    for start in range(count):
        point = {
            symbol: sympy.Rational(*_SAMPLES[(start + 4 * place) % count]) + sympy.Rational(place // 3, 7)
            for place, symbol in enumerate(symbols)
        }
        one, two = left.subs(point), right.subs(point)
        try:
            first, second = one.evalf(50, maxn=400), two.evalf(50, maxn=400)
        except (ValueError, TypeError, ArithmeticError):
            undefined += 1
            continue
        if not (_is_value(first) and _is_value(second)):
            if _is_value(first) != _is_value(second) and (
                one.has(sympy.zoo, sympy.nan) != two.has(sympy.zoo, sympy.nan)
            ):
                continue
            undefined += 1
            continue
        if not complex_valued and (first.as_real_imag()[1] != 0 or second.as_real_imag()[1] != 0):
            if first.as_real_imag()[1] != 0 and second.as_real_imag()[1] != 0 and abs(first - second) < 1e-40:
                continue
            if start < count - 3:
                continue
        scale = abs(first) + abs(second) + sympy.Float(10) ** -30
        if abs(first - second) > scale * sympy.Float(10) ** -40:
            return False
        agreed += 1
        if agreed >= _WANTED_SAMPLES:
            return True
    if agreed >= 2:
        return True
    return undefined < count and bool(sympy.simplify(left - right) == 0)


def _is_value(number: Any) -> bool:
    return bool(
        number.is_number
        and number.is_finite
        and all(part.is_Float or part.is_Rational for part in number.as_real_imag())
    )
