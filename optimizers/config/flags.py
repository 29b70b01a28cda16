"""What is read off settings, whatever they are: their bounds, the flags that name them, and how JSON becomes them.

Settings are frozen dataclasses, one inside another. Which there are is `optimizers.config.settings`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt

from whale_env.errors import InputError
from whale_env.wording import did_you_mean

T = TypeVar("T")

_RULES = (
    (Ge, "ge", operator.ge, "at least"),
    (Gt, "gt", operator.gt, "more than"),
    (Le, "le", operator.le, "at most"),
    (Lt, "lt", operator.lt, "less than"),
)


class ConfigError(InputError):
    """A setting makes no sense, alone or with the others; one line that names it and says what to give."""


def settings(config: Any, prefix: str = "") -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """Walks through all settings of a configuration.

    Args:
        config: A dataclass.
        prefix: What its flags begin with: ``--`` for a whole configuration.

    Yields:
        Flag, value, and what is said of the value in its type's ``Annotated``.
    """
    hints = get_type_hints(type(config), include_extras=True)
    for each in fields(config):
        value, said = getattr(config, each.name), _said(hints[each.name])
        if is_dataclass(value):
            yield from settings(value, prefix + _segment(each.name, said))
        else:
            yield prefix + _segment(each.name, said).removesuffix("."), value, said


def flag_of(kind: type[Any], path: list[str]) -> str:
    """Returns the flag of a setting, given the names of the fields that lead to it from a dataclass."""
    flag = "--"
    for name in path:
        hint = get_type_hints(kind, include_extras=True).get(name)
        flag += _segment(name, _said(hint))
        kind = get_args(hint)[0] if get_origin(hint) is Annotated else hint  # type: ignore[assignment]
    return flag.removesuffix(".")


def require_bounds(config: Any, prefix: str = "") -> None:
    """Checks every number of a configuration against the bounds on its field.

    Args:
        config: A dataclass.
        prefix: What its flags begin with; empty names the bare settings.

    Raises:
        ConfigError: One is out of bounds, such as ``--weights.prompts is 0; give at least 1``.
    """
    for flag, value, said in settings(config, prefix):
        bounds = [
            (holds, words, getattr(each, name))
            for each in said
            for rule, name, holds, words in _RULES
            if isinstance(each, rule)
        ]
        if not bounds:
            continue
        if not math.isfinite(value) or not all(holds(value, bound) for holds, _, bound in bounds):
            wanted = " and ".join(f"{words} {bound:g}" for _, words, bound in bounds)
            raise ConfigError(f"{flag} is {value}; give {wanted}")


def from_json(kind: type[T], data: Mapping[str, Any], where: str = "") -> T:
    """Returns the settings that were written as JSON (`dataclasses.asdict`); what is not there takes its default.

    Args:
        kind: The dataclass.
        data: The JSON data.
        where: What to call the data in messages.

    Raises:
        ConfigError: The data name a setting that there is not.
    """
    hints = get_type_hints(kind)
    values: dict[str, Any] = {}
    for name, value in data.items():
        if name not in hints:
            raise ConfigError(f"{where or kind.__name__}: there is no setting {name!r}.{did_you_mean(name, hints)}")
        if is_dataclass(hint := hints[name]):
            value = from_json(hint, value, f"{where}.{name}".lstrip("."))  # type: ignore[arg-type]
        values[name] = tuple(value) if get_origin(hint) is tuple else value
    return kind(**values)


def _said(hint: Any) -> tuple[Any, ...]:
    return get_args(hint)[1:] if get_origin(hint) is Annotated else ()


def _segment(name: str, said: tuple[Any, ...]) -> str:
    """Returns a field's part of a flag: none where its own settings stand among those of the group."""
    return "" if any(getattr(each, "name", None) == "" for each in said) else f"{name.replace('_', '-')}."
