"""Tool calls in model text: three dialects in, one list out. Total: any text gives a list, never an exception.

    parse('<tool_call>{"name": "search", "arguments": {"query": "cats"}}</tool_call>', "hermes")
    → [ToolCall("search", {"query": "cats"}, id="call_0")]

Calls and failures come in the order of the text, in time linear in its length. Calls inside thoughts are no calls, a
broken call takes neither its neighbours nor the rest with it, and a call that the text cuts off is ``truncated``.
With tools given, arguments have the schema's types or the call is a failure that names the argument; without, XML and
tag values are strings. Does not decide what a harness does about a failure, nor whether a well-typed value makes sense.

Where public parsers differ, this one decides so:

All dialects
- A thought that the template opened (``…</think>`` without an opening) is a thought; so is one that never closes.
- A tag alone between equal quote marks (```<tool_call>```) is talk about the tag.
- A string that UTF-8 cannot store (an unpaired surrogate) fails; NUL is kept, the environment may refuse it.
- An argument the schema does not list is kept unless ``additionalProperties`` is false. 3.0 is an integer, true is not.
- A schema's types are also those of what its ``$ref`` points at, of its ``enum`` and of its ``const``.

Hermes JSON
- Accepted: raw line breaks in strings, a Markdown fence round the object, the nested ``{"function": {…}}`` form,
  arguments that are an object in a JSON string, a repeated opening tag, a whole object whose closing tag is missing
  or cut at the end of the text, or missing before the next call.
- Failures: no "arguments" (or "parameters" in their place), arguments that are not an object, a list, two objects in
  one tag, anything after the object, trailing commas, NaN, infinities and numbers that overflow, over 100 levels.
- JSON outside the tags is no call.

Qwen XML
- The one line break after the opening and before the closing tag belongs to the tags; everything else to the value.
- Closing tags in a value are text if more text and the value's proper end follow before the next call begins.
- Accepted: no ``<tool_call>`` round the function, a repeated one, a missing ``</function>`` or ``</parameter>`` where
  the next tag tells the end, ``</parameter1>`` and its like, quotes round a name, True/False/None as the template
  writes them.
- Failures: spaces round the equals sign, a function left open at the end of the text.
- A parameter given twice: the last one counts, as in JSON. The word null for a string is the string "null".

Tags
- One action a turn, the first that can be read; a turn that answers means its last answer. A tag that opens again
  before it closes means the last opening. Inside ``<python>`` tags in strings are text. Tags in ``<information>`` are
  not the model's. ``<answer>`` is read whether or not it is a tool. No action is a failure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeVar, get_args

from harness_sdk.toolcalls import _hermes, _tags, _xml
from harness_sdk.toolcalls._schema import Tools
from harness_sdk.types import ParseFailure
from whale_env.types import ToolCall, ToolSpec

T = TypeVar("T")

Protocol = Literal["hermes", "qwen_xml", "tags"]
"""The dialects."""

_Parser = Callable[[str, Tools | None], list[ToolCall | ParseFailure]]
_PARSERS: dict[str, _Parser] = {"hermes": _hermes.parse, "qwen_xml": _xml.parse, "tags": _tags.parse}
_RENDERERS: dict[str, Callable[[Sequence[ToolCall]], str]] = {
    "hermes": _hermes.render,
    "qwen_xml": _xml.render,
    "tags": _tags.render,
}

__all__ = ["Protocol", "parse", "render"]


def parse(text: str, protocol: Protocol, tools: Sequence[ToolSpec] | None = None) -> list[ToolCall | ParseFailure]:
    """Reads the tool calls in a completion.

    Args:
        text: What the model wrote.
        protocol: The dialect it was asked to write.
        tools: The tools on offer, for names and types. None accepts any name and leaves text as text.

    Returns:
        Calls (with ids ``call_0``, ``call_1``, …) and failures, in order. Hermes and XML text without a call gives an
        empty list; in the tags dialect, where every turn acts, it gives one failure.

    Raises:
        ValueError: An unknown protocol. No text raises.
    """
    by_name = None if tools is None else {tool.name: tool for tool in tools}
    results = _known(_PARSERS, protocol)(text, by_name)
    numbers = iter(range(len(results)))
    return [replace(r, id=f"call_{next(numbers)}") if isinstance(r, ToolCall) else r for r in results]


def render(calls: Sequence[ToolCall], protocol: Protocol) -> str:
    """Writes calls as a model would: `parse` gives them back (XML types need the tools).

    Raises:
        ValueError: The dialect cannot say these calls (say, an XML value that holds the tags that end it).
    """
    text = _known(_RENDERERS, protocol)(calls)
    said = [
        replace(call, arguments={k: v if isinstance(v, str) else _xml.as_text(v) for k, v in call.arguments.items()})
        if protocol == "qwen_xml"
        else call
        for call in calls
    ]
    heard = parse(text, protocol) if calls else []
    if heard != said:
        raise ValueError(f"the {protocol} dialect cannot write these calls: they read as {heard!r:.300}")
    return text


def _known(table: Mapping[str, T], protocol: str) -> T:
    if protocol not in table:
        raise ValueError(f"unknown protocol {protocol!r}. Use one of: {', '.join(get_args(Protocol))}.")
    return table[protocol]
