"""What a check is made of: its subject, its breach, and how values are shown in a finding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from whale_env.core import EnvHandle
from whale_env.types import Json, Task

PLAYED = 6
"""Tasks of a split that are played."""


class ContractError(AssertionError):
    """A domain breaks the contract; the message lists every breach that was found."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is checked.

    Attributes:
        env: A handle on all splits.
        secrets: Texts that only the answers hold and that must occur in nothing public.
        distinct: Whether no two splits may begin with the same observation. False where the problem does not show at
            the start (a fixed map, hidden dynamics).
    """

    env: EnvHandle
    secrets: tuple[str, ...] = ()
    distinct: bool = True

    def some(self, count: int = PLAYED) -> list[Task]:
        """Returns some tasks of the train split."""
        return list(self.env.tasks("train")[:count])


Rule = Callable[[Subject], Iterator[str]]


_QUOTES = "'\""


def brief(value: object, size: int = 60) -> str:
    """Returns a value's repr, cut so that its quotes still close."""
    text = repr(value)
    if len(text) <= size:
        return text
    return f"{text[:size].rstrip(chr(92))}…{text[0] if text[0] in _QUOTES else ''}"


def words_in(value: Json) -> Iterator[str]:
    """Yields what stands in JSON data, as text."""
    return (text for _, text in leaves(value))


def leaves(value: Json, path: str = "") -> Iterator[tuple[str, str]]:
    """Yields what stands in JSON data, as text, with the path to it."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)):
        for place, item in enumerate(value):
            yield from leaves(item, f"{path}[{place}]")
    else:
        yield path, str(value)
