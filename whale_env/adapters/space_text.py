"""Observations of Gymnasium spaces as text and as JSON data, and terminal colours as words.

Covers numbers, texts and containers of them up to `MAX_NUMBERS` numbers. Images are not covered: as text they would
fill a context and say nothing. Environments that draw themselves as text (``"ansi"``) are shown as they draw.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from whale_env.types import Json

MAX_NUMBERS = 1024
"""Numbers in one observation that can still be read."""

_COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
_SPAN = re.compile(r"\x1b\[([\d;]*)m(.*?)\x1b\[0?m", re.DOTALL)
_ESCAPE = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")


def size(space: spaces.Space[Any]) -> int | None:
    """Returns how many single values an observation of a space has, or None where that is not known."""
    match space:
        case spaces.Discrete() | spaces.Text():
            return 1
        case spaces.Dict():
            parts = [size(item) for item in space.spaces.values()]
        case spaces.Tuple():
            parts = [size(item) for item in space.spaces]
        case spaces.Box() | spaces.MultiDiscrete() | spaces.MultiBinary():
            return math.prod(space.shape)
        case _:
            return None
    return None if None in parts else sum(part or 0 for part in parts)


def plain(value: Any) -> Json:
    """Returns an observation as JSON data; floats keep six significant digits, those that are not finite are texts."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def text(data: Json) -> str:
    """Returns JSON data as a person would want to read it: named parts by line, rows by line, numbers by comma."""
    if isinstance(data, Mapping):
        return "\n".join(f"{key}:{_beside(text(item))}" for key, item in data.items())
    if isinstance(data, list):
        nested = any(isinstance(item, (list, Mapping)) for item in data)
        return ("\n" if nested else ", ").join(map(text, data))
    return str(data)


def without_escapes(drawing: str) -> str:
    """Returns a terminal drawing as plain text; a coloured part keeps its colour as a word: ``[red S]``."""
    return _ESCAPE.sub("", _SPAN.sub(_named, drawing)).strip("\n")


def _named(span: re.Match[str]) -> str:
    codes = [int(code) for code in span[1].split(";") if code]
    colour = next((_COLOURS[code % 10] for code in codes if code // 10 in (3, 4, 9) and code % 10 < 8), None)
    return span[2] if colour is None else f"[{colour} {span[2]}]"


def _beside(shown: str) -> str:
    return "\n" + shown if "\n" in shown else " " + shown
