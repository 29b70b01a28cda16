"""What a harness has to work with in an environment, in lines for a person or a proposer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from whale_env.core import EnvHandle
from whale_env.json_schema import types_of
from whale_env.types import Json, Task, ToolSpec


def facts(env: EnvHandle, task: Task) -> str:
    """Says what a harness has to work with: the environment's tools, and what stands in an observation's data.

    Args:
        env: The environment.
        task: The task whose first observation is described.

    Returns:
        Lines for a person.
    """
    lines = [f"the tools of {env.prototype.domain.spec.name}, as ToolCall(name, {{argument: value}}):"]
    for tool in env.prototype.tools:
        lines.append(
            f"  {signature(tool)}{' (commits what the model said)' if tool.commits else ''}: {tool.description}"
        )
    data = env.open(task, 0)[1].data
    lines.append(f"observation.data at the beginning{':' if data else ': empty'}")
    lines += [f"  {name}: {_form(value)}" for name, value in data.items()]
    return "\n".join(lines)


def _form(value: Json, depth: int = 0) -> str:
    """Describes a JSON value by its type."""
    if isinstance(value, (Mapping, list, tuple)) and depth > 2:
        return "…"
    if isinstance(value, Mapping):
        shown = [f"{name}: {_form(item, depth + 1)}" for name, item in list(value.items())[:12]]
        return "{" + ", ".join(shown + ["…"] * (len(value) > 12)) + "}"
    if isinstance(value, (list, tuple)):
        return f"list of {_form(value[0], depth + 1)}" if value else "empty list"
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    return "string" if isinstance(value, str) else "integer" if isinstance(value, int) else "number"


def signature(tool: ToolSpec) -> str:
    """Returns a tool as ``name(argument: type, optional?: type)``."""
    required = tool.parameters.get("required", ())
    properties: Mapping[str, Any] = tool.parameters.get("properties", {})
    arguments = (
        f"{name}{'' if name in required else '?'}: {' | '.join(types_of(schema)) or 'any'}"
        for name, schema in properties.items()
    )
    return f"{tool.name}({', '.join(arguments)})"
