"""Gymnasium action spaces as tool arguments: a JSON schema for the model, and the way back to an action.

Discrete, MultiDiscrete (one-dimensional), Text and Dict of those. A discrete action is called by name, unnamed ones by
their number: text either way, so that a harness which reads words needs no types. Box actions are not covered: a
continuous control signal is nothing that a language model says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from gymnasium import spaces

from whale_env.errors import InputError
from whale_env.types import Json

Names: TypeAlias = "Sequence[str] | Mapping[str, Names] | None"
"""Names of the discrete actions in order; for a Dict space by key."""

MAX_LISTED = 64
"""Discrete actions up to so many are listed by name; of more, the number is asked for."""

ARGUMENT = "action"
"""The tool's argument where the action space is not a Dict."""


def parameters(space: spaces.Space[Any], names: Names = None) -> dict[str, Json]:
    """Returns the JSON schema of the tool that takes an action.

    Args:
        space: The action space.
        names: Names of its discrete actions.

    Raises:
        InputError: A space that no tool call can stand for, or names that do not fit it.
    """
    if isinstance(space, spaces.Dict):
        return _schema(space, names, "the action space")
    return {"type": "object", "properties": {ARGUMENT: _schema(space, names, ARGUMENT)}, "required": [ARGUMENT]}


def action_of(space: spaces.Space[Any], names: Names, arguments: Mapping[str, Json]) -> Any:
    """Returns the action that a call's arguments stand for.

    Args:
        space: The action space.
        names: As for `parameters`.
        arguments: Arguments that fit the schema.

    Raises:
        InputError: The arguments fit the schema and still are no action (a number out of range, a text too long).
    """
    if isinstance(space, spaces.Dict):
        return _read(space, names, arguments, "")
    return _read(space, names, arguments[ARGUMENT], ARGUMENT)


def choices(space: spaces.Space[Any], names: Names = None) -> list[str]:
    """Returns the names of a Discrete space's actions, nothing for any other space."""
    if not isinstance(space, spaces.Discrete) or space.n > MAX_LISTED:
        return []
    first = int(space.start)
    return list(names) if names else [str(first + place) for place in range(int(space.n))]


def instructions(tool: str, space: spaces.Space[Any], names: Names = None) -> str:
    """Returns in words what actions there are and how one is written.

    Args:
        tool: Name of the tool that takes an action.
        space: The action space.
        names: Names of its discrete actions.
    """
    schema = parameters(space, names)
    form = written(tool, schema)
    if listed := choices(space, names):
        return f"Actions: {', '.join(listed)}\nWrite one as {form}."
    return "\n".join([*_members(schema), f"Write your action as {form}."])


def _members(schema: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yields what each argument may be, a line each."""
    for name, part in schema["properties"].items():
        if part["type"] == "object":
            yield from _members(part, f"{path}{name}.")
        else:
            yield f"{path}{name}: {part['description'] if 'description' in part else ', '.join(part['enum'])}"


def written(tool: str, schema: Mapping[str, Any]) -> str:
    """Returns the form of a call in tags: the single argument stands between them, several as a JSON object."""
    properties: Mapping[str, Any] = schema["properties"]
    if len(properties) != 1:
        return f"<{tool}>{_form(schema)}</{tool}>"
    return f"<{tool}>{_form(next(iter(properties.values())))}</{tool}>"


def _form(schema: Mapping[str, Any], *, inside: bool = False) -> str:
    match schema["type"]:
        case "object":
            members = (f'"{name}": {_form(part, inside=True)}' for name, part in schema["properties"].items())
            return f"{{{', '.join(members)}}}"
        case "array":
            return "[…]"
        case "string" if inside:
            return '"…"'
    return "…"


def _schema(space: spaces.Space[Any], names: Names, where: str) -> dict[str, Json]:
    match space:
        case spaces.Discrete():
            _check_names(space, names, where)
            if listed := choices(space, names):
                return {"type": "string", "enum": listed}
            return {"type": "integer", "description": f"From {space.start} to {space.start + space.n - 1}."}
        case spaces.MultiDiscrete() if space.nvec.ndim == 1:
            ranges = ", ".join(f"{first} to {first + n - 1}" for first, n in _ranges(space))
            about = f"{len(space.nvec)} whole numbers; in order: {ranges}."
            return {"type": "array", "items": {"type": "integer"}, "description": about}
        case spaces.Text():
            return {"type": "string", "description": f"{_length(space)} characters."}
        case spaces.Dict():
            inner = names if isinstance(names, Mapping) else {}
            if names and (names is not inner or not set(inner) <= set(space.spaces)):
                raise InputError(
                    f"names for {where} must go by its keys {', '.join(map(repr, space.spaces))}, not {names!r:.80}"
                )
            properties = {key: _schema(item, inner.get(key), str(key)) for key, item in space.spaces.items()}
            return {
                "type": "object",
                "properties": properties,
                "required": list(properties),
                "additionalProperties": False,
            }
    raise InputError(
        f"{where} is {space!r:.80}, which no tool call can stand for; "
        "wrap the environment so that its actions are Discrete, one-dimensional MultiDiscrete, Text, or a Dict of those"
    )


def _check_names(space: spaces.Discrete, names: Names, where: str) -> None:
    if names is None:
        return
    texts = not isinstance(names, (str, Mapping)) and all(isinstance(name, str) and name.strip() for name in names)
    if not texts or len(set(names)) != len(names) or len(names) != space.n:
        raise InputError(f"{where} has {space.n} actions: give as many different names, not {names!r:.80}")
    if space.n > MAX_LISTED:
        raise InputError(f"{where} has {space.n} actions; only up to {MAX_LISTED} can be called by name")


def _read(space: spaces.Space[Any], names: Names, value: Json, where: str) -> Any:
    action: Any = value
    expected = "an action"
    match space:
        case spaces.Discrete():
            first = int(space.start)
            listed = choices(space, names)
            action = first + listed.index(value) if listed else value
            expected = f"from {first} to {first + space.n - 1}"
        case spaces.MultiDiscrete():
            ranges = list(_ranges(space))
            expected = "one number for each of " + ", ".join(f"{first} to {first + n - 1}" for first, n in ranges)
            fits = len(value) == len(ranges) and all(
                first <= item < first + n for item, (first, n) in zip(value, ranges, strict=True)
            )
            # Converted only once it fits: numpy refuses numbers that its integers cannot hold.
            action = space.dtype.type(value) if fits and space.dtype else value
        case spaces.Text():
            expected = f"a text of {_length(space)} characters out of {''.join(sorted(space.character_set))!r}"
        case spaces.Dict():
            inner = names if isinstance(names, Mapping) else {}
            return {key: _read(item, inner.get(key), value[key], str(key)) for key, item in space.spaces.items()}
    if not space.contains(action):
        raise InputError(f"{where} must be {expected}, not {value!r:.80}")
    return action


def _ranges(space: spaces.MultiDiscrete) -> Iterator[tuple[int, int]]:
    return zip(map(int, space.start), map(int, space.nvec), strict=True)


def _length(space: spaces.Text) -> str:
    return f"{space.min_length} to {space.max_length}"
