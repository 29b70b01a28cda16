"""Gymnasium spaces over tool calls and observations, and the JSON-schema check that both the spaces and the envs use.

Only the part of JSON schema that tool parameters need: types, enum, required, additional properties, array items.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.spaces import Space

from whale_env.strict_json import is_json
from whale_env.types import Json, Observation, ToolCall, ToolSpec

_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list, tuple),
    "object": (dict, Mapping),
    "null": (type(None),),
}
_ALPHABET = "abcdefgh12345678 ,.+=x<>/"


def schema_error(value: Any, schema: Mapping[str, Any], where: str = "arguments") -> str | None:
    """Checks a value against a tool's parameter schema.

    Args:
        value: Any value.
        schema: JSON schema (type, enum, properties, required, additionalProperties, items).
        where: What to call the value in the message.

    Returns:
        One line that says what is wrong and what was expected, or None.
    """
    kind = schema.get("type")
    if kind is not None:
        if kind not in _TYPES:
            return f"{where}: unknown schema type {kind!r}; known: {', '.join(_TYPES)}"
        is_bool_for_number = isinstance(value, bool) and kind in ("integer", "number")
        if not isinstance(value, _TYPES[kind]) or is_bool_for_number:
            return f"{where} must be of type {kind}, not {value!r:.80}"
    if isinstance(value, float) and not math.isfinite(value):
        return f"{where} must be finite, not {value!r}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{where} must be one of {', '.join(map(repr, schema['enum']))}, not {value!r:.80}"
    if isinstance(value, Mapping):
        return _object_error(value, schema, where)
    if isinstance(value, (list, tuple)) and "items" in schema:
        errors = (schema_error(item, schema["items"], f"{where}[{i}]") for i, item in enumerate(value))
        return next((error for error in errors if error), None)
    return None


def _object_error(value: Mapping[Any, Any], schema: Mapping[str, Any], where: str) -> str | None:
    properties = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            return f"{where}: {name!r} is missing"
    for name, item in value.items():
        if name in properties:
            error = schema_error(item, properties[name], f"{where}.{name}")
            if error:
                return error
        elif properties and schema.get("additionalProperties", False) is False:
            return f"{where}: unknown {name!r}; known: {', '.join(properties)}"
    return None


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

        Values that a schema states are drawn too: always those of an ``enum``, about every other time those of
        ``examples``, ``const`` and ``default``. Otherwise arguments are random.
        """
        tool = self.tools[int(self.np_random.integers(len(self.tools)))]
        return ToolCall(tool.name, self._draw({**tool.parameters, "type": "object"}))

    def contains(self, x: Any) -> bool:
        """Whether x is a call of one of the tools with arguments that fit its schema."""
        return isinstance(x, ToolCall) and self.error(x) is None

    def error(self, call: ToolCall) -> str | None:
        """Says why a call is not in the space, or None."""
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

    def _draw(self, schema: Mapping[str, Any]) -> Json:
        rng = self.np_random
        options: Sequence[Json] = schema["enum"] if "enum" in schema else _stated(schema)
        if options and ("enum" in schema or rng.random() < 0.5):
            return copy.deepcopy(options[int(rng.integers(len(options)))])  # who gets it may change it
        match schema.get("type", "string"):
            case "integer":
                return int(rng.integers(1, 10))
            case "number":
                return round(float(rng.random()), 6)
            case "boolean":
                return bool(rng.integers(2))
            case "array":
                return [self._draw(schema.get("items", {})) for _ in range(int(rng.integers(3)))]
            case "object":
                return {name: self._draw(item) for name, item in schema.get("properties", {}).items()}
            case "null":
                return None
            case _:
                return "".join(_ALPHABET[i] for i in rng.integers(len(_ALPHABET), size=int(rng.integers(1, 12))))


def _stated(schema: Mapping[str, Any]) -> list[Json]:
    """Returns the values that a schema names besides its enum, those left out that do not fit it."""
    examples = schema.get("examples")
    values = [*(examples if isinstance(examples, (list, tuple)) else ())]
    values += [schema[key] for key in ("const", "default") if key in schema]
    return [value for value in values if is_json(value) and schema_error(value, schema) is None]


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
