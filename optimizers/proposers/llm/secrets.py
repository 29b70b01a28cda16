"""Finding the environment's secrets in text that a program wrote: plain, percent- or hex-encoded, in base64.

A program that holds a key can hide it from any filter (reversed, encrypted, a character a line). This catches what
happens by carelessness, and the encodings that tools apply on their own; whoever must not give a key away must not be
given it.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from urllib.parse import unquote, urlsplit

SHORTEST = 8
"""Characters; a shorter value is no secret, and would be found everywhere."""
MARK = "[secret]"
_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|PASSPHRASE|CREDENTIAL", re.IGNORECASE)


def redacted(text: str, environment: Mapping[str, str] | None = None) -> str:
    """Returns a text without the secrets of the environment.

    Args:
        text: Any text.
        environment: Variables; None takes this process's own.
    """
    found = frozenset(_secrets(os.environ if environment is None else environment))
    return _pattern(found).sub(MARK, text) if found else text


def _secrets(environment: Mapping[str, str]) -> Iterator[str]:
    """Yields values of variables that are named like secrets, and passwords in URLs of any."""
    for name, value in environment.items():
        if _NAME.search(name) and len(value) >= SHORTEST:
            yield value
        if "://" in value and "@" in value:
            try:
                password = urlsplit(value).password or ""
            except ValueError:
                continue
            yield from (said for said in {password, unquote(password)} if len(said) >= SHORTEST)


@lru_cache(maxsize=8)
def _pattern(secrets: frozenset[str]) -> re.Pattern[str]:
    forms = {form for secret in secrets for form in _forms(secret)}
    return re.compile("|".join(sorted(forms, key=len, reverse=True)))


def _forms(secret: str) -> Iterator[str]:
    data = secret.encode("utf-8", "surrogateescape")
    yield "".join(_character(character) for character in secret)
    yield "(?i:" + r"[\s:]*".join(f"{byte:02x}" for byte in data) + ")"
    for before in range(3):  # where it begins in a group of three bytes
        coded = base64.b64encode(bytes(before) + data).decode()
        sure = coded[-(-before * 8 // 6) : (before + len(data)) * 8 // 6]  # the rest depends on what stands around it
        yield r"\s*".join({"+": "[+-]", "/": "[/_]"}.get(character, character) for character in sure)


def _character(character: str) -> str:
    """Returns a pattern of one character: as it is, in percents, or escaped as Python and JSON do."""
    data = character.encode("utf-8", "surrogateescape")
    percent = "".join(f"%{byte:02x}" for byte in data)
    escaped = "".join(rf"\\x{byte:02x}" for byte in data)
    return f"(?:{re.escape(character)}|(?i:{percent}|{escaped}|\\\\u{ord(character):04x}))"
