"""Units of measure, as far as answers to school problems use them.

`same_unit` says whether two unit texts agree and by which factor. Units that both sides name and that this table knows
must agree in kind; others are compared as words. Not a units library: no temperatures, no derived units beyond powers.
"""

from __future__ import annotations

import re
from typing import Any

from sympy import Integer, Rational

# name: (dimension, power, factor to the base unit of the dimension)
_LENGTH = {
    "mm": Rational(1, 1000), "millimeter": Rational(1, 1000), "cm": Rational(1, 100), "centimeter": Rational(1, 100),
    "dm": Rational(1, 10), "m": Integer(1), "meter": Integer(1), "km": Integer(1000), "kilometer": Integer(1000),
    "in": Rational(254, 10000), "inch": Rational(254, 10000), "ft": Rational(3048, 10000),
    "foot": Rational(3048, 10000), "yd": Rational(9144, 10000), "yard": Rational(9144, 10000),
    "mi": Rational(1609344, 1000), "mile": Rational(1609344, 1000),
}  # fmt: skip
_TIME = {
    "s": Integer(1), "sec": Integer(1), "second": Integer(1), "min": Integer(60), "minute": Integer(60),
    "h": Integer(3600), "hr": Integer(3600), "hour": Integer(3600), "day": Integer(86400), "week": Integer(604800),
}  # fmt: skip
_MASS = {
    "mg": Rational(1, 1000), "g": Integer(1), "gram": Integer(1), "kg": Integer(1000), "kilogram": Integer(1000),
    "lb": Rational(45359237, 100000), "pound": Rational(45359237, 100000), "oz": Rational(45359237, 1600000),
    "ounce": Rational(45359237, 1600000),
}  # fmt: skip
_MONEY = {"dollar": Integer(1), "buck": Integer(1), "usd": Integer(1), "cent": Rational(1, 100)}
_VOLUME = {"l": Integer(1), "liter": Integer(1), "ml": Rational(1, 1000), "milliliter": Rational(1, 1000)}
_ANGLE = {"degree": Integer(1), "deg": Integer(1)}
_TABLES = {
    "length": _LENGTH, "time": _TIME, "mass": _MASS, "money": _MONEY, "volume": _VOLUME, "angle": _ANGLE,
}  # fmt: skip
_KNOWN = {name: (kind, factor) for kind, table in _TABLES.items() for name, factor in table.items()}
_IRREGULAR = {
    "feet": "foot", "inches": "inch", "mph": "mile/hour", "kph": "km/hour", "km/h": "km/hour", "metre": "meter",
    "litre": "liter", "people": "person",
}  # fmt: skip
_PIECE = re.compile(r"([A-Za-z°.]+)(?:\^?\{?(-?[0-9])\}?)?|(/)")


def same_unit(left: str, right: str) -> Any | None:
    """The factor that turns a value in ``right`` into one in ``left``; None if the units contradict each other."""
    if left.startswith("mod ") or right.startswith("mod "):
        return Integer(1) if left == right else None
    one, two = _words(left), _words(right)
    if one == two:
        return Integer(1)
    first, second = _dimension(one), _dimension(two)
    if first is not None and second is not None:
        return second[1] / first[1] if first[0] == second[0] else None
    if first is not None or second is not None:
        return None if set(one).isdisjoint(two) and (_known_only(one) or _known_only(two)) else Integer(1)
    return None if set(one).isdisjoint(two) else Integer(1)


def _known_only(words: list[str]) -> bool:
    return _dimension(words) is not None


def _words(text: str) -> list[str]:
    text = re.sub(r"\\(?:text|cdot|frac)", " ", text).replace("μ", "micro")
    words: list[str] = []
    for piece in _PIECE.finditer(re.sub(r"[{}]", " ", text).replace(" ^", "^").replace("^ ", "^")):
        name = piece.group(1)
        if name is None:
            words.append("/")
            continue
        name = name.replace(".", "").lower() if len(name) > 1 else name
        name = _IRREGULAR.get(name, name)
        if name.endswith("s") and len(name) > 2 and name not in _KNOWN:
            name = _IRREGULAR.get(name[:-1], name[:-1])
        if name == "per":
            name = "/"
        words.extend(re.split(r"(?=/)|(?<=/)", name))
        if piece.group(2):
            words.append("^" + piece.group(2))
    return [word for word in words if word]


def _dimension(words: list[str]) -> tuple[tuple[tuple[str, int], ...], Any] | None:
    """Dimension exponents and factor of a unit made of known names only."""
    powers: dict[str, int] = {}
    factor: Any = Integer(1)
    sign, pending, last = 1, 1, None
    for word in words:
        if word == "/":
            sign, last = -1, None
        elif word in ("square", "sq", "cubic", "cu"):
            pending = 2 if word.startswith("sq") else 3
        elif word.startswith("^"):
            if last is None:
                return None
            extra = int(word[1:]) - 1
            powers[last[0]] += sign * extra
            factor *= last[1] ** (sign * extra)
        elif word in _KNOWN:
            last = _KNOWN[word]
            powers[last[0]] = powers.get(last[0], 0) + sign * pending
            factor *= last[1] ** (sign * pending)
            pending = 1
        else:
            return None
    if not powers:
        return None
    return tuple(sorted((kind, power) for kind, power in powers.items() if power)), factor
