"""Numbers and quantities: decimals, numerals with a base, percent, units, degrees, moduli, else an expression.

Notation beyond our own grammar (`expression`) falls back on the LaTeX grammar of
`latex2sympy2_extended`, which builds sympy objects without evaluating code either. No lists, relations or sets here.
"""

from __future__ import annotations

import re
from typing import Any

import sympy
from sympy.core.function import AppliedUndef

from whale_env.math.equality.expression import expression, finite
from whale_env.math.equality.grammar import Unreadable
from whale_env.math.equality.values import (
    ANGLE,
    APPROXIMATION,
    MIN_APPROXIMATION,
    Based,
    Decimal,
    Marked,
    Quantity,
    Text,
    Value,
    exact,
    marked,
    marks_of,
)

_OPEN, _CLOSE = "([{", ")]}"


def depths(text: str) -> list[int]:
    """The bracket depth at each character; an escape counts as the bracket that it prints."""
    depths, depth = [], 0
    for index, char in enumerate(text):
        if text.startswith("\\begin{", index):
            depth += 1
        if char in _OPEN:
            depths.append(depth)
            depth += 1
        elif char in _CLOSE:
            depth -= 1
            depths.append(depth)
        else:
            depths.append(depth)
        if text.startswith("\\end{", index):
            depth -= 1
    return depths


TEXT_ONLY = re.compile(r"\\text\{([^{}]*)\}")
_GROUPED = re.compile(r"(?<![0-9.,A-Za-z_])([1-9][0-9]{0,2}(?:,[0-9]{3})+)(?![0-9]|,[0-9])")


def grouped(text: str) -> str:
    """Removes thousands commas; inside brackets only where the separating commas are spaced."""
    depth = depths(text)
    spaced = re.search(r", ", text) is not None

    def join(match: re.Match[str]) -> str:
        return match.group().replace(",", "") if depth[match.start()] == 0 or spaced else match.group()

    return _GROUPED.sub(join, text)


_DECIMAL = re.compile(r"[-+]?\s*(?:([0-9]+)\.([0-9]*)|\.([0-9]+))")
_REPEATING = re.compile(r"([-+]?)\s*([0-9]*)\.([0-9]*)\s*\\(?:overline|bar|dot)\s*\{?\s*([0-9]+)\s*\}?")
_DOTTED = re.compile(r"([-+]?)\s*([0-9]*)\.([0-9]*?)([0-9]+?)\4{2,}\s*\\ldots")
_NUMBER_WORDS = (
    "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen", "fourteen",
    "fifteen", "sixteen",
)  # fmt: skip
_BASES = {word: str(base) for base, word in enumerate(_NUMBER_WORDS, 2)}
_BASED = re.compile(
    r"([0-9][0-9A-F]*+|[A-F]++[0-9][0-9A-F]*+)\s*_\s*(?:\{\s*(?:\\text\{\s*)?([0-9]+|[a-z]+)\s*\}?\s*\}|([0-9]+))"
)
_PERCENT = re.compile(
    r"\s*(?:%|\\text\{\s*(?:%|percent(?:age)?|pct)\.?\s*\}|\bpercent(?:age)?(?: points?)?|\bpct\.?"
    r"|(?<=[0-9])(?:percent(?:age)?|pct))\s*$"
)
_SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
_SCALE = re.compile(rf"\s*(?:\\text\{{\s*({'|'.join(_SCALES)})s?\s*\}}|({'|'.join(_SCALES)})s?)\s*$")
_UNIT_WORD = (
    r"(?:square|cubic|sq|cu|k?m/h|mph|kph|[kcdmμ]m|mi|ft|feet|foot|in|inch(?:es)?|yd|yards?|miles?|(?:kilo|centi|milli|deci)?"
    r"met(?:er|re)s?|(?:kilo|milli)?grams?|kg|mg|lbs?|pounds?|ounces?|oz|tons?|(?:milli)?lit(?:er|re)s?|ml|mL|gallons?|seconds?|secs?|sec|"
    r"minutes?|mins?|hours?|hrs?|hr|days?|weeks?|months?|years?|yrs?|degrees?|radians?|rad|dollars?|cents?|bucks|yuan|euros?|"
    r"rupees?|pesos?|yen|USD|EUR|units?|points?|pts|people|persons?|students?|ways?|times|per|Hz|kHz|"
    r"st|nd|rd|th|Pa|kPa|joules?|newtons?|watts?|volts?|amps?|°|pm|am|PM|AM|p\.m\.|a\.m\.)"
)
_POWER = r"(?:\s*\^\s*\{?\s*-?[0-9]\s*\}?)?+"  # possessive here and below: a tail can be cut in too many ways
_TEXT_TAIL = re.compile(rf"\s*((?:\\text\{{[^{{}}0-9]*\}}{_POWER}\s*(?:/\s*)?)++)$")
_UNIT_TAIL = re.compile(
    rf"(?:(?<=[0-9}})])\s*|\s+)({_UNIT_WORD}(?![A-Za-z]){_POWER}"
    rf"(?:\s*+(?:(?:[/*]|\\cdot)\s*+)?+(?:{_UNIT_WORD}|[smhgLNJWKCF])(?![A-Za-z]){_POWER})*+\.?)$"
)
_LETTER_UNIT_TAIL = re.compile(rf"(?<=[0-9])\s*([mgsLlhN]{_POWER}(?:/[smh]{_POWER})?)$")
_WORD_TAIL = re.compile(r"(?<=[0-9}).]) ((?:[A-Za-z][A-Za-z'-]{2,}+ ?+){1,4})\.?$")
_DEGREE_TAIL = re.compile(r"\s*\^\s*\\circ\s*(?:\\text\{\s*([CFK])\s*\}|([CFK]))?\s*$")
_MODULUS_TAIL = re.compile(r"\s*(?:\\pmod|\\mod|\\bmod|\(\s*\\bmod)\s*(\{[^{}]*\}|[0-9A-Za-z]+)\s*\)?\s*$")
_REFUSED = frozenset(
    [
        "not",
        "or",
        "and",
        "no",
        "wrong",
        "if",
        "but",
        "except",
        "unless",
        "maybe",
        "wait",
        "isn",
        "doesn",
        "cannot",
        "sin",
        "cos",
        "tan",
        "log",
        "sqrt",
    ]
)
_TRIGONOMETRY = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)")


def leaf(text: str) -> Value:
    """The number, quantity or expression that ``text`` denotes.

    Raises:
        Unreadable: If it denotes none.
    """
    text = text.strip()
    if not text:
        raise Unreadable("it is empty")
    match = _DECIMAL.fullmatch(text)
    if match:
        whole, fraction = match.group(1) or "0", match.group(2) if match.group(1) else match.group(3)
        digits = (whole + fraction).lstrip("0")
        if len(digits) > 20_000:
            raise Unreadable("a number too long to read")
        value = sympy.Rational(f"{whole}.{fraction or '0'}")
        decimal = Decimal(-value if text[0] == "-" else value, len(digits), len(fraction))
        return Marked(decimal, frozenset({APPROXIMATION})) if len(digits) >= MIN_APPROXIMATION else decimal
    repeating = _REPEATING.fullmatch(text) or (_DOTTED.fullmatch(text) if len(text) < 100 else None)
    if repeating:
        sign, whole, fraction, period = repeating.groups()
        if len(text) < 200:
            tail = sympy.Rational(int(period), (10 ** len(period) - 1) * 10 ** len(fraction))
            value = sympy.Rational(f"{whole or 0}.{fraction or 0}") + tail
            return -value if sign == "-" else value
    based = _BASED.fullmatch(text)
    if based:
        base = based.group(2) or based.group(3)
        return Based(based.group(1).lstrip("0") or "0", _BASES.get(base, base))
    quantity = _quantity(text)
    if quantity is not None:
        return quantity
    try:
        return _leaf_expression(text)
    except Unreadable:
        words = TEXT_ONLY.sub(r"\1", text)
        if TEXT_ONLY.search(text) and words.strip() and not re.search(r"[\\^_={}<>]", words):
            return Text(words.strip())
        raise


def _quantity(text: str) -> Quantity | None:
    percent = _PERCENT.search(text)
    if percent and percent.start():
        return Quantity(leaf(text[: percent.start()]), "%")
    scale = _SCALE.search(text)
    if scale and scale.start():
        factor = _SCALES[scale.group(1) or scale.group(2)]
        value = leaf(text[: scale.start()])
        if isinstance(exact(value), sympy.Expr):
            return Quantity(marked(exact(value) * factor, marks_of(value)), "")
    degree = _DEGREE_TAIL.search(text)
    if degree and degree.start() and not _TRIGONOMETRY.search(text):
        unit = "degree" + (degree.group(1) or degree.group(2) or "")
        return Quantity(Marked(leaf(text[: degree.start()]), frozenset({ANGLE})), unit)
    modulus = _MODULUS_TAIL.search(text)
    if modulus and modulus.start():
        return Quantity(leaf(text[: modulus.start()]), "mod " + modulus.group(1).strip("{} "))
    for pattern in (_TEXT_TAIL, _UNIT_TAIL, _WORD_TAIL):
        tail = pattern.search(text)
        if tail and tail.start() and not _REFUSED & set(re.findall("[a-z]+", tail.group(1).lower())):
            head = text[: tail.start()]
            if not re.search(r"[0-9]|\\(?:pi|sqrt|frac)|[A-Za-z]$", head):
                continue
            try:
                value = leaf(head)
            except Unreadable:
                continue
            if isinstance(value, Quantity) and value.unit not in ("", "%"):
                return Quantity(value.value, f"{value.unit} {tail.group(1)}")
            return Quantity(value, tail.group(1))
    return None


def letter_unit(text: str) -> tuple[Value, str] | None:
    """``5m`` or ``9.8 m/s^2`` read as a number with a one-letter unit, which is otherwise a product with a variable."""
    tail = _LETTER_UNIT_TAIL.search(text)
    if not tail:
        return None
    try:
        value = leaf(grouped(text[: tail.start()]))
    except Unreadable:
        return None
    return (value, tail.group(1)) if isinstance(exact(value), sympy.Number) and not marks_of(value) else None


_FALLBACK_ALPHABET = re.compile(r"[A-Za-z0-9\\{}()\[\]^_+\-*/=<>|!.,:;&' ]*")


def _leaf_expression(text: str) -> Any:
    try:
        return expression(text)
    except Unreadable as refused:
        if "\\" not in text or "__" in text or len(text) > 500 or not _FALLBACK_ALPHABET.fullmatch(text):
            raise
        if str(refused).startswith("a ") or str(refused) == "it is undefined":
            raise
        return _foreign(text, refused)


def _foreign(text: str, refused: Unreadable) -> Any:
    """What latex2sympy's grammar makes of notation that ours lacks."""
    if re.search(r"\\(?!text|mathbb)[A-Za-z]+", text) is None or (
        "^" in text and re.search(r"\^\s*\{?[0-9^{}\s]{4,}", text)
    ):
        raise refused
    from latex2sympy2_extended import latex2sympy

    try:
        value = latex2sympy(text)
    except Exception as error:  # its grammar raises errors of many kinds
        raise refused from error
    if not isinstance(value, sympy.Expr):
        raise refused
    if any(isinstance(node, AppliedUndef) or (node.is_Symbol and len(str(node)) > 12) for node in value.atoms()):
        raise refused
    return Marked(finite(value), frozenset({"notation"}))
