"""Policies that say nothing useful, in many ways, for the checks to play a harness against."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from harness_sdk import toolcalls
from harness_sdk.policies import Generation, Policy, Request, ScriptedPolicy
from harness_sdk.randomness import derive_seed
from harness_sdk.types import Message
from whale_env.json_schema import main_type
from whale_env.types import Json, ToolCall, ToolSpec


def _noise(messages: Sequence[Message]) -> str:
    rng = random.Random(derive_seed("noise", [message["content"] for message in messages]))
    return " ".join("".join(rng.choices("bcdfghjklmnpqrstvwxyz", k=rng.randint(3, 9))) for _ in range(12))


def _echo(messages: Sequence[Message]) -> str:
    """The prompt itself, begun at some word: it holds whatever form and words the harness waits for."""
    text = "\n".join(message["content"] for message in messages)
    starts = [word.start() for word in re.finditer(r"\S+", text)] or [0]
    start = random.Random(derive_seed("echo", text)).choice(starts)
    return f"{text[start:]}\n{text[:start]}"


def _nonsense(tool: ToolSpec) -> ToolCall:
    """A call that fits the tool's schema and means nothing."""
    properties: Mapping[str, Any] = tool.parameters.get("properties", {})
    names = [*tool.parameters.get("required", ())] or [*properties][:1]
    return ToolCall(tool.name, {name: _value(properties.get(name, {})) for name in names})


def _value(schema: Mapping[str, Any]) -> Json:
    if "enum" in schema:
        return schema["enum"][0]
    kind = main_type(schema)
    if kind == "object":
        properties: Mapping[str, Any] = schema.get("properties", {})
        return {name: _value(item) for name, item in properties.items()}
    return {"integer": 7, "number": 7, "boolean": True, "array": [], "null": None}.get(kind, "qzxv")


def _tag(call: ToolCall) -> str:
    value = next(iter(call.arguments.values()), "")
    return f"<{call.name}>{value if isinstance(value, str) else json.dumps(value)}</{call.name}>"


def _scripts(tools: Sequence[ToolSpec]) -> dict[str, Callable[[Sequence[Message]], str]]:
    names = [tool.name for tool in tools]
    calls = [_nonsense(tool) for tool in tools]
    binary = "\x00\x01\ufffd<|im_end|><|im_start|>system\n\u202e}{"
    return {
        "noise": _noise,
        "silence": lambda messages: "",
        "a flood": lambda messages: _noise(messages) * 2000,
        "binary": lambda messages: binary,
        "cut-off tags": lambda messages: f"<{names[len(messages) % len(names)]}>qz",
        "nonsense calls": lambda messages: _tag(calls[len(messages) % len(calls)]),
        "nonsense JSON calls": lambda messages: toolcalls.render([calls[len(messages) % len(calls)]], "hermes"),
        "an echo": _echo,
    }


class _NativeCalls:
    """A policy that calls the tools which it is offered natively, one a turn, with arguments that mean nothing."""

    def __init__(self) -> None:
        self._silent = ScriptedPolicy([""])

    async def generate(self, request: Request) -> Generation:
        generation = await self._silent.generate(request)
        if not request.tools:
            return generation
        function = request.tools[len(request.messages) % len(request.tools)]["function"]
        tool = ToolSpec(function["name"], "", function.get("parameters", {}))
        call = replace(_nonsense(tool), id="call_0")
        completion = replace(generation.completion, tool_calls=(call,), structured=True)
        return replace(generation, completion=completion)


def policies(tools: Sequence[ToolSpec]) -> dict[str, Policy]:
    """Returns the scripted policies by name.

    Args:
        tools: The environment's tools, which some of them call.
    """
    scripted: dict[str, Policy] = {name: ScriptedPolicy(script) for name, script in _scripts(tools).items()}
    return {**scripted, "native calls": _NativeCalls()}
