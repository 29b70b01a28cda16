"""Short-answer verdicts: normalised exact match over aliases, and the answer tag of a message.

The base is the SQuAD normaliser (Rajpurkar et al. 2016: lower case, no ASCII punctuation, no articles, single spaces).
The default rule mends where that one says "equal" for different things or "different" for equal ones:

* numbers keep sign and decimal point and lose thousands commas and trailing zeros: ``3.14`` is not ``314``, ``9.436``
  is not ``9,436``, ``-5`` is not ``5``, ``12.0`` is ``12``; ``1/2`` and the score ``1-2`` are not ``12``;
* typographic punctuation counts as its ASCII kin: curly quotes, dashes, full-width stops, the minus sign; so do
  full-width and ligature letters, Roman numerals and digits of any script, and small digits after a letter (``H₂O``);
  a small digit after a digit is a power (``10²`` is not ``102``); zero-width characters around a text are not there;
* a space between true groups of three digits separates thousands, as a comma does;
* an ``a`` at the end is a letter, not an article (``vitamin A``), and ``#`` or ``+`` after a letter stays (``C#``);
* what normalises to nothing matches nothing, so neither an empty answer nor ``...`` can be right.

Accents stay significant, as do word order, units and number words: those are the business of the aliases.
``strict_squad=True`` gives the unchanged SQuAD rule. No judge model here, and no partial credit.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Sequence

from whale_env.final_text import final_text

_PAIR = re.compile(r"<(/?)answer>", re.IGNORECASE)

_SQUAD_PUNCTUATION = str.maketrans("", "", string.punctuation)
_SQUAD_ARTICLES = re.compile(r"\b(?:a|an|the)\b")

# Private-use characters stand for the marks that must outlive the removal of punctuation.
_POINT, _MINUS, _SHARP, _PLUS, _BETWEEN = "\ue000", "\ue001", "\ue002", "\ue003", "\ue004"
_MARKS = str.maketrans("", "", _POINT + _MINUS + _SHARP + _PLUS + _BETWEEN)
_DASHES = str.maketrans({"\u2212": "-", "\u2010": "-", "\u2011": "-", "\ufe63": "-", "\uff0d": "-"})


_DRESSED = re.compile("[\u2103\u2109\u2116\u2160-\u217f\ufb00-\ufb06\uff01-\uff5e\U0001d400-\U0001d7ff]")
_SMALL_DIGITS = re.compile("(?<=[^\\W\\d_])[\u00b2\u00b3\u00b9\u2070\u2074-\u2079\u2080-\u2089]+")
_VULGAR_FRACTION = re.compile("([0-9]?)([\u00bc-\u00be\u2150-\u215e])")


def _plain_characters(text: str) -> str:
    """Undoes what is only another way to write the same characters."""
    text = _UNSEEN_ENDS.sub("", text)
    if text.isascii():
        return text
    text = _DRESSED.sub(lambda match: unicodedata.normalize("NFKC", match.group()), text)
    text = _SMALL_DIGITS.sub(lambda match: unicodedata.normalize("NFKC", match.group()), text)
    text = _VULGAR_FRACTION.sub(_spelled_fraction, text)
    return "".join(str(unicodedata.decimal(char)) if char.isdecimal() else char for char in text)


def _spelled_fraction(match: re.Match[str]) -> str:
    whole, fraction = match.groups()
    return f"{whole}{' ' if whole else ''}{unicodedata.normalize('NFKC', fraction)}".replace("\u2044", "/")


# byte-order marks, zero-width characters, direction marks and controls around a text; inside, a joiner joins
_UNSEEN = r"[\s\x00-\x1f\x7f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]"
_UNSEEN_ENDS = re.compile(rf"\A{_UNSEEN}+|(?<!{_UNSEEN}){_UNSEEN}+\Z")


class _Removed(dict[int, int | None]):
    """A translation table, filled on demand, that drops punctuation of any script and currency signs."""

    def __missing__(self, code: int) -> int | None:
        char = chr(code)
        dropped = char in string.punctuation or char in _LIKE_PUNCTUATION or unicodedata.category(char) in _DROPPED
        self[code] = None if dropped else code
        return self[code]


_LIKE_PUNCTUATION = "\u00b4\u02bb\u02bc\u00a9\u00ae\u2122"  # an accent and letters that are typed as apostrophes, © ® ™
_DROPPED = frozenset({"Pc", "Pd", "Ps", "Pe", "Pi", "Pf", "Po", "Sc"})
_REMOVED = _Removed()

_THOUSANDS = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?![\d,])")
_SPACED_THOUSANDS = re.compile(r"(?<![\w.,])[1-9]\d{0,2}(?:[ \u00a0\u2009\u202f]\d{3})+(?![\d,]|[ \u00a0]\d)")
_DECIMAL = re.compile(r"(?<![\d.])(\d*)\.(\d+)(?!\d)(?!\.\d)")
_BROKEN_GROUP = re.compile(r"(?<=\d),(?=\d)")
_SIGN = re.compile(r"(?:(?<=\s)|(?<=^)|(?<=\()|(?<=\$))-(?=[$€£]?\d|\.\d)")
_AFTER_LETTER = re.compile(r"(?<=[^\W\d_])([#+]+)")
_NUMBER_JOINT = re.compile(r"(?<=\d)[-/:\u2013\u2014](?=\d)")
_ARTICLES = frozenset({"a", "an", "the"})


def squad_normalised(text: str) -> str:
    """The SQuAD v1.1 normal form of ``text``."""
    text = text.lower().translate(_SQUAD_PUNCTUATION)
    return " ".join(_SQUAD_ARTICLES.sub(" ", text).split())


def normalised(text: str) -> str:
    """The normal form under the default rule; empty when ``text`` says nothing."""
    text = _plain_characters(unicodedata.normalize("NFC", text)).translate(_MARKS).translate(_DASHES).lower()
    text = text.replace("i\u0307", "i")  # what becomes of a capital dotted I
    text = _SPACED_THOUSANDS.sub(lambda match: "".join(match.group().split()), text)
    text = _THOUSANDS.sub(lambda match: match.group().replace(",", ""), text)
    text = _DECIMAL.sub(_canonical_decimal, text)
    text = _BROKEN_GROUP.sub(_POINT + _POINT, text)
    text = _NUMBER_JOINT.sub(_BETWEEN, text)
    text = _SIGN.sub(_MINUS, text)
    text = _AFTER_LETTER.sub(lambda match: match.group().replace("#", _SHARP).replace("+", _PLUS), text)
    words = text.translate(_REMOVED).split()
    kept = [word for word in words if word not in _ARTICLES]
    # a last "a" after another word is a letter ("vitamin A"), and a name may consist of articles alone ("The The")
    if words and (not kept or (words[-1] == "a" and words[-2] not in _ARTICLES)):
        kept.append(words[-1])
    return " ".join(kept)


def _canonical_decimal(match: re.Match[str]) -> str:
    whole, fraction = match.group(1), match.group(2).rstrip("0")
    if not whole and match.start() and (match.string[match.start() - 1].isalnum()):
        return match.group()
    return (whole or "0") + (_POINT + fraction if fraction else "")


def answer_matches(aliases: Sequence[str], answer: str, *, strict_squad: bool = False) -> bool:
    """Whether ``answer`` equals one of the reference ``aliases`` after normalisation.

    Args:
        aliases: Accepted answers; a lone string counts as one alias.
        answer: The model's answer, without its tag.
        strict_squad: Use the unchanged SQuAD rule, under which an empty answer equals the alias "A".
    """
    if isinstance(aliases, str):
        aliases = (aliases,)
    if strict_squad:
        given = squad_normalised(answer)
        return any(squad_normalised(alias) == given for alias in aliases)
    given = normalised(answer)
    return bool(given) and any(normalised(alias) == given for alias in aliases)


def tagged_answer(text: str) -> str | None:
    """The content of the last ``<answer>…</answer>`` of a message, stripped; None without one.

    Each closing tag pairs with the nearest opening tag before it; an unpaired tag counts for nothing. Tags inside
    reasoning or inside quoted tool output are not the model's answer.
    """
    text = final_text(text)
    answer, opened = None, None
    for match in _PAIR.finditer(text):
        if not match.group(1):
            opened = match.end()
        elif opened is not None:
            answer, opened = text[opened : match.start()].strip(), None
    return answer
