"""Rules on the size of what constant expressions would build, and on constant patterns.

Only what is written out is computed, with small numbers; what a name holds at run time is left to the cage's limits.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from harness_sdk.validator.allowed import MAX_BITS, MAX_LENGTH, MAX_RANGE
from harness_sdk.validator.report import Problem, shortened
from harness_sdk.validator.tree import Tree

_MAX_ARGUMENT = {"math.factorial": 1000, "math.comb": 10_000, "math.perm": 1000}
_PADDING = frozenset({"ljust", "rjust", "center", "zfill", "expandtabs"})
_PATTERN_CALLS = frozenset(
    f"re.{name}" for name in ("compile", "match", "fullmatch", "search", "findall", "finditer", "sub", "subn", "split")
)
_WIDE_PERCENT = re.compile(r"%[-+ #0]{0,5}\d{7}")


@dataclass(frozen=True, slots=True)
class Length:
    """A sequence of known length."""

    items: int


Known: TypeAlias = int | Length


def check(tree: Tree) -> Iterator[Problem]:
    """Yields every problem with the size of constants and with patterns."""
    known: dict[ast.AST, Known] = {}
    for node in reversed(tree.nodes):
        try:
            value = _measure(tree, node, known)
        except OverflowError as error:
            fix = "build it from data at run time, in a size that the prompt needs"
            yield tree.problem(node, "big-constant", str(error), fix)
        else:
            if value is not None:
                known[node] = value
        if isinstance(node, ast.Call) and tree.called(node) in _PATTERN_CALLS and node.args:
            yield from _pattern(tree, node.args[0])


def _measure(tree: Tree, node: ast.AST, known: dict[ast.AST, Known]) -> Known | None:
    """Returns what is known of a constant expression. Raises `OverflowError` when it is too big."""
    match node:
        case ast.Constant(value=bool()):
            return None
        case ast.Constant(value=int(value)):
            return value
        case ast.Constant(value=str(value) | bytes(value)):
            return Length(len(value))
        case ast.Tuple(elts=items) | ast.List(elts=items):
            return Length(len(items))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = known.get(operand)
            return -inner if isinstance(inner, int) else None
        case ast.BinOp(left=left, op=op, right=right):
            if isinstance(op, ast.Mod) and isinstance(left, ast.Constant) and isinstance(left.value, str):
                if _WIDE_PERCENT.search(left.value):
                    raise OverflowError("the field is wider than a million")
                return None
            return _binary(op, known.get(left), known.get(right))
        case ast.Call(args=args):
            _call(tree, node, [known.get(arg) for arg in args])
    return None


def _binary(op: ast.operator, left: Known | None, right: Known | None) -> Known | None:
    if left is None or right is None:
        return None
    if isinstance(left, Length) or isinstance(right, Length):
        return _sequence(op, left, right)
    bits = max(left.bit_length(), 1)
    match op:
        case ast.Pow() | ast.LShift() if right >= 0:
            size = bits * right if isinstance(op, ast.Pow) else bits + right
            if size > MAX_BITS and (abs(left) > 1 or isinstance(op, ast.LShift)):
                raise OverflowError(f"the number has more than {MAX_BITS} bits")
            return (left**right if abs(left) > 1 else None) if isinstance(op, ast.Pow) else left << right
        case ast.Mult():
            if bits + right.bit_length() > MAX_BITS:
                raise OverflowError(f"the number has more than {MAX_BITS} bits")
            return left * right
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
    return None


def _sequence(op: ast.operator, left: Known, right: Known) -> Length | None:
    if isinstance(left, Length) and isinstance(right, Length):
        return Length(left.items + right.items) if isinstance(op, ast.Add) else None
    if not isinstance(op, ast.Mult):
        return None
    count = left if isinstance(left, int) else right if isinstance(right, int) else 0
    length = left.items if isinstance(left, Length) else right.items if isinstance(right, Length) else 0
    if length * count > MAX_LENGTH:
        raise OverflowError(f"the sequence has more than {MAX_LENGTH} items")
    return Length(length * max(count, 0))


def _call(tree: Tree, node: ast.Call, args: Sequence[Known | None]) -> None:
    name = tree.called(node)
    numbers = [arg for arg in args if isinstance(arg, int)]
    biggest = max(map(abs, numbers), default=0)
    if name in ("range", "itertools.repeat") and biggest > MAX_RANGE:
        raise OverflowError(f"the range has more than {MAX_RANGE} items")
    if name == "pow" and len(numbers) == len(args) == 2:
        _binary(ast.Pow(), numbers[0], numbers[1])
    if name in _MAX_ARGUMENT and biggest > _MAX_ARGUMENT[name]:
        raise OverflowError(f"`{name}` is called with more than {_MAX_ARGUMENT[name]}")
    if isinstance(node.func, ast.Attribute) and node.func.attr in _PADDING and biggest > MAX_LENGTH:
        raise OverflowError("the field is wider than a million")


def _pattern(tree: Tree, node: ast.expr) -> Iterator[Problem]:
    if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        return
    problem = judge_pattern(node.value)
    if problem:
        message, fix = problem
        yield tree.problem(node, "regex", message, fix)


@lru_cache(maxsize=256)
def judge_pattern(pattern: str) -> tuple[str, str] | None:
    """Judges a regular expression.

    Args:
        pattern: The pattern.

    Returns:
        What is wrong and how to fix it, or None. An unbounded repeat whose body can be one unbounded repeat alone, as
        in ``(a+)+``, splits the same text in exponentially many ways.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _judge_parsed(re._parser.parse(pattern))  # type: ignore[attr-defined]  # the only reader there is
    except re.error as error:
        return (
            f"the pattern is not valid: {shortened(error, 100)}",
            "escape what is meant literally, in a raw text r'…'",
        )
    except (RecursionError, OverflowError, MemoryError):
        return "the pattern nests too deep", "split it into several patterns"


def _judge_parsed(parsed: Any) -> tuple[str, str] | None:
    stack: list[Any] = [parsed]
    while stack:
        for op, argument in stack.pop():
            if str(op) in _REPEATS and _unbounded(argument) and _splits(argument[2]):
                message = "the pattern repeats a repeat without bound, which can take exponential time"
                return message, "repeat once: write `a+` for `(a+)+`, or bound one repeat: `{1,20}`"
            stack += _parts(argument)
    return None


_REPEATS = ("MAX_REPEAT", "MIN_REPEAT")


def _unbounded(argument: Any) -> bool:
    return int(argument[1]) > 1000


def _parts(argument: Any) -> list[Any]:
    """Returns the sub-patterns within an operator's argument."""
    if isinstance(argument, re._parser.SubPattern):  # type: ignore[attr-defined]
        return [argument]
    if isinstance(argument, tuple | list):
        return [part for item in argument for part in _parts(item)]
    return []


def _splits(body: Any) -> bool:
    """Whether a repeated body can be one unbounded repeat and nothing else."""
    items = list(body)
    for index, (op, argument) in enumerate(items):
        alone = all(_nullable(item) for i, item in enumerate(items) if i != index) if len(items) <= 32 else False
        if not alone:
            continue
        if str(op) in _REPEATS:
            if _unbounded(argument) and argument[2].getwidth()[1] > 0:
                return True
            if _splits(argument[2]):
                return True
        elif str(op) in ("SUBPATTERN", "BRANCH") and any(_splits(part) for part in _parts(argument)):
            return True
    return False


def _nullable(item: Any) -> bool:
    op, argument = item
    name = str(op)
    if name in ("AT", "ASSERT", "ASSERT_NOT", "GROUPREF"):
        return True
    if name in (*_REPEATS, "POSSESSIVE_REPEAT"):
        return int(argument[0]) == 0 or argument[2].getwidth()[0] == 0
    if name in ("SUBPATTERN", "BRANCH", "ATOMIC_GROUP"):
        return any(part.getwidth()[0] == 0 for part in _parts(argument))
    return False
