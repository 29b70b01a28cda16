"""From the LaTeX of one expression to a sympy object: a recursive-descent reader over a closed grammar.

No ``eval``, no ``sympify`` of text: each token is on a list or the text is refused with `Unreadable`. Arithmetic that
could explode (powers, factorials, long sums) is refused before it is done. On the way the reader notes which arithmetic
the text leaves undone (`values.Marked`), since an unworked expression is no answer where a number is asked for.
Lists, relations, sets and units are the business of `parse` and `leaf`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import sympy
from sympy.core.function import AppliedUndef

from whale_env.math.equality.grammar import (
    CONSTANTS,
    FUNCTIONS,
    GREEK,
    INVERSE,
    LOGARITHMS,
    OF_SETS,
    STARTS,
    STOPS,
    UNKNOWN_FUNCTIONS,
    Unreadable,
    absolute,
    binomial,
    divide,
    factorial,
    raise_to,
    split_tokens,
)
from whale_env.math.equality.values import CONSTANT, Items, marked

_MAX_TERMS = 2_000
_MAX_DEPTH = 700
_MAX_ITEMS = 300
_LITERAL = re.compile(r"[({]*[-+]?[({]*(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)[)}]*")
_POWER_OF_TEN = re.compile(r"10\^(?:[({]*[-+]?[0-9]+[)}]*)")


def _is_numeric(value: Any) -> bool:
    return isinstance(value, sympy.Expr) and not value.free_symbols and not value.atoms(AppliedUndef)


class _Reader:
    r"""Reads one expression; ``signs`` gives the value of each ``\pm`` in turn."""

    def __init__(self, tokens: list[str], signs: tuple[int, ...] = ()) -> None:
        self.tokens = tokens
        self.at = 0
        self.depth = 0
        self.bars = 0
        self.signs = signs
        self.signs_used = 0
        self.marks: set[str] = set()

    # -- what is left undone

    def worked(self, kind: str, value: Any, *, always: bool = False) -> Any:
        """``value``, marked with ``kind`` if it is a rational number (or any number), else as a constant."""
        if _is_numeric(value):
            self.marks.add(kind if always or value.is_Rational else CONSTANT)
        return value

    def combined(self, kind: str, value: Any, parts: list[Any]) -> Any:
        """``value``, marked with ``kind`` if two of its ``parts``, all numbers, became one."""
        if sum(isinstance(part, sympy.MatrixBase) for part in parts) > 1:
            self.marks.add(kind)
        elif len(parts) > 1 and all(map(_is_numeric, parts)):
            whole = sympy.Add if kind == "sum" else sympy.Mul
            left = sum(not part.is_Rational for part in whole.make_args(value))
            if sum(bool(part.is_Rational) for part in parts) > 1 or len([p for p in parts if not p.is_Rational]) > left:
                self.marks.add(kind)
        return value

    def divided(self, above: Any, below: Any, *, literal: bool) -> Any:
        """A quotient, marked unless it can pass for a fraction: of two literal numbers, and no whole number."""
        value = divide(above, below)
        whole = value.is_Integer and below not in (1, -1)
        if _is_numeric(value) and above.is_Rational and below.is_Rational and (whole or not literal):
            self.marks.add("division")
        return value

    def is_literal(self, start: int) -> bool:
        """Whether the tokens from ``start`` on are one number, perhaps with a sign and in brackets."""
        return self.at - start < 8 and _LITERAL.fullmatch("".join(self.tokens[start : self.at])) is not None

    # -- helpers

    def peek(self, ahead: int = 0) -> str:
        index = self.at + ahead
        return self.tokens[index] if index < len(self.tokens) else ""

    def take(self, expected: str | None = None) -> str:
        token = self.peek()
        if not token or (expected is not None and token != expected):
            raise Unreadable(f"expected {expected or 'more'}, found {token or 'the end'}")
        self.at += 1
        return token

    def sign(self, token: str) -> int:
        if token == "\\mp":
            return -(self.signs[0] if self.signs else 1)
        value = self.signs[min(self.signs_used, len(self.signs) - 1)]
        self.signs_used += 1
        return value

    # -- grammar

    def whole(self) -> Any:
        value = self.sum()
        if self.at != len(self.tokens):
            raise Unreadable(f"unexpected {self.peek()!r}")
        return value

    def sum(self) -> Any:
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise Unreadable("nested too deeply")
        token = self.peek()
        if token in ("+", "-", "\\pm", "\\mp"):
            self.take()
            value = self.product()
            if _is_numeric(value) and value.is_Rational and value.is_negative:
                self.marks.add("sum")  # -(-7)
            if token == "-":
                value = -value
            elif token != "+":
                value = self.sign(token) * value
        else:
            value = self.product()
        terms = [value]
        while self.peek() in ("+", "-", "\\pm", "\\mp"):
            token = self.take()
            # the sign of \pm is drawn before its operand is read, in the order of the text
            factor = {"+": 1, "-": -1}.get(token) or self.sign(token)
            if self.peek() in ("+", "-"):  # programs print the negative term of a sum as "+ -1"
                factor *= -1 if self.take() == "-" else 1
            terms.append(factor * self.product())
            value = value + terms[-1]
        self.depth -= 1
        return self.combined("sum", value, terms)

    def product(self) -> Any:
        start = self.at
        value = self.factor()
        factors = [value]
        while True:
            token = self.peek()
            literal, coefficient = self.is_literal(start), value
            if token in ("*", "\\cdot", "\\times", "\\ast"):
                self.take()
                power = self.at
                factors.append(self.factor(signed=True))
                value = value * factors[-1]
                if literal and 1 <= abs(coefficient) < 10 and self.is_power_of_ten(power):
                    factors = [value]  # scientific notation
            elif token in ("/", "\\div"):
                self.take()
                below = self.at
                divisor = self.factor(signed=True)
                value = self.divided(value, divisor, literal=literal and self.is_literal(below))
                if not divisor.is_Rational:
                    factors.append(1 / divisor)
            elif self.starts_atom(token):
                if token[0] in "0123456789." and self.tokens[self.at - 1][-1] in "0123456789":
                    raise Unreadable("two numbers side by side")
                factors.append(self.factor())
                value = value * factors[-1]
            else:
                return self.combined("product", value, factors)

    def is_power_of_ten(self, start: int) -> bool:
        """Whether the tokens from ``start`` on are ten to a whole number."""
        return self.at - start < 8 and _POWER_OF_TEN.fullmatch("".join(self.tokens[start : self.at])) is not None

    def starts_atom(self, token: str) -> bool:
        if not token or token in STOPS or (token == "|" and self.bars):
            return False
        return token in STARTS or token[0] in "0123456789." or (len(token) == 1 and token.isalpha())

    def factor(self, *, signed: bool = False) -> Any:
        if signed and self.peek() in ("-", "+"):
            return -self.factor(signed=True) if self.take() == "-" else self.factor(signed=True)
        start = self.at
        return self.postfix(self.atom(), start)

    def postfix(self, value: Any, start: int) -> Any:
        while True:
            token = self.peek()
            literal = self.is_literal(start)
            if token == "!":
                self.take()
                if self.peek() == "!":
                    self.take()
                    value = self.worked("factorial", factorial(value, double=True), always=True)
                else:
                    value = self.worked("factorial", factorial(value), always=True)
            elif token == "^" and self.peek(1) == "\\circ":
                self.at += 2
                value = value * sympy.pi / 180
            elif token == "^":
                self.take()
                value = self.raised(value, self.argument(signed=True), ten=lambda: self.is_power_of_ten(start))
            elif token == "%":
                self.take()
                value = value / 100
                if not literal:
                    self.worked("product", value)
            else:
                return value

    def raised(self, base: Any, exponent: Any, *, ten: Callable[[], bool] = lambda: False) -> Any:
        """A power; ten to a whole number and powers of a constant need no more work, others of numbers do."""
        value = raise_to(base, exponent)
        if isinstance(base, sympy.MatrixBase):
            self.marks.add("power")
        elif not ten():
            self.worked("power", value, always=not (base.is_Rational or base in (sympy.pi, sympy.E)))
        return value

    def argument(self, *, signed: bool = False) -> Any:
        """What LaTeX takes as one argument: a group, or a single digit or letter."""
        token = self.peek()
        if token == "{":
            return self.group("{", "}")
        if signed and token in ("-", "+"):
            self.take()
            return -self.argument() if token == "-" else self.argument()
        if re.fullmatch(r"[0-9]{2,}", token) and not signed:
            self.tokens[self.at : self.at + 1] = [token[0], token[1:]]
        return self.atom()

    def group(self, opening: str, closing: str) -> Any:
        self.take(opening)
        bars, self.bars = self.bars, 0
        value = self.sum()
        self.bars = bars
        self.take(closing)
        return value

    def atom(self) -> Any:
        token = self.peek()
        if not token:
            raise Unreadable("it ends too early")
        if token[0] in "0123456789.":
            return self.number()
        if token in ("(", "{"):
            return self.group(token, ")" if token == "(" else "}")
        if token == "[":
            return self.group("[", "]")
        if token == "|":
            return self.bar()
        method = _SPECIAL.get(token)
        if method:
            self.take()
            return method(self)
        if token in FUNCTIONS:
            return self.function()
        if token in CONSTANTS and self.peek(1) != "_":
            self.take()
            return self.worked("", CONSTANTS[token]) if token != "\\infty" else sympy.oo
        if (len(token) == 1 and token.isalpha()) or token[1:] in GREEK:
            return self.symbol()
        raise Unreadable(f"unexpected {token!r}")

    def number(self) -> Any:
        token = self.take()
        if len(token) > 20_000:
            raise Unreadable("a number too long to read")
        value = sympy.Rational(token)
        if self.peek() == "_":
            raise Unreadable("a numeral with a subscript")
        if self.peek() == "\\frac" and "." not in token:
            mixed = self.mixed_part()
            if mixed is not None:
                return value + mixed
        return value

    def mixed_part(self) -> Any:
        r"""The proper fraction after a whole number, as in ``3\frac{1}{2}``; None if it is a factor instead."""
        start, tokens = self.at, list(self.tokens)
        self.take()
        above, below = self.argument(), self.argument()
        if self.peek() != "^" and above.is_Integer and below.is_Integer and 0 < above < below:
            return above / below
        self.at, self.tokens = start, tokens
        return None

    def bar(self) -> Any:
        self.take("|")
        self.bars += 1
        value = self.sum()
        self.bars -= 1
        self.take("|")
        return self.worked("function", absolute(value), always=True)

    def symbol(self) -> Any:
        name = self.take().lstrip("\\")
        if self.peek() == "^":
            self.subscript_first()
        if self.peek() == "_":
            self.take()
            name += "_" + self.subscript()
        while self.peek() == "'":
            self.take()
            name += "'"
        if name[0] in UNKNOWN_FUNCTIONS and self.peek() == "(":
            return sympy.Function(name)(*self.arguments("(", ")"))
        return sympy.Symbol(name)

    def subscript_first(self) -> None:
        """Brings ``x^2_1`` into the order ``x_1^2``."""
        middle = self.after_argument(self.at + 1)
        if middle < len(self.tokens) and self.tokens[middle] == "_":
            end = self.after_argument(middle + 1)
            self.tokens[self.at : end] = self.tokens[middle:end] + self.tokens[self.at : middle]

    def after_argument(self, start: int) -> int:
        """The place after the group, sign and digit, or single token that begins at ``start``."""
        if start < len(self.tokens) and self.tokens[start] in "+-":
            start += 1
        depth = 0
        for place in range(start, len(self.tokens)):
            depth += {"{": 1, "}": -1}.get(self.tokens[place], 0)
            if depth <= 0:
                return place + 1
        return len(self.tokens)

    def subscript(self) -> str:
        if self.peek() != "{":
            return self.take()
        self.take()
        depth, parts = 1, []
        while depth:
            token = self.take()
            depth += {"{": 1, "}": -1}.get(token, 0)
            parts.append(token)
        return "".join(parts[:-1])

    def arguments(self, opening: str, closing: str) -> list[Any]:
        self.take(opening)
        bars, self.bars = self.bars, 0
        values = [self.sum()]
        while self.peek() == ",":
            self.take()
            values.append(self.sum())
        self.bars = bars
        self.take(closing)
        return values

    def function(self) -> Any:
        name = self.take()
        function = FUNCTIONS[name]
        base = power = None
        while self.peek() in ("_", "^") and not (self.peek() == "^" and self.peek(1) == "\\circ"):
            if self.take() == "_":
                base = self.argument()
            else:
                power = self.argument(signed=True)
        if power == -1 and name in INVERSE:
            function, power = INVERSE[name], None
        if self.peek() == "(":
            values = self.arguments("(", ")")
        elif self.peek() == "\\{" and name in OF_SETS:
            values = self.arguments("\\{", "\\}")
        elif self.peek() == "{":
            values = [self.group("{", "}")]
        else:
            values = [self.loose_argument()]
        if base is not None:
            if name != "\\log" or base in (0, 1):
                raise Unreadable(f"{name} with a subscript")
            value = sympy.log(values[0], base)
        else:
            value = function(*values)
        # a logarithm may well be the simplest form of a number, other functions of numbers are to be worked out
        self.worked("function", value, always=name not in LOGARITHMS)
        return value if power is None else self.raised(value, power)

    def loose_argument(self) -> Any:
        r"""The argument of ``\sin 2x``: factors up to the next sign, relation or function."""
        value = self.factor(signed=True)
        while True:
            token = self.peek()
            if token in FUNCTIONS or token in ("(", "[") or not self.starts_atom(token):
                if token == "/" and self.peek(1) not in ("(", "{", ""):
                    self.take()
                    value = divide(value, self.factor())
                    continue
                return value
            value = value * self.factor()

    # -- commands with arguments

    def fraction(self) -> Any:
        start = self.at
        above = self.argument()
        literal, start = self.is_literal(start), self.at
        below = self.argument()
        return self.divided(above, below, literal=literal and self.is_literal(start))

    def root(self) -> Any:
        index = sympy.Integer(2)
        if self.peek() == "[":
            index = self.group("[", "]")
        value = self.group("(", ")") if self.peek() == "(" else self.argument_number()
        if index == 0:
            raise Unreadable("a zeroth root")
        if index.is_Integer and index % 2 and value.is_number and value.is_real and value.is_negative:
            return self.worked("root", -((-value) ** (1 / index)))
        return self.worked("root", value ** (1 / index))

    def argument_number(self) -> Any:
        # "√12" from plain text means the root of twelve, unlike the LaTeX rule of one digit
        return self.number() if re.fullmatch(r"[0-9.]+", self.peek()) and len(self.peek()) > 1 else self.argument()

    def choose(self) -> Any:
        upper = self.argument()
        return self.worked("binomial", binomial(upper, self.argument()), always=True)

    def floor(self) -> Any:
        value = self.sum()
        self.take("\\rfloor")
        return self.worked("function", sympy.floor(value), always=True)

    def ceiling(self) -> Any:
        value = self.sum()
        self.take("\\rceil")
        return self.worked("function", sympy.ceiling(value), always=True)

    def determinant(self) -> Any:
        value = self.factor()
        if not isinstance(value, sympy.MatrixBase):
            raise Unreadable("the determinant of no matrix")
        return self.worked("determinant", value.det(), always=True)

    def decoration(self) -> Any:
        self.take("{")
        inner: list[str] = []
        while self.peek() != "}":
            inner.append(self.take())
        self.take("}")
        return sympy.Symbol("bar:" + "".join(inner))

    def big_operator(self, fold: Callable[[Any, Any], Any], symbolic: Any, start: Any) -> Any:
        variable, low, high = None, None, None
        for _ in range(2):
            if self.peek() == "_":
                self.take()
                self.take("{")
                variable = self.symbol_or_constant()
                self.take("=")
                low = self.sum()
                self.take("}")
            elif self.peek() == "^":
                self.take()
                high = self.argument()
        if variable is None or low is None or high is None:
            raise Unreadable("a sum or product without both bounds")
        body = self.product()
        if low.is_Integer and high.is_Integer:
            if high - low > _MAX_TERMS:
                return symbolic(body, (variable, low, high)).doit()
            value = start
            for index in range(int(low), int(high) + 1):
                value = fold(value, body.subs(variable, index))
            return value
        return symbolic(body, (variable, low, high)).doit()

    def symbol_or_constant(self) -> Any:
        # i and e are ordinary names when they index a sum
        return sympy.I if self.peek() == "i" and self.take() else self.symbol()

    def summation(self) -> Any:
        value = self.big_operator(lambda one, two: one + two, sympy.Sum, sympy.Integer(0))
        return self.worked("series", value, always=True)

    def multiplication(self) -> Any:
        value = self.big_operator(lambda one, two: one * two, sympy.Product, sympy.Integer(1))
        return self.worked("series", value, always=True)

    def integral(self) -> Any:
        low = high = None
        while self.peek() in ("_", "^"):
            if self.take() == "_":
                low = self.argument(signed=True)
            else:
                high = self.argument(signed=True)
        end = next((k for k in range(self.at, len(self.tokens) - 1) if self.tokens[k] == "d"), None)
        if end is None or low is None or high is None:
            raise Unreadable("an integral without bounds or differential")
        inner = _Reader(self.tokens[self.at : end] or ["1"], self.signs)
        body = inner.whole()
        self.at = end + 1
        value = sympy.Integral(body, (self.symbol(), low, high)).doit()
        return self.worked("integral", value, always=True)

    def limit(self) -> Any:
        self.take("_")
        self.take("{")
        variable = self.symbol()
        if self.take() not in ("\\to", "\\rightarrow"):
            raise Unreadable("a limit without its arrow")
        point = self.sum()
        self.take("}")
        return self.worked("limit", sympy.limit(self.product(), variable, point), always=True)

    def environment(self) -> Any:
        name = self.environment_name()
        if name not in ("pmatrix", "bmatrix", "matrix", "vmatrix", "array", "smallmatrix", "Bmatrix"):
            raise Unreadable(f"the environment {name!r}")
        if name == "array" and self.peek() == "{":
            while self.take() != "}":
                pass
        rows: list[list[Any]] = [[]]
        while self.peek() != "\\end":
            if self.peek() == "\\row":
                self.take()
                rows.append([])
            elif self.peek() == "&":
                self.take()
            else:
                rows[-1].append(self.sum())
            if sum(map(len, rows)) > _MAX_ITEMS:
                raise Unreadable("a matrix too large to compare")
        self.take()
        if self.environment_name() != name:
            raise Unreadable("an environment closed under another name")
        rows = [row for row in rows if row]
        if not rows or len({len(row) for row in rows}) != 1:
            raise Unreadable("a matrix with rows of different length")
        matrix = sympy.ImmutableMatrix(rows)
        return self.worked("determinant", matrix.det(), always=True) if name == "vmatrix" else matrix

    def environment_name(self) -> str:
        self.take("{")
        name = ""
        while self.peek() != "}":
            name += self.take().lstrip("\\")
        self.take("}")
        return name


_SPECIAL: dict[str, Callable[[_Reader], Any]] = {
    "\\frac": _Reader.fraction, "\\sqrt": _Reader.root, "\\binom": _Reader.choose, "\\lfloor": _Reader.floor,
    "\\lceil": _Reader.ceiling, "\\det": _Reader.determinant, "\\sum": _Reader.summation,
    "\\prod": _Reader.multiplication, "\\int": _Reader.integral, "\\lim": _Reader.limit,
    "\\begin": _Reader.environment, "\\overline": _Reader.decoration, "\\bar": _Reader.decoration,
}  # fmt: skip

_ROW = re.compile(r"\\\\(?:\s*\[[^\]]*\])?|\\cr(?![A-Za-z])")
_CHOOSE = re.compile(r"\{([^{}]*)\\choose([^{}]*)\}|^([^{}]*)\\choose([^{}]*)$")
_SCIENTIFIC = re.compile(r"(?<![A-Za-z0-9.])([0-9]+(?:\.[0-9]+)?)[eE]([-+]?[0-9]{1,4})(?![0-9A-Za-z.])")
_MIXED = re.compile(r"(?<![0-9./^_}{)])([0-9]+) +([0-9]+) ?/ ?([0-9]+)(?![0-9./^!])")


def expression(text: str) -> Any:
    """The sympy object that ``text`` denotes, as `Marked` where it is no plain number; `Items` for plus-or-minus.

    Raises:
        Unreadable: If the text is outside the grammar or too large to evaluate.
    """
    text = _CHOOSE.sub(r"\\binom{\1\3}{\2\4}", text)
    text = _SCIENTIFIC.sub(r"\1*10^{\2}", text)
    text = _ROW.sub(r"\\row ", text).replace("%", " ")
    text = _MIXED.sub(_mixed, text)
    tokens = split_tokens(text)
    branches = min(tokens.count("\\pm") or ("\\mp" in tokens), 4)
    values: list[Any] = []
    for code in range(2**branches):
        reader = _Reader(list(tokens), tuple(-1 if code >> bit & 1 else 1 for bit in range(branches)))
        value = marked(finite(reader.whole()), frozenset(reader.marks))
        if value not in values:
            values.append(value)
    return Items(tuple(values)) if len(values) > 1 else values[0]


def _mixed(match: re.Match[str]) -> str:
    whole, above, below = match.groups()
    if not int(above) < int(below):
        raise Unreadable("a whole number beside an improper fraction")
    return rf"{whole}\frac{{{above}}}{{{below}}}"


def finite(value: Any) -> Any:
    """``value``, refused if it is or holds something undefined."""
    if isinstance(value, sympy.MatrixBase):
        bad = value.has(sympy.nan, sympy.zoo)
    else:
        bad = value.has(sympy.nan, sympy.zoo) or value in (sympy.nan, sympy.zoo)
    if bad:
        raise Unreadable("it is undefined")
    return value
