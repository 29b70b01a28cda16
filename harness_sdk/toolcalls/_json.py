"""Strict JSON from model text: no NaN, no infinity, bounded depth, no exception but `ValueError`.

Also finds where a JSON object ends inside a longer text. Knows no schema.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from harness_sdk.toolcalls._scan import find

MAX_DEPTH = 100
"""Deepest nesting accepted: `json` and `copy.deepcopy` can recurse so far from anywhere in a program."""

# A string, a bracket, or a character that JSON has nowhere outside a string. Stopping there keeps a broken object from
# being read across the calls that follow it.
_LEXEME = re.compile(r'"(?:[^"\\]++|\\.)*+(?P<close>"?)|(?P<open>[{\[])|(?P<shut>[}\]])|(?P<stop>[<\\])', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Extent:
    """Where a JSON object ends.

    Attributes:
        end: Position after the closing brace, or where reading stopped.
        state: ``cut`` when the text ended first, ``broken`` at a character that cannot belong to JSON.
    """

    end: int
    state: Literal["whole", "cut", "broken", "deep"]


def extent(text: str, start: int) -> Extent:
    """Returns the extent of the object or array that opens at `start`, by its brackets and strings alone."""
    depth, position = 0, start
    while lexeme := find(_LEXEME, text, position):
        position = lexeme.end()
        if lexeme["open"]:
            depth += 1
            if depth > MAX_DEPTH:
                return Extent(position, "deep")
        elif lexeme["shut"]:
            depth -= 1
            if depth <= 0:
                return Extent(position, "whole")
        elif lexeme["stop"]:
            return Extent(lexeme.start(), "broken")
        elif not lexeme["close"]:
            break
    return Extent(len(text), "cut")


def _reject(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError(f"number {digits[:20]} is too large")
    return value


def loads(text: str) -> Any:
    """Returns the value of a JSON text. Raw line breaks and tabs inside strings are accepted, as models write them.

    Raises:
        ValueError: Not JSON, nested deeper than `MAX_DEPTH`, or a number without a finite value.
    """
    opening = len(text) - len(text.lstrip())
    if text[opening : opening + 1] in ("{", "[") and extent(text, opening).state == "deep":
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    try:
        return json.loads(text, strict=False, parse_constant=_reject, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} at character {error.pos}") from None
    except RecursionError:
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels") from None


def encodable(value: Any) -> bool:
    """Whether every string in a JSON value can be written as UTF-8."""
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, str):
            try:
                item.encode()
            except UnicodeEncodeError:
                return False
        elif isinstance(item, dict):
            todo.extend(item)
            todo.extend(item.values())
        elif isinstance(item, list):
            todo.extend(item)
    return True
