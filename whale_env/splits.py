"""Which split a problem belongs to, by its text alone, and which data goes to which split.

The same text is in the same split whatever the file, its order or the filters. Chess has its own key, which mirror
images share (`whale_env.chess.puzzles`).
"""

from __future__ import annotations

import hashlib
import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

from whale_env.errors import InputError
from whale_env.types import SPLITS, Split
from whale_env.wording import did_you_mean

Source: TypeAlias = "Name | Sequence[Name] | Mapping[str, Name | Sequence[Name]] | None"
"""What an environment's ``source`` may be: one data set, several, or those of each split (``{"test": "aime24"}``)."""

Name: TypeAlias = "str | os.PathLike[str]"
"""A data set: a path, or a name on the hub."""

Plan: TypeAlias = "tuple[tuple[str, tuple[Split, ...]], ...]"
"""Data sets, each with the splits among which its rows are divided."""

SHARES: Mapping[Split, int] = {"train": 60, "search": 20, "test": 20}
"""Percent of a data set that each split gets when it is divided among all."""


@lru_cache(maxsize=1 << 15)  # DAPO-Math-17k as published repeats its 17 thousand problems a hundred times
def text_key(text: str) -> str:
    """Returns a fingerprint of a text that does not see case and white space: 16 hexadecimal digits."""
    words = re.findall(r"\w+|[^\w\s]", unicodedata.normalize("NFKC", text).casefold())
    return hashlib.sha256(" ".join(words).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def split_of(key: str, among: Sequence[Split] = SPLITS) -> Split:
    """Returns the split of a key (`text_key`): 60 % train, 20 % search, 20 % test, or in that proportion among some."""
    part = int(key, 16) % sum(SHARES[split] for split in among)
    for split in among:
        part -= SHARES[split]
        if part < 0:
            return split
    raise AssertionError("unreachable")


def plan_of(source: Source) -> Plan:
    """Reads a ``source`` argument.

    Args:
        source: A name or path, several, or a mapping from split to those. A data set that several splits name is
            divided among them; one that a single split names goes there whole.

    Returns:
        The data sets in order, each with its splits; empty for None.

    Raises:
        InputError: An unknown split, or something that is neither text nor a list of texts.
    """
    if source is None:
        return ()
    if not isinstance(source, Mapping):
        return tuple((name, SPLITS) for name in _names(source))
    for split in source:
        if split not in SPLITS:
            hint = did_you_mean(split, SPLITS, cutoff=0.4)
            raise InputError(f"unknown split {split!r} in source.{hint} Known: {', '.join(SPLITS)}")
    owners: dict[str, tuple[Split, ...]] = {}
    for split in SPLITS:
        for name in _names(source.get(split, ())):
            owners[name] = (*owners.get(name, ()), split)
    return tuple(owners.items())


def _names(source: Name | Sequence[Name]) -> tuple[str, ...]:
    given = (source,) if isinstance(source, str | os.PathLike) else tuple(source)
    names = [os.fspath(name) if isinstance(name, os.PathLike) else name for name in given]
    for name in names:
        if not isinstance(name, str) or not name:
            raise InputError(f"a source must be the name or path of a data set, not {name!r:.80}")
    return tuple(dict.fromkeys(names))
