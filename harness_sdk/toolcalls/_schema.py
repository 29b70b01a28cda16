"""Arguments against a tool's JSON schema: unknown tools, missing and unknown arguments, types, text to values.

Checks the types of the arguments themselves, not of what lies inside an object or array, nor ranges or enums: whether
a well-typed value makes sense is for the environment to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from harness_sdk.toolcalls import _json
from harness_sdk.toolcalls._scan import excerpt
from harness_sdk.types import ParseFailure
from whale_env.strict_json import read_json
from whale_env.types import ToolCall, ToolSpec
from whale_env.wording import did_you_mean

Tools = Mapping[str, ToolSpec]
"""Tools by name."""

Types = frozenset[str]
"""Names of JSON types."""

_TYPES = frozenset(["null", "boolean", "integer", "number", "string", "array", "object"])

_WORDS = {"True": True, "False": False, "None": None}
"""How Qwen's own template writes these values back into the history, so how models write them."""


def available(name: str, known: Iterable[str]) -> str:
    """Returns a suggestion and the list of what exists, as the end of a message."""
    options = sorted(known)
    return f"{did_you_mean(name, options)} Available: {', '.join(options) or 'none'}."


def unknown_tool(name: str, tools: Tools) -> ParseFailure:
    """Returns the failure for a tool that is not offered."""
    return ParseFailure(f"unknown tool {excerpt(name)!r}.{available(name, tools)}", excerpt(name))


def properties(tool: ToolSpec | None) -> Mapping[str, Any]:
    """Returns the schemas of a tool's arguments by name."""
    found = tool.parameters.get("properties") if tool else None
    return found if isinstance(found, Mapping) else {}


def required(tool: ToolSpec | None) -> list[str]:
    """Returns the names of the arguments a tool needs."""
    found = tool.parameters.get("required") if tool else None
    return [name for name in found if isinstance(name, str)] if isinstance(found, (list, tuple)) else []


def types_of(tool: ToolSpec | None, name: str) -> Types | None:
    """Returns the JSON types that a tool's schema allows for an argument, or None when it does not say."""
    return _types(properties(tool).get(name), tool.parameters, {}) if tool else None


def _types(schema: Any, root: Mapping[str, Any], known: dict[str, Types | None]) -> Types | None:
    """Returns the types of a schema. `known` holds what each reference allows, None while it is being looked up."""
    if not isinstance(schema, Mapping):
        return None
    pointer, kind = schema.get("$ref"), schema.get("type")
    if isinstance(pointer, str):
        if pointer not in known:
            known[pointer] = None
            known[pointer] = _types(_target(pointer, root), root, known)
        return known[pointer]
    if isinstance(kind, (str, list, tuple)):
        kinds = frozenset([kind] if isinstance(kind, str) else map(str, kind))
        return kinds if kinds <= _TYPES else None
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, (list, tuple)):
        return frozenset(map(type_name, values))
    parts = schema.get("allOf")
    if isinstance(parts, (list, tuple)):
        return next((types for part in parts if (types := _types(part, root, known)) is not None), None)
    options = schema.get("anyOf") or schema.get("oneOf")
    if not isinstance(options, (list, tuple)):
        return None
    allowed = [types for option in options if (types := _types(option, root, known)) is not None]
    return frozenset().union(*allowed) if len(allowed) == len(options) else None


def _target(pointer: str, root: Mapping[str, Any]) -> Any:
    """Returns what a reference into the tool's own schema points at, or None."""
    found: Any = root if pointer.startswith("#/") else None
    for part in pointer[2:].split("/"):
        found = found.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found


def type_name(value: Any) -> str:
    """Returns the JSON type of a value."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def _fit(value: Any, types: Types | None) -> tuple[bool, Any]:
    """Whether a value has one of the types, and the value as that type."""
    kind = type_name(value)
    if types is None or kind in types:
        return True, value
    if kind == "integer" and "number" in types:
        return True, value
    if kind == "number" and "integer" in types and value.is_integer():
        return True, int(value)
    return False, value


def from_text(text: str, types: Types | None) -> Any:
    """Returns the value that a parameter's text stands for. Text stays text unless the types ask for something else.

    Raises:
        ValueError: The text is of none of the types.
    """
    word = text.strip()
    if types is None or "string" in types:
        if types and "null" in types and word in ("null", "None"):
            return None
        return text
    value = _WORDS[word] if word in _WORDS else read_json(word, lenient=True)
    fits, value = _fit(value, types)
    if not fits:
        raise ValueError(f"is {type_name(value)}")
    return value


def wrong_type(tool: str, name: str, types: Types | None, problem: str) -> ParseFailure:
    """Returns the failure for an argument that is of none of the types."""
    words = " or ".join(sorted(types or ["any value"]))
    return ParseFailure(f"argument {excerpt(name)!r} of {tool} must be {words}: {problem}", excerpt(name))


def checked(name: str, arguments: dict[str, Any], tools: Tools | None) -> ToolCall | ParseFailure:
    """Returns the call with its arguments in the schema's types, or what is wrong with it."""
    if not name.strip():
        return ParseFailure("the tool name is empty: give the name of a tool")
    if not _json.encodable([name, arguments]):
        return ParseFailure("the call holds an unpaired surrogate, which UTF-8 cannot store", excerpt(repr(arguments)))
    if tools is None:
        return ToolCall(name, arguments)
    if name not in tools:
        return unknown_tool(name, tools)
    tool, known = tools[name], properties(tools[name])
    missing = [each for each in required(tool) if each not in arguments]
    if missing:
        return ParseFailure(f"{name} needs the argument {missing[0]!r}", ", ".join(missing))
    values = {}
    for key, value in arguments.items():
        if key not in known and tool.parameters.get("additionalProperties") is False:
            return ParseFailure(f"{name} has no argument {excerpt(key)!r}.{available(key, known)}", excerpt(key))
        types = types_of(tool, key)
        fits, values[key] = _fit(value, types)
        if not fits:
            return wrong_type(name, key, types, f"{excerpt(repr(value))} is {type_name(value)}")
    return ToolCall(name, values)
