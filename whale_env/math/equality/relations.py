"""Equality of equations, inequalities and sets: by their steps, else by their solutions."""

from __future__ import annotations

from typing import Any

import sympy

from whale_env.math.equality.grammar import Unreadable
from whale_env.math.equality.parse import as_set
from whale_env.math.equality.same_value import functions_as_symbols, same_expression
from whale_env.math.equality.values import Decimal, Finite, Items, Relation, Value, exact


def same_relation(left: Relation, right: Relation) -> bool:
    """Whether two relations say the same, step by step in any order."""
    if len(left.operators) != len(right.operators):
        return False
    ones, twos = ([_normal(*step) for step in _steps(side)] for side in (left, right))
    rest = list(twos)
    for one in ones:
        found = next((index for index, two in enumerate(rest) if _same_step(one, two)), None)
        if found is None:
            return False
        del rest[found]
    return True


def _steps(relation: Relation) -> list[tuple[Any, str, Any]]:
    sides = functions_as_symbols(relation.sides)
    return [(*sides[k : k + 1], operator, sides[k + 1]) for k, operator in enumerate(relation.operators)]


def _normal(left: Any, operator: str, right: Any) -> tuple[Any, str]:
    if operator in (">", ">="):
        return right - left, operator.replace(">", "<")
    return left - right, operator


def _same_step(one: tuple[Any, str], two: tuple[Any, str]) -> bool:
    (left, operator), (right, other) = one, two
    if operator != other:
        return False
    if left.free_symbols != right.free_symbols:
        return False
    if operator == "=":  # an equation keeps its solutions without its denominators
        left, right = (sympy.numer(sympy.together(side)) for side in (left, right))
    if same_expression(left, right):
        return True
    ratio = sympy.cancel(left / right) if right != 0 else sympy.nan
    if not ratio.is_number:
        ratio = sympy.simplify(ratio)
    if not ratio.is_number or not ratio.is_real or ratio.is_zero:
        return False
    return operator in ("=", "!=") or bool(ratio > 0)


def same_set(left: Value, right: Value) -> bool:
    """Whether two values are, or are solved by, the same set."""
    try:
        one, two = _solution_set(left), _solution_set(right)
    except Unreadable:
        return False
    if one == two:
        return True
    try:
        return bool((one - two).is_empty and (two - one).is_empty)
    except (TypeError, ValueError, NotImplementedError):
        return False


def _solution_set(value: Value) -> Any:
    if isinstance(value, Relation):
        return _solved(value)
    if isinstance(value, Items) and all(isinstance(item, Relation) for item in value.items):
        sets = [_solved(item) for item in value.items]
        return sympy.Union(*sets) if value.joint == "or" else sympy.Intersection(*sets)
    if isinstance(value, Items):
        return as_set(Finite(value.items))
    if isinstance(value, sympy.Expr | Decimal):
        return sympy.FiniteSet(exact(value))
    return as_set(value)


def _solved(relation: Relation) -> Any:
    steps = _steps(relation)
    symbols = set().union(*(left.free_symbols | right.free_symbols for left, _, right in steps))
    if len(symbols) != 1:
        raise Unreadable("a relation in several unknowns")
    symbol = symbols.pop()
    real = sympy.Symbol("t", real=True)
    result: Any = sympy.S.Reals
    kinds = {"<": sympy.Lt, "<=": sympy.Le, ">": sympy.Gt, ">=": sympy.Ge, "!=": sympy.Ne, "=": sympy.Eq}
    for left, operator, right in steps:
        condition = kinds[operator](left.subs(symbol, real), right.subs(symbol, real))
        if condition in (sympy.true, sympy.false):
            result = result & (sympy.S.Reals if condition == sympy.true else sympy.S.EmptySet)
            continue
        linear = _half_line(left.subs(symbol, real) - right.subs(symbol, real), operator, real)
        if linear is not None:
            result = result & linear
            continue
        try:
            if operator in ("=", "!="):
                roots = sympy.solveset(condition.lhs - condition.rhs, real, sympy.S.Reals)
                result = result & roots if operator == "=" else result - roots
            else:
                result = result & sympy.solve_univariate_inequality(condition, real, relational=False)
        except (NotImplementedError, ValueError, TypeError) as error:
            raise Unreadable("an inequality that cannot be solved") from error
    return result


def _half_line(difference: Any, operator: str, symbol: Any) -> Any | None:
    """The solutions of a linear ``difference operator 0``, which need no general solver; None if it is not linear."""
    slope = difference.diff(symbol)
    if slope.free_symbols or not slope.is_number or not slope.is_real or slope.is_zero is not False:
        return None
    root = sympy.expand(symbol - difference / slope)
    if root.free_symbols or not root.is_real:
        return None
    if operator in ("=", "!="):
        point = sympy.FiniteSet(root)
        return point if operator == "=" else sympy.S.Reals - point
    below = (operator[0] == "<") == bool(slope > 0)
    strict = "=" not in operator
    return sympy.Interval(-sympy.oo, root, True, strict) if below else sympy.Interval(root, sympy.oo, strict, True)
