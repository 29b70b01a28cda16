"""Text work on mathematical answers: boxes, LaTeX clean-up, number spelling.

Strings in, strings out; nothing here builds or compares mathematical objects, and nothing here can hang: every step is
linear in the text. `cleaned` brings the many spellings of one answer (typographic commands, Unicode signs, currency
marks, thousands separators) to one small LaTeX dialect, which `parse` reads.
"""

from __future__ import annotations

import re
import unicodedata

from whale_env.final_text import final_text

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*(?:(\{)|([-+]?[0-9][0-9.,]*))")
_GAP_DELIMITER = re.compile(r"\$|\\[()\[\]]|\\(?:begin|end)\b")
_GAP_WORD = re.compile(r"\(?[A-Za-z]+\)?")
_GAP_CONNECTOR = re.compile(r"[,;&]|\b(?:and|or)\b")
_GAP_NOISE = re.compile(r"\\(?:text|mbox|textnormal|quad|qquad|[,;:! ])|[{}.,;&\s~]|\$|\\[()\[\]]")
_MAX_GAP_WORDS = 4


# ---------------------------------------------------------------- boxes


def boxes(text: str) -> list[tuple[int, int, str | None]]:
    """All outermost boxes of ``text`` as (start, end, content); the content of a cut-off box is None."""
    found: list[tuple[int, int, str | None]] = []
    end = 0
    for match in _BOX.finditer(text):
        if match.start() < end:
            continue
        if match.group(2) is not None:
            end = match.end()
            found.append((match.start(), end, match.group(2).rstrip(".,")))
            continue
        close = closing_brace(text, match.start(1))
        if close is None:
            # An unclosed brace swallows the rest of the text, so no later box can be outermost.
            found.append((match.start(), len(text), None))
            break
        end = close + 1
        found.append((match.start(), end, text[match.start(1) + 1 : close]))
    return found


def closing_brace(text: str, start: int) -> int | None:
    """The index of the brace that closes the one at ``start``; escaped braces do not count."""
    depth, index = 0, start
    while index < len(text):
        char = text[index]
        if char == "\\":
            index += 2
            continue
        if char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if depth == 0:
                return index
        index += 1
    return None


def boxed_answer(text: str) -> str | None:
    r"""The content of the last ``\boxed{}`` of a final answer, or None if there is none or it is cut off.

    Boxes in reasoning do not count. Boxes of one formula that only commas, "and" or "or" join are the parts of one
    answer and come back as a list: ``$\boxed{2} \text{ and } \boxed{3}$`` gives ``2, 3``.
    """
    text = final_text(text)
    found = boxes(text)
    if not found:
        return None
    parts: list[str] = []
    start = None
    for begin, end, content in reversed(found):
        if start is not None and not _joined(text[end:start], same_formula=True):
            break
        if content is None:
            return None if start is None else ", ".join(reversed(parts))
        if start is None and not _in_formula(text, end):
            return content.strip()
        parts.append(content.strip())
        start = begin
    return ", ".join(reversed(parts))


def _joined(gap: str, *, same_formula: bool) -> bool:
    if len(gap) > 100 or (same_formula and _GAP_DELIMITER.search(gap)) or not _GAP_CONNECTOR.search(gap):
        return False
    words = _GAP_NOISE.sub(" ", gap).split()
    return len(words) <= _MAX_GAP_WORDS and all(_GAP_WORD.fullmatch(word) for word in words)


def _in_formula(text: str, end: int) -> bool:
    before = text[:end]
    if before.count("$") - before.count("\\$") - 2 * before.count("$$") + before.count("$$") & 1:
        return True
    return before.rfind("\\[") > before.rfind("\\]") or before.rfind("\\(") > before.rfind("\\)")


def without_prose(text: str, *, reference: bool = False) -> str:
    r"""The answer inside ``text`` when it still carries a box or stands at the end of a worked solution.

    References come from data sets that sometimes keep the whole solution; an answer comes out of its box already.
    """
    found = boxes(text)
    if found and found[-1][2] is None and reference:
        begin = found[-1][0]
        return without_prose(text[text.index("{", begin) + 1 :], reference=True)
    found = [box for box in found if box[2] is not None]
    if found:
        parts: list[str] = []
        start = None
        for begin, end, content in reversed(found):
            if start is not None and not _joined(text[end:start], same_formula=False):
                break
            parts.append(content or "")
            start = begin
        if len(found) == 1 and not text[: found[0][0]].strip(" $\\[(") and len(text) - found[0][1] < 40:
            return without_prose((parts[0] + text[found[0][1] :]).strip(), reference=reference)
        return without_prose(", ".join(reversed(parts)), reference=reference)
    last = None
    for match in _FINAL.finditer(text):
        last = match
    return last.group(1) if last else text


_FINAL = re.compile(r"(?i:final answer is|answer is|answer:)\s*(\$[^$]{1,200}\$)")


# ---------------------------------------------------------------- clean-up

_UNICODE = str.maketrans(
    {
        "−": "-", "–": "-", "—": "-", "‐": "-", "‑": "-", "﹣": "-", "－": "-", "＋": "+", "＝": "=",  # noqa: RUF001
        "✕": r"\times ", "✖": r"\times ", "⨯": r"\times ", "•": r"\cdot ", "⁄": "/", "º": r"^\circ ", "˚": r"^\circ ",  # noqa: RUF001
        "℃": r"^\circ C", "℉": r"^\circ F",
        "×": r"\times ", "⋅": r"\cdot ", "·": r"\cdot ", "∙": r"\cdot ", "∗": "*", "÷": r"\div ", "∕": "/",  # noqa: RUF001
        "π": r"\pi ", "∞": r"\infty ", "√": r"\sqrt ", "°": r"^\circ ", "′": "'", "’": "'",  # noqa: RUF001
        "≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ", "⩾": r"\ge ", "≠": r"\ne ", "≈": r"\approx ",
        "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ", "∖": r"\setminus ", "±": r"\pm ", "∓": r"\mp ",  # noqa: RUF001
        "ℝ": r"\mathbb{R}", "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}", "ℂ": r"\mathbb{C}",  # noqa: RUF001
        "½": r"\frac{1}{2}", "⅓": r"\frac{1}{3}", "⅔": r"\frac{2}{3}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}",
        "⅕": r"\frac{1}{5}", "⅖": r"\frac{2}{5}", "⅗": r"\frac{3}{5}", "⅘": r"\frac{4}{5}", "⅙": r"\frac{1}{6}",
        "⅚": r"\frac{5}{6}", "⅛": r"\frac{1}{8}", "⅜": r"\frac{3}{8}", "⅝": r"\frac{5}{8}", "⅞": r"\frac{7}{8}",
        "…": r"\ldots ", "⟨": r"\langle ", "⟩": r"\rangle ", "∛": r"\sqrt[3] ", "∜": r"\sqrt[4] ",
        "\u00a0": " ", "\u2009": " ", "\u202f": " ", "\u2002": " ", "\u2003": " ", "\u200b": "", "\ufeff": "",
        "£": "$", "€": "$", "¥": "$", "₹": "$", "％": "%", "，": ",", "：": ":", "（": "(", "）": ")", "。": ".",  # noqa: RUF001
    }
)  # fmt: skip

_GREEK = (
    "Αα Ββ Γγ Δδ Εε Ζζ Ηη Θθ Ιι Κκ Λλ Μμ Νν Ξξ Οο Ππ Ρρ Σσ Ττ Υυ Φφ Χχ Ψψ Ωω",  # noqa: RUF001
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu "
    "nu xi o pi rho sigma tau upsilon phi chi psi omega",
)
_GREEK_LETTERS = {
    letter: name if name == "o" else f"\\{name.capitalize() if place == 0 else name} "
    for pair, name in zip(_GREEK[0].split(), _GREEK[1].split(), strict=True)
    for place, letter in enumerate(pair)
    if place or name in ("gamma", "delta", "theta", "lambda", "xi", "pi", "sigma", "phi", "psi", "omega")
} | {
    "ϵ": r"\epsilon ",
    "ϕ": r"\phi ",
    "ϑ": r"\theta ",
    "ϱ": r"\rho ",  # noqa: RUF001
    "ς": r"\sigma ",
    "∆": r"\Delta ",
    "Ω": r"\Omega ",
}
# the letter before the name of a unit is the prefix "micro"
_GREEK_LETTER = re.compile(rf"(?![μµ][A-Za-z])[{''.join(_GREEK_LETTERS)}]")
# full-width forms and the mathematical alphabets, which are the plain characters in another dress
_DRESSED = re.compile("[\uff01-\uff5e\U0001d400-\U0001d7ff]")
_RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱ", "0123456789+-=()ni", strict=True))
_LOWERED = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₙₖₘₐₓ", "0123456789+-=()nkmax", strict=True))
_RAISED_RUN = re.compile(f"[{''.join(_RAISED)}]+")
_LOWERED_RUN = re.compile(f"[{''.join(_LOWERED)}]+")
_SMALL_FRACTION = re.compile("([⁰¹²³⁴⁵⁶⁷⁸⁹]+)[⁄∕/]([₀₁₂₃₄₅₆₇₈₉]+)")  # noqa: RUF001


def _plain_characters(text: str) -> str:
    """Brings Unicode mathematics to LaTeX."""
    if text.isascii():
        return text
    text = _DRESSED.sub(lambda match: unicodedata.normalize("NFKC", match.group()), text)
    text = _SMALL_FRACTION.sub(
        lambda match: rf"\frac{{{_spelled(match.group(1), _RAISED)}}}{{{_spelled(match.group(2), _LOWERED)}}}", text
    )
    text = _RAISED_RUN.sub(lambda match: f"^{{{_spelled(match.group(), _RAISED)}}}", text)
    text = _LOWERED_RUN.sub(lambda match: f"_{{{_spelled(match.group(), _LOWERED)}}}", text)
    text = text.translate(_UNICODE).replace("µ", "μ")
    return _GREEK_LETTER.sub(lambda match: _GREEK_LETTERS[match.group()], text)


def _spelled(run: str, letters: dict[str, str]) -> str:
    return "".join(letters[char] for char in run)


_DOUBLED = re.compile(r"\\\\(?:[dtc]?frac|sqrt|left|right|text|mathrm|boxed|pmod|overline)\b")
_DOUBLED_ANY = re.compile(r"\\\\(?=[A-Za-z])")
_TYPOGRAPHY = re.compile(
    r"\\(?:left|right|[bB]igg?[lrm]?|displaystyle|textstyle|scriptstyle|limits|nolimits|nonumber|hfill|middle)(?![A-Za-z])"
    r"\s*\.?(?<!\.)|\\(?:left|right)\s*\.|\\!|\\/"
)
_DELIMITER = re.compile(r"(?<!\\)\\[()\[\]]|(?<!\\)\$")
_FONT = re.compile(
    r"\\(?:text(?:bf|it|rm|normal|sf|tt|sc)?|mbox|hbox|mathrm|mathbf|mathit|mathsf|mathcal|boldsymbol|bm|operatorname\*?"
    r"|bold|rm|emph|underline|uline)\s*\{([^{}]*)\}"
)
_OLD_FONT = re.compile(r"\\(?:rm|bf|it|mathrm|mathbf)(?![A-Za-z])\s*")
_SPACE = re.compile(
    r"(?<!\\)\\(?:quad|qquad|hspace\{[^{}]*\}|hskip|enspace|thinspace|;|:|,| |>)|~|(?<!\\)\\(?![A-Za-z\\{}|%#&$_])"
)
_COLOUR = re.compile(r"\\(?:text)?color\s*\{[^{}]*\}")
_UNIT_FRACTION = re.compile(
    r"\\frac\s*\{\s*\\text\{([^{}]*)\}\s*\}\s*\{\s*(?:\\text\{)?\s*([A-Za-z][A-Za-z ]*)\s*\}\s*\}?"
)
_NUMBERS_WITHOUT = re.compile(r"(\\mathbb\s*\{?\s*[A-Z]\s*\}?)\s*-\s*(?=\\\{)")
_TO = re.compile(r"(?<=[0-9])\s*(?:\\text\{\s*to\s*\}|(?<=\s)to(?=\s))\s*(?=[0-9])")
_SPELLINGS = (
    (re.compile(r"\\(?:[dtcs]|nice)frac(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\[dt]binom(?![A-Za-z])"), r"\\binom"),
    (re.compile(r"\\([RZNQ])(?![A-Za-z])"), r"\\mathbb{\1}"),
    (re.compile(r"\\(?:leqslant|leqq|leq)(?![A-Za-z])|<=|=<"), r"\\le "),
    (re.compile(r"\\(?:geqslant|geqq|geq)(?![A-Za-z])|>=|=>"), r"\\ge "),
    (re.compile(r"\\neq(?![A-Za-z])|!=|\\not\s*="), r"\\ne "),
    (re.compile(r"\\equiv(?![A-Za-z])|≡"), "="),
    (re.compile(r"\\lt(?![A-Za-z])"), "<"),
    (re.compile(r"\\gt(?![A-Za-z])"), ">"),
    (re.compile(r"\\langle(?![A-Za-z])"), "("),
    (re.compile(r"\\rangle(?![A-Za-z])"), ")"),
    (re.compile(r"\\(?:lbrace)(?![A-Za-z])"), r"\\{"),
    (re.compile(r"\\(?:rbrace)(?![A-Za-z])"), r"\\}"),
    (re.compile(r"\\(?:lbrack)(?![A-Za-z])"), "["),
    (re.compile(r"\\(?:rbrack)(?![A-Za-z])"), "]"),
    (re.compile(r"\\(?:[lr]?vert|mid)(?![A-Za-z])|\\\|"), "|"),
    (re.compile(r"\\(?:varnothing|O(?![A-Za-z]))"), r"\\emptyset "),
    (re.compile(r"\\(?:c?dots[cbmi]?|hdots|ldots)(?![A-Za-z])|\.\.\.+"), r"\\ldots "),
    (re.compile(r"\\(?:varepsilon)(?![A-Za-z])"), r"\\epsilon "),
    (re.compile(r"\\(?:varphi)(?![A-Za-z])"), r"\\phi "),
    (
        re.compile(r"\\(?:degree|textdegree)(?![A-Za-z])|\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![A-Za-z])|o(?![A-Za-z]))"),
        r"^\\circ ",
    ),
    (re.compile(r"\\(?:smallsetminus|backslash)(?![A-Za-z])"), r"\\setminus "),
    (re.compile(r"\\(?:simeq|cong|doteq)(?![A-Za-z])"), r"\\approx "),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"\{,\}|\{, \}|\{ , \}|\{\\,\}"), ","),
    (re.compile(r"\*\*"), "^"),
)
_MONEY_TAIL = re.compile(r"^([-+]?[0-9][0-9.,\s]*?)\s*(?:\\?\$)\s*[A-Za-z][A-Za-z .]*$")
# "lambda: 5" is a program, not a labelled number.
_LABEL = re.compile(
    r"^\s*(?!lambda)(?:\\text\{\s*)?(?:[A-Za-z][A-Za-z ]*[A-Za-z]\s*:|(?:[Tt]he )?(?:final )?answer is)\s*\}?"
    r"(?=\s*[-+]?[0-9.\\$(\[])"
)
# a comma pulled to its group by a negative space, as in "11,\\! 111"
_TIGHT_COMMA = re.compile(r"(?<=[0-9]),\\!\s*(?=[0-9]{3}(?![0-9]))")
_ESCAPED_BREAK = re.compile(r"\\n(?![a-z])")
_LAYOUT = re.compile(
    r"\\(?:begin|end)\s*\{(?:equation|align|aligned|gather|gathered|split|math|displaymath|multline|eqnarray)\*?\}"
)
_CURRENCY = re.compile(r"^\s*(?:US\s?\\?\$|(?:USD|EUR|GBP|INR|CNY|RMB|Rs\.?)\s?)(?=\s*[-+]?[0-9.])")
_THIN_GROUPS = re.compile(r"(?<![0-9.])([0-9]{1,3})((?:\\,[0-9]{3})+)(?![0-9])")
_SPACED_GROUPS = re.compile(r"(?<![0-9.,])([1-9][0-9]{0,2})((?: [0-9]{3})+)(?![0-9/])(?! [0-9]{1,2}(?![0-9/]))")
_STARS = re.compile(r"^\*\*(.*)\*\*$", re.DOTALL)


def cleaned(text: str, *, reference: bool = False) -> str:
    r"""Returns ``text`` in the dialect that `parse` reads.

    Args:
        text: One answer, without its box.
        reference: Whether it comes from a data set. Data are often escaped twice (``\\le``); a model's line break
            followed by letters is left alone unless commands with arguments prove the double escape.
    """
    text = re.sub(r"\s+", " ", text).strip()
    stars = _STARS.match(text)
    if stars:
        text = stars.group(1)
    text = _plain_characters(text)
    if "\\\\" in text and "\\begin" not in text and (reference or _DOUBLED.search(text)):
        text = _DOUBLED_ANY.sub(r"\\", text).replace("\\\\{", "\\{").replace("\\\\}", "\\}")
    if reference:
        text = _ESCAPED_BREAK.sub(" ", text) if _ESCAPED_BREAK.match(text) else text
    text = _LAYOUT.sub(" ", text) if "\\begin" in text else text
    text = _TIGHT_COMMA.sub(",", text)
    text = _THIN_GROUPS.sub(lambda match: match.group(1) + match.group(2).replace("\\,", ""), text)
    text = _LABEL.sub("", text)
    text = _CURRENCY.sub("", text)
    money = _MONEY_TAIL.match(text)
    if money:
        text = money.group(1)
    text = text.replace("\\$", " ")
    text = _DELIMITER.sub(" ", text)
    text = _TYPOGRAPHY.sub("", text)
    text = _COLOUR.sub(" ", text)
    for _ in range(3):
        text, count = _FONT.subn(_font, text)
        if not count:
            break
    text = _OLD_FONT.sub("", text)
    text = _TO.sub(":", _UNIT_FRACTION.sub(r"\\text{\1/\2}", text))
    for pattern, replacement in _SPELLINGS:
        text = pattern.sub(replacement, text)
    text = _NUMBERS_WITHOUT.sub(r"\1\\setminus ", text)
    text = _SPACE.sub(" ", text)
    text = re.sub(r"\s+", " ", text).strip()
    text = _SPACED_GROUPS.sub(lambda match: match.group(1) + match.group(2).replace(" ", ""), text)
    return _trimmed(text)


def _font(match: re.Match[str]) -> str:
    inner: str = match.group(1)
    word = inner.strip()
    after_number = re.search(r"[0-9}]\s*$", match.string[max(0, match.start() - 3) : match.start()]) is not None
    unit = after_number and match.group().startswith(("\\text", "\\mbox"))
    if re.fullmatch(r"[^A-Za-z]+", word) or (len(word) == 1 and not unit) or "=" in word:
        return f" {word} "
    if word in _FUNCTION_WORDS:
        return f"\\{word} "
    return "\\text{" + inner + "}"


_FUNCTION_PATTERN = "sin|cos|tan|cot|sec|csc|arcsin|arccos|arctan|sinh|cosh|tanh|log|ln|lg|exp|lcm|gcd|max|min|det"
_FUNCTION_WORDS = frozenset(_FUNCTION_PATTERN.split("|"))


_MAX_WRAPPERS = 50  # each costs a pass over the text


def _trimmed(text: str) -> str:
    for _ in range(_MAX_WRAPPERS):
        before = text
        text = text.strip().rstrip(",;")
        if text.endswith(".") and not text.endswith("\\."):
            text = text[:-1]
        if text.startswith("{") and closing_brace(text, 0) == len(text) - 1:
            text = text[1:-1]
        text = text.strip()
        if text == before:
            break
    return text


def canonical(text: str) -> str:
    """``text`` reduced to the string that equal spellings share; for plain comparison, not for parsing."""
    text = text.replace("\\text", "").replace("{", "").replace("}", "")
    text = re.sub(r"(?<=[0-9,])\s+(?=[0-9])", "~", text)
    return re.sub(r"[\s\\]+", "", text)
