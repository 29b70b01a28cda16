"""One tag, one action: ``<search>…</search>``, ``<python>…</python>``, ``<answer>…</answer>``. One string argument.

A tool that needs several arguments takes them as a JSON object. A turn takes one action: the first one that can be
read. What a model writes after it was written without seeing its result. An answer is the exception: a turn that
answers means its last answer, as the verifier reads it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from harness_sdk.toolcalls import _schema
from harness_sdk.toolcalls._scan import excerpt, find, quoted
from harness_sdk.toolcalls._thinking import Thinking
from harness_sdk.types import ParseFailure
from whale_env.types import ToolCall, ToolSpec

ANSWER = "answer"
ARGUMENTS = {"search": "query", "python": "code", "move": "move", ANSWER: "answer"}
"""The tags read when no tools are given, and the argument that each one's content becomes."""

_CODE = "code"
"""An argument of this name is Python: its indentation counts and its strings may hold tags."""


@dataclass(frozen=True, slots=True)
class _Tag:
    name: str
    closing: bool
    start: int
    end: int


@functools.lru_cache(maxsize=64)
def _pattern(names: frozenset[str]) -> re.Pattern[str]:
    longest_first = sorted(names | {"think", "information"}, key=lambda name: (-len(name), name))
    return re.compile(f"<(/?)({'|'.join(map(re.escape, longest_first))})>")


@functools.lru_cache(maxsize=64)
def _python(name: str) -> re.Pattern[str]:
    """Matches the next string, comment or tag in Python code. A comment ends before a closing tag."""
    tag = re.escape(name)
    return re.compile(
        r"'''(?:[^'\\]++|\\.|'(?!''))*+(?:'''|\Z)"
        r'|"""(?:[^"\\]++|\\.|"(?!""))*+(?:"""|\Z)'
        r"|'(?:[^'\\\n]++|\\.)*+'?|"
        r'"(?:[^"\\\n]++|\\.)*+"?'
        rf"|\#(?:[^\n<]++|<(?!/{tag}>))*+|(?P<close></{tag}>)|(?P<open><{tag}>)",
        re.DOTALL,
    )


def parse(text: str, tools: _schema.Tools | None) -> list[ToolCall | ParseFailure]:
    """Returns the turn's action after the failures that precede it, or one failure when there is no action."""
    results = _Reader(text, tools).read()
    for index, result in enumerate(results):
        if isinstance(result, ToolCall):
            last = result
            if result.name == ANSWER:
                answers = [r for r in results[index:] if isinstance(r, ToolCall) and r.name == ANSWER]
                last = answers[-1]
            return [*results[:index], last]
    if results:
        return results
    names = sorted(tools if tools is not None else ARGUMENTS)
    options = ", ".join(f"<{name}>…</{name}>" for name in names)
    return [ParseFailure(f"no action: write one of {options}", excerpt(text))]


class _Reader:
    """All actions of one text, in order."""

    def __init__(self, text: str, tools: _schema.Tools | None) -> None:
        self.text, self.tools = text, tools
        self.names = frozenset(ARGUMENTS) | frozenset(tools or ())
        self.tags: list[_Tag] = []
        position = 0
        pattern = _pattern(self.names)
        while match := find(pattern, text, position):
            position = match.end()
            self.tags.append(_Tag(match[2], bool(match[1]), match.start(), position))
        self.next_open, self.next_close = self._next(closing=False), self._next(closing=True)
        self.code_ends = True  # whether the end of code can still be found by reading it as Python

    def _next(self, closing: bool) -> list[int | None]:
        """For each tag, the index of the next one of its name that opens or closes."""
        seen: dict[str, int] = {}
        found: list[int | None] = [None] * len(self.tags)
        for index in range(len(self.tags) - 1, -1, -1):
            tag = self.tags[index]
            found[index] = seen.get(tag.name)
            if tag.closing == closing:
                seen[tag.name] = index
        return found

    def read(self) -> list[ToolCall | ParseFailure]:
        results: list[ToolCall | ParseFailure] = []
        thinking, index = Thinking(), 0
        while index < len(self.tags):
            tag, close = self.tags[index], self.next_close[index]
            index += 1
            if tag.name == "think":
                if not tag.closing:
                    thinking.open(len(results))
                elif (kept := thinking.close()) is not None:
                    del results[kept:]
            elif thinking.inside or tag.closing:
                continue
            elif tag.name == "information":
                # What stands in a result, real or forged, is not said by the model.
                index = index if close is None else close + 1
            elif not quoted(self.text, tag.start, tag.end):
                result, index = self._action(index - 1)
                if result is not None:
                    results.append(result)
        return results

    def _action(self, index: int) -> tuple[ToolCall | ParseFailure | None, int]:
        """Returns what the tag at an index says, or None for a mention of it, and the index to read on from."""
        tag, close, again = self.tags[index], self.next_close[index], self.next_open[index]
        argument = self._argument(tag.name)
        if argument == _CODE and close is not None and self.code_ends:
            end = self._code_end(tag)
            if end is None:
                self.code_ends = False
            elif end["open"]:
                return None, index + 1
            else:
                while self.tags[index].start < end.start():
                    index += 1
                return self._call(tag.name, self.text[tag.end : end.start()]), index + 1
        if again is not None and (argument != _CODE or close is None) and (close is None or again < close):
            return None, index + 1
        if close is None:
            reason = f"<{tag.name}> is not closed: end it with </{tag.name}>"
            return ParseFailure(reason, excerpt(self.text, tag.start), "truncated"), index + 1
        return self._call(tag.name, self.text[tag.end : self.tags[close].start]), close + 1

    def _code_end(self, tag: _Tag) -> re.Match[str] | None:
        """Returns the first tag of this name after Python code, be it closing or opening again, outside its strings."""
        position = tag.end
        while token := find(_python(tag.name), self.text, position):
            if token["close"] or token["open"]:
                return token
            position = token.end()
        return None

    def _argument(self, name: str) -> str | None:
        tool = self.tools.get(name) if self.tools is not None else None
        return ARGUMENTS.get(name) if tool is None else _only_argument(tool)

    def _call(self, name: str, content: str) -> ToolCall | ParseFailure:
        if self.tools is not None and name not in self.tools and name != ANSWER:
            return _schema.unknown_tool(name, self.tools)
        argument = self._argument(name)
        if not content.strip():
            if argument is not None:
                return ParseFailure(f"empty <{name}>: put the {argument} between the tags")
            return _schema.checked(name, {}, self.tools)
        if argument is None:
            return ParseFailure(f"<{name}> takes nothing between its tags", excerpt(content))
        raw = content.removeprefix("\n").removesuffix("\n") if argument == _CODE else content.strip()
        tool = self.tools.get(name) if self.tools is not None else None
        if tool is not None and len(_schema.required(tool)) > 1:
            return self._several(tool, raw)
        types = _schema.types_of(tool, argument)
        try:
            value = _schema.from_text(raw, types)
        except ValueError as error:
            return _schema.wrong_type(name, argument, types, f"{excerpt(raw)!r} {error}")
        return _schema.checked(name, {argument: value}, None if tool is None else self.tools)

    def _several(self, tool: ToolSpec, content: str) -> ToolCall | ParseFailure:
        """Returns the call of a tool that needs several arguments, which stand between the tags as a JSON object."""
        try:
            arguments = _schema.from_text(content, frozenset(["object"]))
        except ValueError as error:
            members = ", ".join(f'"{name}": …' for name in _schema.required(tool))
            reason = f"<{tool.name}> takes a JSON object, <{tool.name}>{{{members}}}</{tool.name}>"
            return ParseFailure(f"{reason}: {excerpt(content)!r} {error}", excerpt(content))
        return _schema.checked(tool.name, arguments, self.tools)


def _only_argument(tool: ToolSpec) -> str | None:
    """Returns the argument that a tag's content becomes: the first required one, else the first one."""
    return next(iter([*_schema.required(tool), *_schema.properties(tool)]), None)


def render(calls: Sequence[ToolCall]) -> str:
    """Returns the text of at most one call with at most one string argument.

    Raises:
        ValueError: More calls or arguments than the dialect has room for.
    """
    if len(calls) > 1 or any(len(call.arguments) > 1 for call in calls):
        raise ValueError("the tags dialect holds one call with one argument a turn")
    for call in calls:
        value = next(iter(call.arguments.values()), "")
        if not isinstance(value, str):
            raise ValueError(f"the tags dialect holds text, not {_schema.type_name(value)}")
        content = f"\n{value}\n" if _CODE in call.arguments else value
        return f"<{call.name}>{content}</{call.name}>"
    return ""
