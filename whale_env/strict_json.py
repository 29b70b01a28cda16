"""JSON that holds what JSON can: no NaN, no infinity, no repeated name, bounded depth.

Python's own reader takes all of these. What the data mean is the caller's business, records of logs `json_lines`'s.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, NoReturn

from whale_env.errors import InputError
from whale_env.wording import first_line, shortened

MAX_DEPTH = 100
"""Deepest nesting accepted: `json` and `copy.deepcopy` can recurse so far from anywhere in a program."""


def read_json(text: str, *, max_depth: int = MAX_DEPTH, lenient: bool = False) -> Any:
    """Returns the value of a JSON text.

    Args:
        text: The text.
        max_depth: Deepest nesting of objects and arrays.
        lenient: Take what models write: raw line breaks in strings, and repeated names, of which the last one counts.

    Raises:
        InputError: Not JSON, too deep, a number without a finite value, or a repeated name.
    """
    pairs = None if lenient else _distinct
    try:
        value = json.loads(
            text, strict=not lenient, parse_constant=_refused, parse_float=_finite, object_pairs_hook=pairs
        )
    except json.JSONDecodeError as error:
        raise InputError(f"{error.msg} at character {error.pos}") from None
    except InputError:
        raise
    except ValueError as error:  # of an integer with thousands of digits
        raise InputError(first_line(error)) from None
    except RecursionError:
        raise InputError(f"nested deeper than {max_depth} levels") from None
    if text.count("[") + text.count("{") > max_depth and not _is_shallow(value, max_depth):
        raise InputError(f"nested deeper than {max_depth} levels")
    return value


def read_object(text: str, what: str) -> dict[str, Any]:
    """Returns the value of a JSON text that must be an object.

    Args:
        text: The text.
        what: What to call it in the message, e.g. ``--env-args``.

    Raises:
        InputError: It is none.
    """
    try:
        value = read_json(text)
    except InputError as error:
        raise InputError(f"{what} must be a JSON object, not {shortened(text, 200)!r}: {error}") from None
    if not isinstance(value, dict):
        raise InputError(f"{what} must be a JSON object, not {shortened(text, 200)!r}")
    return value


def is_json(value: Any) -> bool:
    """Whether a value is plain JSON data (finite numbers, string keys)."""
    if isinstance(value, float):
        return math.isfinite(value)
    if value is None or isinstance(value, (bool, int, str)):
        return True
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and is_json(item) for key, item in value.items())
    return isinstance(value, (list, tuple)) and all(map(is_json, value))


def _refused(word: str) -> NoReturn:
    raise InputError(f"{word} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise InputError(f"number {digits[:20]} is too large")
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        raise InputError(f"the name {next(name for name in value if names.count(name) > 1)!r:.80} stands twice")
    return value


def _is_shallow(value: Any, max_depth: int) -> bool:
    level = [value]
    for _ in range(max_depth):
        level = [
            item
            for holder in level
            for item in (holder.values() if isinstance(holder, dict) else holder)
            if isinstance(item, (dict, list))
        ]
        if not level:
            return True
    return False
