"""Checks of the arguments that several environments take."""

from __future__ import annotations

from collections.abc import Iterable

from whale_env.errors import InputError


def check_whole(least: int, **values: object) -> None:
    """Checks that each value is None or a whole number that is not too small.

    Args:
        least: The smallest one allowed.
        **values: What was given, by the name of the argument.

    Raises:
        InputError: One is neither.
    """
    for name, value in values.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise InputError(f"{name} must be a whole number of at least {least}, not {value!r:.80}")


def read_names(what: str, names: Iterable[str] | None, known: Iterable[str] = ()) -> frozenset[str] | None:
    """Returns an argument that lists names as a set, or None.

    Args:
        what: The argument, e.g. ``tiers``.
        names: What was given.
        known: The names that there are; empty where any will do.

    Raises:
        InputError: A single text instead of a list, or a name that is not known.
    """
    if names is None:
        return None
    if isinstance(names, str):
        raise InputError(f"{what} must be a sequence of names. Did you mean [{names!r}]?")
    wanted, known = frozenset(map(str, names)), tuple(known)
    if known and (unknown := wanted - set(known)):
        raise InputError(f"unknown {what.removesuffix('s')} {min(unknown)!r}; the {what} are {', '.join(known)}")
    return wanted
