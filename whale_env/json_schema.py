"""The part of JSON schema that tool parameters use: what it means, once, for whoever reads a tool's schema.

Read are ``type`` (one or a list), ``enum``, ``const``, ``properties``, ``required``, ``additionalProperties``,
``items``, ``anyOf``, ``oneOf``, ``allOf``, ``not``, and ``$ref`` into the schema itself; ``true``, ``false`` and null
stand for "anything", "nothing" and "not said". Bounds on numbers, lengths and patterns are not checked: whether a
well-formed value makes sense is for the environment to say. Drawing values is `whale_env.spaces`'s business.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

NOTHING: Mapping[str, Any] = {"not": {}}
"""The schema that no value fits."""

TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list, tuple),
    "object": (dict, Mapping),
    "null": (type(None),),
}
"""The types by name, and how Python holds their values; a boolean is no number."""

_HOLDS_ONE: Mapping[str, Any] = {"items": (Mapping, bool), "not": (Mapping, bool), "additionalProperties": Mapping}
_HOLDS_LIST = ("anyOf", "oneOf", "allOf")
_HOLDS_NAMED = ("properties", "$defs", "definitions")
_HOLDS: Mapping[str, Any] = {
    "type": (str, list, tuple),
    "enum": (list, tuple),
    "required": (list, tuple),
    "examples": (list, tuple),
    "items": (),
    "not": (),
    "additionalProperties": bool,
}
_MAY_BE_NULL = ("const", "default")
_DEEPEST = 32
"""How many references a value may be followed through: a schema may refer to itself."""


def as_schema(schema: Any) -> Mapping[str, Any]:
    """Returns a schema as an object whose parts are objects, so that readers need know no other form.

    Args:
        schema: A schema; ``true``, ``false`` or null is turned into an object, here and in every part. A keyword that
            is null or malformed is left out.
    """
    if not isinstance(schema, Mapping):
        return NOTHING if schema is False else {}
    plain: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _HOLDS_NAMED:
            if isinstance(value, Mapping):
                plain[key] = {name: as_schema(part) for name, part in value.items()}
        elif key in _HOLDS_LIST:
            if isinstance(value, (list, tuple)):
                plain[key] = [as_schema(part) for part in value]
        elif key in _HOLDS_ONE and isinstance(value, _HOLDS_ONE[key]):
            plain[key] = as_schema(value)
        elif isinstance(value, _HOLDS.get(key, object)) and (value is not None or key in _MAY_BE_NULL):
            plain[key] = value
    return schema if plain == dict(schema) else plain


def types_of(schema: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the types that a schema names, in its order; empty where it names none."""
    kind = schema.get("type")
    if isinstance(kind, str):
        return (kind,)
    return tuple(map(str, kind)) if isinstance(kind, (list, tuple)) else ()


def main_type(schema: Mapping[str, Any], default: str = "") -> str:
    """Returns the type that a schema's values are meant to have: the first that is not null, of an option if need be.

    Args:
        schema: The schema.
        default: What to return where it names none.
    """
    named = types_of(schema)
    for option in [*_options(schema), *_parts(schema)]:
        named = named or (() if (kind := main_type(option)) in ("", "null") else (kind,))
    return next((kind for kind in named if kind != "null"), named[0] if named else default)


def resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns what a schema that is a reference into the root refers to; another schema as it is."""
    for _ in range(_DEEPEST):
        pointer = schema.get("$ref")
        if not isinstance(pointer, str):
            return schema
        found: Any = root if pointer == "#" or pointer.startswith("#/") else None
        for part in pointer[2:].split("/") if len(pointer) > 1 else ():
            found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
        if not isinstance(found, Mapping):
            return {}  # it cannot be followed, so it says nothing
        schema = found
    return {}


def same_value(one: Any, two: Any) -> bool:
    """Whether two JSON values are equal; true is not 1."""
    if isinstance(one, bool) or isinstance(two, bool):
        return one is two
    if isinstance(one, Mapping) and isinstance(two, Mapping):
        return one.keys() == two.keys() and all(same_value(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)) and isinstance(two, (list, tuple)):
        return len(one) == len(two) and all(map(same_value, one, two))
    return bool(one == two)


def schema_error(
    value: Any, schema: Any, where: str = "arguments", *, root: Mapping[str, Any] | None = None
) -> str | None:
    """Checks a value against a schema.

    Args:
        value: Any value.
        schema: The schema.
        where: What to call the value in the message.
        root: Where references lead; the schema itself if left out.

    Returns:
        One line that says what is wrong and what was expected, or None.
    """
    plain = as_schema(schema)
    return _error(value, plain, where, as_schema(root) if root is not None else plain, _DEEPEST)


def _error(value: Any, schema: Mapping[str, Any], where: str, root: Mapping[str, Any], left: int) -> str | None:
    if left == 0:
        return f"{where} is nested too deeply"
    schema = resolved(schema, root)
    problem = _type_error(value, schema, where)
    if problem:
        return problem
    if isinstance(value, float) and not math.isfinite(value):
        return f"{where} must be finite, not {value!r}"
    allowed = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(allowed, (list, tuple)) and not any(same_value(value, choice) for choice in allowed):
        return f"{where} must be one of {', '.join(map(repr, allowed))}, not {value!r:.80}"
    excluded = schema.get("not")
    if excluded is not None and _error(value, excluded, where, root, left - 1) is None:
        return f"{where} must not be {value!r:.80}"
    for part in _parts(schema):
        problem = _error(value, part, where, root, left - 1)
        if problem:
            return problem
    options = _options(schema)
    problems = [_error(value, option, where, root, left - 1) for option in options]
    if problems and all(problems):
        kinds = dict.fromkeys(kind for option in options for kind in types_of(resolved(option, root)))
        return f"{where} must be of type {' or '.join(kinds)}, not {value!r:.80}" if len(kinds) > 1 else problems[0]
    if isinstance(value, Mapping):
        return _object_error(value, schema, where, root, left)
    if isinstance(value, (list, tuple)) and isinstance(items := schema.get("items"), Mapping):
        errors = (_error(item, items, f"{where}[{i}]", root, left - 1) for i, item in enumerate(value))
        return next((error for error in errors if error), None)
    return None


def _type_error(value: Any, schema: Mapping[str, Any], where: str) -> str | None:
    kinds = types_of(schema)
    if unknown := [kind for kind in kinds if kind not in TYPES]:
        return f"{where}: unknown schema type {unknown[0]!r}; known: {', '.join(TYPES)}"
    if kinds and not any(_is_of_type(value, kind) for kind in kinds):
        return f"{where} must be of type {' or '.join(kinds)}, not {value!r:.80}"
    return None


def _is_of_type(value: Any, kind: str) -> bool:
    if isinstance(value, bool) and kind in ("integer", "number"):
        return False
    return isinstance(value, TYPES[kind])


def _object_error(
    value: Mapping[Any, Any], schema: Mapping[str, Any], where: str, root: Mapping[str, Any], left: int
) -> str | None:
    properties: Mapping[str, Any] = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            return f"{where}: {name!r} is missing"
    # a schema that names properties means these and no others, unless it says so
    others = schema.get("additionalProperties", not properties)
    for name, item in value.items():
        if name not in properties and others is False:
            known = f"known: {', '.join(properties)}" if properties else "it takes none"
            return f"{where}: unknown {name!r}; {known}"
        part = properties.get(name, others)
        error = _error(item, part, f"{where}.{name}", root, left - 1) if isinstance(part, Mapping) else None
        if error:
            return error
    return None


def _options(schema: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return schema.get("anyOf") or schema.get("oneOf") or ()


def _parts(schema: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return schema.get("allOf") or ()
