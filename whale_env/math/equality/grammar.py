"""The closed grammar of one expression: its tokens, its names, and arithmetic that refuses to explode."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import sympy

_MAX_POWER_BITS = 200_000
_MAX_FACTORIAL = 3_000


class Unreadable(ValueError):
    """The text is not in the grammar, or evaluating it would explode."""


# ---------------------------------------------------------------- tokens

_TOKEN = re.compile(
    r"\s*(?:(?P<number>[0-9]+(?:\.[0-9]+)?|\.[0-9]+)|(?P<command>\\[A-Za-z]+|\\[{}])"
    r"|(?P<word>[A-Za-z]+)|(?P<sign>[-+*/^_(){}\[\]|!',<>=&:]))"
)
# longer names before their prefixes
_WORD_PATTERN = (
    "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc|sqrt|log|ln|lg|exp|infinity|infty|inf|oo|pi"
    "|abs|max|min|gcd|lcm|det"
)
WORDS = frozenset(_WORD_PATTERN.split("|"))
_WORD_START = re.compile(_WORD_PATTERN)
_WORD_COMMAND = {"infinity": "infty", "inf": "infty", "oo": "infty"}


def split_tokens(text: str) -> list[str]:
    """Returns the tokens of a text; words are cut into the names that they are made of."""
    tokens: list[str] = []
    position = 0
    text = text.strip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if not match:
            raise Unreadable(f"unexpected {text[position : position + 10]!r}")
        position = match.end()
        word = match.group("word")
        if word is None:
            tokens.append(match.group().strip())
            continue
        while word:
            known = _WORD_START.match(word)
            if known:
                name = known.group()
                tokens.append("\\" + _WORD_COMMAND.get(name, name))
                word = word[known.end() :]
            else:
                tokens.append(word[0])
                word = word[1:]
    return tokens


# ---------------------------------------------------------------- guarded arithmetic


def raise_to(base: Any, exponent: Any) -> Any:
    """Returns a power, unless it is too large to write out."""
    if isinstance(base, sympy.MatrixBase):
        if exponent in (sympy.Symbol("T"), sympy.Symbol("top")):
            return base.T
        if not (exponent.is_Integer and abs(int(exponent)) <= 100 and base.is_square):
            raise Unreadable("a matrix power beyond reason")
        return base**exponent
    if exponent.is_number and exponent.is_finite:
        size = abs(sympy.Float(exponent.evalf(5))) if exponent.is_real else 0
        if base.is_Rational:
            bits = max(int(abs(base.p)).bit_length(), int(base.q).bit_length())
            if size * max(bits - 1, 1) > _MAX_POWER_BITS and base not in (0, 1, -1):
                raise Unreadable("a power too large to write out")
        elif size > 10_000:
            raise Unreadable("a power too large to write out")
    return base**exponent


def factorial(value: Any, *, double: bool = False) -> Any:
    """Returns a factorial, unless it is too large to write out."""
    if value.is_Integer and not 0 <= value <= _MAX_FACTORIAL:
        raise Unreadable("a factorial too large to write out")
    return sympy.factorial2(value) if double else sympy.factorial(value)


def binomial(upper: Any, lower: Any) -> Any:
    """Returns a binomial coefficient, unless it is too large to write out."""
    if upper.is_number and not (upper.is_Rational and abs(upper) <= 10_000):
        raise Unreadable("a binomial too large to write out")
    return sympy.binomial(upper, lower)


def divide(above: Any, below: Any) -> Any:
    """Returns a quotient."""
    if isinstance(below, sympy.MatrixBase) or below == 0:
        raise Unreadable("a division by zero or by a matrix")
    return above / below


def absolute(value: Any) -> Any:
    """Returns the absolute value of a number, or the length of a vector."""
    return value.norm() if isinstance(value, sympy.MatrixBase) else sympy.Abs(value)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "\\sin": sympy.sin, "\\cos": sympy.cos, "\\tan": sympy.tan, "\\cot": sympy.cot, "\\sec": sympy.sec,
    "\\csc": sympy.csc, "\\arcsin": sympy.asin, "\\arccos": sympy.acos, "\\arctan": sympy.atan,
    "\\sinh": sympy.sinh, "\\cosh": sympy.cosh, "\\tanh": sympy.tanh, "\\ln": sympy.log, "\\log": sympy.log,
    "\\lg": lambda value: sympy.log(value, 10), "\\exp": sympy.exp, "\\abs": absolute,
    "\\max": sympy.Max, "\\min": sympy.Min,
    "\\gcd": lambda *values: sympy.gcd(list(values)), "\\lcm": lambda *values: sympy.lcm(list(values)),
}  # fmt: skip
LOGARITHMS = frozenset({"\\ln", "\\log", "\\lg", "\\exp"})
OF_SETS = frozenset({"\\max", "\\min", "\\gcd", "\\lcm"})
INVERSE = {"\\sin": sympy.asin, "\\cos": sympy.acos, "\\tan": sympy.atan}
_GREEK_PATTERN = (
    "alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|rho|sigma|tau|upsilon|phi|chi|psi|omega"
    "|Gamma|Delta|Theta|Lambda|Xi|Pi|Sigma|Phi|Psi|Omega|ell|hbar|angle|triangle|square|aleph|top"
)
GREEK = frozenset(_GREEK_PATTERN.split("|"))
CONSTANTS: dict[str, Any] = {
    "\\pi": sympy.pi, "\\infty": sympy.oo, "e": sympy.E, "i": sympy.I, "\\ldots": sympy.Symbol("\\ldots"),
}  # fmt: skip
UNKNOWN_FUNCTIONS = frozenset("fghFGHPWQ")
STARTS = frozenset(
    {"(", "{", "[", "|", "\\frac", "\\sqrt", "\\binom", "\\lfloor", "\\lceil", "\\sum", "\\prod", "\\int"}
    | {"\\begin", "\\det", "\\overline", "\\bar", "\\lim"}
    | FUNCTIONS.keys()
    | CONSTANTS.keys()
    | {f"\\{name}" for name in GREEK}
)
STOPS = frozenset({")", "}", "]", ",", "&", "\\}", "\\rfloor", "\\rceil", "<", ">", "="})
