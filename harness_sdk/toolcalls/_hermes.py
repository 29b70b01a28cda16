"""Hermes JSON: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``. No other dialect, no schema of its own."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from harness_sdk.toolcalls import _json, _schema
from harness_sdk.toolcalls._scan import excerpt, find, quoted
from harness_sdk.toolcalls._thinking import Thinking
from harness_sdk.types import ParseFailure
from whale_env.strict_json import MAX_DEPTH, read_json
from whale_env.types import ToolCall

_EVENT = re.compile(r"</?think>|<tool_call>")
# Models stutter the opening tag; a run of openings is one opening.
_BODY = re.compile(r"(?:\s*+<tool_call>)*+\s*+(?P<fence>```\w*\s*+)?")
_AFTER = re.compile(r"\s*+(?P<fence>```\s*+)?(?:(?P<close></tool_call>)|(?=<tool_call>|</think>|<\|)|(?:</?\w*+)?\Z)")
_RESYNC = re.compile(r"</tool_call>|<tool_call>(?=\s*+\{)")
_RESYNC_THOUGHT = re.compile(r"</tool_call>|<tool_call>(?=\s*+\{)|</think>")


def parse(text: str, tools: _schema.Tools | None) -> list[ToolCall | ParseFailure]:
    """Returns the calls and failures of a text, in order."""
    results: list[ToolCall | ParseFailure] = []
    thinking, position = Thinking(), 0
    while event := find(_EVENT, text, position):
        position = event.end()
        if event[0] == "<think>":
            thinking.open(len(results))
        elif event[0] == "</think>":
            kept = thinking.close()
            if kept is not None:
                del results[kept:]
        elif not thinking.inside and not quoted(text, event.start(), position):
            result, position = _call(text, position, tools, thinking.unpaired > 0)
            results.append(result)
    return results


def _call(
    text: str, start: int, tools: _schema.Tools | None, maybe_thought: bool
) -> tuple[ToolCall | ParseFailure, int]:
    """Returns what the call whose body begins at `start` says, and where to read on."""
    body = _BODY.match(text, start)
    assert body is not None
    begin = body.end()
    if text[begin : begin + 1] != "{":
        return _broken(text, begin, _not_an_object(text, begin), begin == len(text), maybe_thought)
    end = _json.extent(text, begin)
    if end.state == "deep":
        return _broken(text, begin, f"JSON nested deeper than {MAX_DEPTH} levels", False, maybe_thought)
    if end.state != "whole":
        return _broken(text, begin, "the JSON object is not closed", end.state == "cut", maybe_thought)
    after = _AFTER.match(text, end.end)
    if not after or (after["fence"] and not body["fence"]):
        reason = "extra text after the JSON object: one object in one <tool_call>"
        return _broken(text, end.end, reason, False, maybe_thought)
    try:
        data = read_json(text[begin : end.end], lenient=True)
    except ValueError as error:
        return ParseFailure(f"invalid JSON: {error}", excerpt(text, begin, end.end)), after.end()
    return _read(data, tools), after.end()


def _not_an_object(text: str, begin: int) -> str:
    if text.startswith("[", begin):
        return "a list instead of an object: one <tool_call> for each call"
    if text.startswith("<function", begin):
        return 'an XML body where JSON is expected: write {"name": …, "arguments": {…}}'
    if begin == len(text):
        return "the text ends after <tool_call>"
    if text.startswith("</tool_call>", begin):
        return "empty <tool_call>"
    return 'the body is not a JSON object: write {"name": …, "arguments": {…}}'


def _broken(text: str, at: int, reason: str, cut: bool, maybe_thought: bool) -> tuple[ParseFailure, int]:
    """Returns the failure and where the next call can begin, so that a broken call takes no other with it."""
    resync = find(_RESYNC_THOUGHT if maybe_thought else _RESYNC, text, at)
    if resync is None:
        return ParseFailure(reason, excerpt(text, at), "truncated" if cut else "format"), len(text)
    position = resync.end() if resync[0] == "</tool_call>" else resync.start()
    return ParseFailure(reason, excerpt(text, at, resync.start())), position


def _read(data: Any, tools: _schema.Tools | None) -> ToolCall | ParseFailure:
    nested = data.get("function")
    if "name" not in data and isinstance(nested, dict):
        data = nested
    name = data.get("name")
    if not isinstance(name, str):
        problem = "no name" if name is None else f"the name is {_schema.type_name(name)}, not a string"
        return ParseFailure(f'{problem}: write {{"name": …, "arguments": {{…}}}}', excerpt(repr(data)))
    if "arguments" not in data:
        hint = ', not "parameters"' if "parameters" in data else ""
        return ParseFailure(f'missing arguments: give "arguments"{hint}, an object', excerpt(name))
    arguments = data["arguments"]
    if isinstance(arguments, str) and arguments.lstrip().startswith("{"):
        try:
            arguments = read_json(arguments, lenient=True)
        except ValueError as error:
            return ParseFailure(f"arguments are a string that is not JSON: {error}", excerpt(arguments))
    if not isinstance(arguments, dict):
        return ParseFailure(f"arguments are not an object but {_schema.type_name(arguments)}", excerpt(repr(arguments)))
    return _schema.checked(name, arguments, tools)


def render(calls: Sequence[ToolCall]) -> str:
    """Returns the text of calls."""
    bodies = (json.dumps({"name": c.name, "arguments": dict(c.arguments)}, ensure_ascii=False) for c in calls)
    return "\n".join(f"<tool_call>\n{body}\n</tool_call>" for body in bodies)
