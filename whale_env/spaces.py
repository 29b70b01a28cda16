"""Gymnasium spaces over tool calls and observations: what is in them, and random members of them.

What a tool's schema means is `whale_env.json_schema`'s business; every value that is drawn here fits it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Space

from whale_env.json_schema import NOTHING, as_schema, resolved, schema_error, types_of
from whale_env.strict_json import is_json
from whale_env.types import Json, Observation, ToolCall, ToolSpec

_ALPHABET = "abcdefgh12345678 ,.+=x<>/"


_DEEPEST = 6
"""Levels down to which values are drawn where a schema refers to itself; below, only what it requires."""


class ToolCallSpace(Space[ToolCall]):
    """All well-formed calls of some tools. Shape and dtype are None: a call is structured data."""

    def __init__(self, tools: Sequence[ToolSpec], seed: int | np.random.Generator | None = None) -> None:
        """Builds the space.

        Args:
            tools: The tools that may be called; at least one.
            seed: Seed of `sample`.
        """
        if not tools:
            raise ValueError("a ToolCallSpace needs at least one tool")
        self.tools = tuple(tools)
        super().__init__(None, None, seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Calls have no fixed-size array form."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> ToolCall:
        """Draws a well-formed call (masks are not used).

        Values that a schema states are drawn too: always those of ``enum`` and ``const``, about every other time those
        of ``examples`` and ``default``. Otherwise arguments are random.
        """
        tool = self.tools[int(self.np_random.integers(len(self.tools)))]
        root = {**as_schema(tool.parameters), "type": "object"}
        return ToolCall(tool.name, self._draw(root, root))

    def contains(self, x: Any) -> bool:
        """Whether x is a call of one of the tools with arguments that fit its schema."""
        return self.error(x) is None

    def error(self, call: Any) -> str | None:
        """Says in one line why something is not a call in the space, or returns None."""
        if not isinstance(call, ToolCall):
            example = f'ToolCall("{self.tools[0].name}", {{…}})'
            return f"an action must be a ToolCall, e.g. {example}, not {_shown(call)}"
        if not isinstance(call.arguments, Mapping):
            return f"{call.name!r:.80}: arguments must be a mapping, not {_shown(call.arguments)}"
        for tool in self.tools:
            if tool.name == call.name:
                return schema_error(call.arguments, tool.parameters, call.name)
        return f"unknown tool {call.name!r:.80}; known: {', '.join(tool.name for tool in self.tools)}"

    def to_jsonable(self, sample_n: Iterable[ToolCall]) -> list[Any]:
        """Returns the calls as JSON data."""
        return [call.to_json() for call in sample_n]

    def from_jsonable(self, sample_n: list[Any]) -> list[ToolCall]:
        """Rebuilds calls from `to_jsonable`."""
        return [ToolCall.from_json(data) for data in sample_n]

    def __repr__(self) -> str:
        return f"ToolCallSpace({', '.join(tool.name for tool in self.tools)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ToolCallSpace) and self.tools == other.tools

    def _draw(self, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int = 0) -> Json:
        rng = self.np_random
        schema = _whole(resolved(schema, root), root)
        options = _fitting([schema["const"]] if "const" in schema else schema.get("enum"), schema, root)
        bound = "const" in schema or "enum" in schema
        options = options if bound else _stated(schema, root)
        if options and (bound or rng.random() < 0.5):
            return copy.deepcopy(options[int(rng.integers(len(options)))])  # who gets it may change it
        choices = schema.get("anyOf") or schema.get("oneOf")
        if choices:
            kept = [choice for choice in choices if not _is_nothing(choice)] or choices
            kept = kept if depth < _DEEPEST else [choice for choice in kept if _is_flat(choice, root)] or kept
            rest = {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf")}
            return self._draw(_both(rest, resolved(kept[int(rng.integers(len(kept)))], root)), root, depth + 1)
        kinds = types_of(schema) or (("object",) if "properties" in schema else ("string",))
        if depth >= _DEEPEST:
            kinds = tuple(kind for kind in kinds if kind not in ("array", "object")) or kinds
        match kinds[int(rng.integers(len(kinds))) if len(kinds) > 1 else 0]:
            case "integer":
                return int(rng.integers(1, 10))
            case "number":
                return round(float(rng.random()), 6)
            case "boolean":
                return bool(rng.integers(2))
            case "array":
                items = schema.get("items", {})
                size = 0 if depth >= _DEEPEST or _is_nothing(items) else int(rng.integers(3))
                return [self._draw(items, root, depth + 1) for _ in range(size)]
            case "object":
                required = schema.get("required", ())
                return {
                    name: self._draw(item, root, depth + 1)
                    for name, item in schema.get("properties", {}).items()
                    if name in required or (depth < _DEEPEST and not _is_nothing(item))
                } | {name: "" for name in required if name not in schema.get("properties", {})}
            case "null":
                return None
            case _:
                return "".join(_ALPHABET[i] for i in rng.integers(len(_ALPHABET), size=int(rng.integers(1, 12))))


def _shown(value: Any) -> str:
    """Names any object whatever, also one that cannot show itself."""
    plain = value is None or isinstance(value, str | int | float | list | tuple | dict)
    return f"{value!r:.80}" if plain else f"an object of {type(value).__name__}"


def _is_nothing(schema: Mapping[str, Any]) -> bool:
    return schema == NOTHING


def _is_flat(schema: Mapping[str, Any], root: Mapping[str, Any]) -> bool:
    kinds = types_of(resolved(schema, root))
    return bool(kinds) and not {"array", "object"} & set(kinds)


def _whole(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a schema with the parts of its ``allOf`` merged into it."""
    for part in schema.get("allOf", ()):
        schema = _both(
            {key: value for key, value in schema.items() if key != "allOf"}, _whole(resolved(part, root), root)
        )
    return schema


def _both(one: Mapping[str, Any], two: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns a schema whose values fit two, as far as types, properties and what is required go."""
    merged = {**one, **two}
    if types_of(one) and types_of(two):
        merged["type"] = [kind for kind in types_of(one) if kind in types_of(two)] or list(types_of(two))
    if "properties" in one and "properties" in two:
        merged["properties"] = {**one["properties"], **two["properties"]}
    if "required" in one and "required" in two:
        merged["required"] = [*one["required"], *two["required"]]
    return merged


def _stated(schema: Mapping[str, Any], root: Mapping[str, Any]) -> list[Json]:
    """Returns the values that a schema names without binding anyone to them."""
    examples = schema.get("examples")
    values = [*(examples if isinstance(examples, (list, tuple)) else ())]
    return _fitting([*values, *([schema["default"]] if "default" in schema else ())], schema, root)


def _fitting(values: Any, schema: Mapping[str, Any], root: Mapping[str, Any]) -> list[Json]:
    """Returns those of some values that are JSON and fit the schema."""
    if not isinstance(values, (list, tuple)):
        return []
    return [value for value in values if is_json(value) and schema_error(value, schema, root=root) is None]


class ObservationSpace(Space[Observation]):
    """All observations: a text and JSON data."""

    def __init__(self, seed: int | np.random.Generator | None = None) -> None:
        super().__init__(None, None, seed)

    @property
    def is_np_flattenable(self) -> bool:
        """Observations have no fixed-size array form."""
        return False

    def sample(self, mask: Any = None, probability: Any = None) -> Observation:
        """Draws an observation of random text (masks are not used)."""
        size = int(self.np_random.integers(0, 64))
        return Observation("".join(_ALPHABET[i] for i in self.np_random.integers(len(_ALPHABET), size=size)))

    def contains(self, x: Any) -> bool:
        """Whether x is an observation of plain text and JSON data."""
        return isinstance(x, Observation) and isinstance(x.text, str) and is_json(x.data)

    def to_jsonable(self, sample_n: Iterable[Observation]) -> list[Any]:
        """Returns the observations as JSON data."""
        return [observation.to_json() for observation in sample_n]

    def from_jsonable(self, sample_n: list[Any]) -> list[Observation]:
        """Rebuilds observations from `to_jsonable`."""
        return [Observation.from_json(data) for data in sample_n]

    def __repr__(self) -> str:
        return "ObservationSpace()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObservationSpace)
