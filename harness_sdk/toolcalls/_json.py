"""Where a JSON object ends inside a longer text, and whether it can be stored. Knows no schema; reads no value."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from harness_sdk.toolcalls._scan import find
from whale_env.strict_json import MAX_DEPTH

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
