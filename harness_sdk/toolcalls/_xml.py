"""Qwen's XML: ``<function=…><parameter=…>value</parameter></function>`` in ``<tool_call>``. Values are raw text.

Nothing is escaped in this dialect, so a value may hold the very tags that end it. Tags are therefore read as a tree: a
complete call quoted inside a value nests there and stays text, a tag counts inside a value only where it stands as a
model writes it (at the start of a line, or next to its neighbours) and closes one only where none that is properly
closed follows before the next call, and a value that never ends is repaired or reported from what nests in it. A few
passes over the tags, no recursion. Does not convert values: the schema module does.
"""

from __future__ import annotations

import bisect
import json
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from harness_sdk.toolcalls import _schema
from harness_sdk.toolcalls._scan import excerpt, find, quoted
from harness_sdk.toolcalls._thinking import Thinking
from harness_sdk.types import ParseFailure
from whale_env.types import Json, ToolCall

Kind = Literal["think", "/think", "call", "/call", "function", "/function", "parameter", "/parameter"]

_TAG = re.compile(
    r"<(?:(?P<think>/?think)>|(?P<call>/?tool_call)>|(?P<open>function|parameter)=(?P<name>[^<>\n]*+)(?P<end>>?)"
    r"|(?P<function>/function)>|(?P<parameter>/parameter[\w/]*+>?))"
)

_STRING_ENDS = frozenset("\"'`\\")
_OPENERS = frozenset(["call", "function", "parameter"])
_CLOSERS = frozenset(["/call", "/function", "/parameter"])


@dataclass(frozen=True, slots=True)
class _Tag:
    kind: Kind
    start: int
    end: int
    name: str | None
    follows: bool  # nothing but blanks since the tag before it
    fresh: bool  # nothing but blanks since its line began
    line: int


@dataclass(slots=True)
class _Node:
    tag: _Tag
    children: list[_Node] = field(default_factory=list)
    closed: bool = False
    inline: bool = False  # part of a call that begins inside a line of a value
    thoughts: int = 0  # think tags opened in its value
    mentioned: int = 0  # parameters quoted in its value, each with a closing tag to come
    until: _Tag | None = None  # the tag that ended it, or None at the end of the text


def _tags(text: str) -> list[_Tag]:
    tags: list[_Tag] = []
    position = number = 0
    while match := find(_TAG, text, position):
        gap = text[position : match.start()]
        blank = not gap or gap.isspace()
        line = gap.rpartition("\n")
        fresh = (not line[2] or line[2].isspace()) and bool(line[1] or not tags)
        number += gap.count("\n")
        kind, name = _kind(match)
        tags.append(_Tag(kind, match.start(), match.end(), name, blank and bool(tags), fresh, number))
        position = match.end()
    return tags


def _kind(match: re.Match[str]) -> tuple[Kind, str | None]:
    if match["open"]:
        name = match["name"].strip()
        if len(name) > 1 and name[0] == name[-1] and name[0] in "\"'":
            name = name[1:-1]
        return ("function" if match["open"] == "function" else "parameter"), name if match["end"] else None
    if match["think"]:
        return ("/think" if match["think"][0] == "/" else "think"), None
    if match["call"]:
        return ("/call" if match["call"][0] == "/" else "call"), None
    return ("/function" if match["function"] else "/parameter"), None


class _Tree:
    """The forest of calls in a text, built from its tags, left to right."""

    def __init__(self, text: str, tools: _schema.Tools | None) -> None:
        self.text, self.tools, self.tags = text, tools, _tags(text)
        self.roots: list[_Node] = []
        self.stack: list[_Node] = []
        self.functions: list[_Node] = []  # those on the stack
        self.depth = {"call": 0, "function": 0, "parameter": 0}
        last = self.tags[-1].end if self.tags else 0
        self.ends_blank = not text[last:].strip()
        self.markup = self._markup()
        self.closing = self._closing()
        self.partners = self._partners()
        self.run_ends = self._run_ends()
        self.ends_ahead = self._ends_ahead()
        self.literal: set[int] = set()  # closing tags that belong to an opening tag quoted in a value

    def _next(self, index: int) -> Kind | Literal["end", "text"]:
        """What follows a tag: the next tag if only blanks lie between, the end of the text, or text."""
        if index + 1 < len(self.tags):
            return self.tags[index + 1].kind if self.tags[index + 1].follows else "text"
        return "end" if self.ends_blank else "text"

    def _markup(self) -> list[bool]:
        """For each tag, whether the closing tags that begin there end as markup, not before the end of a string."""
        found = [False] * len(self.tags)
        for index in range(len(self.tags) - 1, -1, -1):
            follower = self._next(index)
            if follower in ("/parameter", "/function", "/call"):
                found[index] = found[index + 1]
            else:
                found[index] = follower != "text" or self.text[self.tags[index].end] not in _STRING_ENDS
        return found

    def _closing(self) -> list[bool]:
        """For each tag, whether it closes a parameter where a parameter can end. Elsewhere the tag is text."""
        found = [False] * len(self.tags)
        for index in range(len(self.tags) - 1, -1, -1):
            if self.tags[index].kind == "/parameter":
                follower = self._next(index)
                doubled = follower == "/parameter" and found[index + 1]
                ends = doubled or follower in ("parameter", "/function", "/call", "end")
                found[index] = ends and self.markup[index]
        return found

    def _partners(self) -> list[int | None]:
        """For each opening tag, the tag on its line that closes it, if any."""
        found: list[int | None] = [None] * len(self.tags)
        stack: list[int] = []
        depth = dict.fromkeys(_OPENERS, 0)
        line = 0
        for index, tag in enumerate(self.tags):
            if tag.line != line:
                line, stack, depth = tag.line, [], dict.fromkeys(_OPENERS, 0)
            if tag.kind in _OPENERS:
                stack.append(index)
                depth[tag.kind] += 1
            elif tag.kind in _CLOSERS and depth[tag.kind[1:]]:
                opener = stack.pop()
                depth[self.tags[opener].kind] -= 1
                while self.tags[opener].kind != tag.kind[1:]:
                    opener = stack.pop()
                    depth[self.tags[opener].kind] -= 1
                found[opener] = index
        return found

    def _run_ends(self) -> list[int]:
        """For each tag, the last of the opening tags, or of the closing tags, that it begins with blanks between."""
        found = list(range(len(self.tags)))
        for index in range(len(self.tags) - 2, -1, -1):
            tag, after = self.tags[index], self.tags[index + 1]
            opening = tag.kind in _OPENERS and after.kind in _OPENERS and after.line == tag.line
            if after.follows and (opening or (tag.kind in _CLOSERS and after.kind in _CLOSERS)):
                found[index] = found[index + 1]
        return found

    def _ends_ahead(self) -> list[bool]:
        """For each tag, whether a value that is open after it is closed further on, before the next element begins."""
        found = [False] * len(self.tags)
        for index in range(len(self.tags) - 2, -1, -1):
            after, follower = self.tags[index + 1], self._next(index + 1)
            begins = after.fresh or follower in ("function", "parameter")
            if self.closing[index + 1] and follower in ("parameter", "/function"):
                found[index] = True
            elif after.kind not in _CLOSERS and begins:
                found[index] = False
            else:
                found[index] = found[index + 1]
        return found

    def build(self) -> list[_Node]:
        thinking = Thinking()
        for index, tag in enumerate(self.tags):
            if tag.kind == "think":
                if self._in_value():
                    self.stack[-1].thoughts += 1
                else:
                    thinking.open(len(self.roots))
                    self._pop_all(tag)
            elif tag.kind == "/think":
                if self._in_value() and self.stack[-1].thoughts:
                    self.stack[-1].thoughts -= 1
                elif not self._in_value() or tag.fresh or self._next(index) in ("call", "function", "end"):
                    kept = thinking.close()
                    if kept is not None:
                        del self.roots[kept:]
                        self._pop_all(tag)
            elif not thinking.inside and not (tag.kind == "call" and quoted(self.text, tag.start, tag.end)):
                self._take(index, tag)
        return self.roots

    def _in_value(self) -> bool:
        return bool(self.stack) and self.stack[-1].tag.kind == "parameter"

    def _quoted(self, index: int) -> bool:
        """Whether an opening tag is a lone one quoted in a value: not at the start of a line, and the value ends later.

        A parameter may have its own closing tag on the line, which is then text, too.
        """
        tag, partner = self.tags[index], self.partners[index]
        if not self._in_value() or tag.fresh:
            return False
        if partner is None:
            return self.ends_ahead[self.run_ends[index]]
        if tag.kind != "parameter" or not self._in_block() or not self.ends_ahead[partner]:
            return False
        self.literal.add(partner)
        return True

    def _goes_on(self, index: int) -> bool:
        """Whether the value goes on after the closing tags that begin here: text follows them, then the value's end."""
        last = self.run_ends[index]
        return self.depth["parameter"] == 1 and self._next(last) == "text" and self.ends_ahead[last]

    def _ends_inline(self, index: int) -> bool:
        """Whether a tag closes a parameter of a call inside a line of a value, where a string may end after it."""
        return self.stack[-1].inline and self._next(index) in ("parameter", "/function", "/call")

    def _in_block(self) -> bool:
        """Whether the position is in a value on its own lines. Elsewhere a closing tag is more likely the value's."""
        return self._in_value() and self.text.startswith(("\n", "\r\n"), self.stack[-1].tag.end)

    def _take(self, index: int, tag: _Tag) -> None:
        follower, value = self._next(index), self._in_value()
        if index in self.literal or (tag.kind in _OPENERS and self._quoted(index)):
            return
        match tag.kind:
            case "call":
                if self._top() == "call" and tag.follows and not self.stack[-1].children:
                    return  # models stutter the opening tag; a run of openings is one opening
                if not value or tag.fresh or follower == "function":
                    self._pop_to("parameter", tag)
                    self._push(tag)
            case "function":
                if tag.fresh or follower in ("parameter", "/function", "end") or self._top() == "call":
                    if self._top() == "function":
                        self._pop(tag, closed=False)
                    self._push(tag)
            case "parameter":
                if self._top() == "function" or (value and tag.fresh and self._declared(tag)):
                    self._push(tag)
                elif tag.fresh and self._in_block():
                    self.stack[-1].mentioned += 1
            case "/parameter":
                if value and self.stack[-1].mentioned and self.ends_ahead[index]:
                    self.stack[-1].mentioned -= 1
                elif (value and self._ends_inline(index)) or (
                    self.closing[index] and self.depth["parameter"] and not self._goes_on(index)
                ):
                    self._pop_to("parameter", tag)
                    self._pop(tag, closed=True)
            case "/function":
                ends = follower in ("/call", "call", "function", "end") and self.markup[index]
                open_value = value and self.depth["parameter"] == 1 and self.ends_ahead[index]
                if self.depth["function"] and (not value or (ends and not open_value)):
                    self._pop_to("function", tag)
                    self._pop(tag, closed=True)
            case "/call":
                if self.depth["call"] and (not value or follower in ("call", "function", "end")):
                    self._pop_to("call", tag)
                    self._pop(tag, closed=True)

    def _top(self) -> str | None:
        return self.stack[-1].tag.kind if self.stack else None

    def _declared(self, tag: _Tag) -> bool:
        """Whether a parameter of that name could follow here, were the value before it left open."""
        function = self.functions[-1].tag.name
        tool = self.tools.get(function) if self.tools and function else None
        known = _schema.properties(tool)
        return not known or tag.name in known

    def _push(self, tag: _Tag) -> None:
        inline = bool(self.stack) and (self.stack[-1].inline or (self._in_value() and not tag.fresh))
        node = _Node(tag, inline=inline)
        (self.stack[-1].children if self.stack else self.roots).append(node)
        self.stack.append(node)
        self.depth[tag.kind] += 1
        if tag.kind == "function":
            self.functions.append(node)

    def _pop(self, tag: _Tag, closed: bool) -> None:
        node = self.stack.pop()
        node.closed, node.until = closed, tag
        self.depth[node.tag.kind] -= 1
        if node.tag.kind == "function":
            self.functions.pop()

    def _pop_to(self, kind: str, tag: _Tag) -> None:
        while self.stack and self.stack[-1].tag.kind != kind:
            self._pop(tag, closed=False)

    def _pop_all(self, tag: _Tag) -> None:
        while self.stack:
            self._pop(tag, closed=False)


@dataclass(slots=True)
class _Parts:
    """What one function element says: raw arguments, what is wrong, and the calls found in a value left open."""

    arguments: dict[str, str] = field(default_factory=dict)
    problem: ParseFailure | None = None
    rescued: list[_Node] = field(default_factory=list)
    repaired: bool = False

    def fail(self, reason: str, detail: str, cut: bool = False) -> None:
        """Notes what is wrong; the first problem counts."""
        self.problem = self.problem or ParseFailure(reason, detail, "truncated" if cut else "format")


def parse(text: str, tools: _schema.Tools | None) -> list[ToolCall | ParseFailure]:
    """Returns the calls and failures of a text, in order."""
    tree = _Tree(text, tools)
    queue = deque(tree.build())
    closes = [tag for index, tag in enumerate(tree.tags) if tree.closing[index] and index not in tree.literal]
    results: list[ToolCall | ParseFailure] = []
    while queue:
        node = queue.popleft()
        if node.tag.kind == "function":
            parts = _parts(text, node, closes)
            results.append(_call(text, node, parts, tools))
            queue.extendleft(reversed(parts.rescued))
        elif node.children:
            queue.extendleft(reversed(node.children))
        else:
            results.append(_no_function(text, node))
    return results


def _no_function(text: str, node: _Node) -> ParseFailure:
    end = node.until.start if node.until else len(text)
    body = excerpt(text, node.tag.end, end)
    if node.closed and not body.strip():
        return ParseFailure("empty <tool_call>")
    if body.lstrip().startswith("{"):
        return ParseFailure("a JSON body where XML is expected: write <function=…><parameter=…>", body)
    cut = not node.until and "<function=".startswith(body.strip())
    return ParseFailure("no <function=name> in <tool_call>", body, "truncated" if cut else "format")


def _parts(text: str, function: _Node, closes: Sequence[_Tag]) -> _Parts:
    parts, todo = _Parts(), deque(function.children)
    while todo:
        node = todo.popleft()
        tag, name = node.tag, node.tag.name
        if tag.kind != "parameter":
            parts.fail("a call begins before the one before it is closed", excerpt(text, tag.start))
            parts.rescued.append(node)
            continue
        end = _value_end(text, node, closes)
        if not node.closed:
            parts.repaired = parts.repaired or bool(node.children)
            if end is not None and node.children and node.children[0].tag.start == end:
                todo.extendleft(reversed(node.children))
            else:
                parts.rescued.extend(c for c in node.children if c.tag.fresh and c.tag.start >= (end or 0))
        if name is None:
            parts.fail("a parameter's tag has no >", excerpt(text, tag.start, tag.end), tag.end == len(text))
        elif not name:
            parts.fail("a parameter's name is empty", excerpt(text, tag.start, tag.end))
        elif end is None:
            parts.fail(f"parameter {excerpt(name)!r} is not closed", excerpt(text, tag.start), not parts.rescued)
        else:
            parts.arguments[name] = _value(text[tag.end : end])
    return parts


def _value(raw: str) -> str:
    """Returns the value without the line break of its opening and the one of its closing tag."""
    if raw.startswith("\r\n"):
        return raw[2:].removesuffix("\r\n")
    return raw.removeprefix("\n").removesuffix("\n")


def _value_end(text: str, node: _Node, closes: Sequence[_Tag]) -> int | None:
    """Returns where a parameter's value ends, or None where it cannot be told."""
    limit = node.until.start if node.until else None
    if node.closed or not node.children or (node.children[0].closed and not node.children[0].tag.fresh):
        return limit
    first = node.children[0].tag
    if first.fresh:
        return first.start if first.kind == "parameter" else None
    # An opening tag quoted in the value took the closing tag that was meant for the value.
    found = bisect.bisect_left(closes, node.tag.end, key=lambda tag: tag.start)
    if found == len(closes):
        return limit
    return closes[found].start if limit is None else min(closes[found].start, limit)


def _call(text: str, node: _Node, parts: _Parts, tools: _schema.Tools | None) -> ToolCall | ParseFailure:
    name = node.tag.name
    if name is None:
        cut = node.tag.end == len(text)
        detail = excerpt(text, node.tag.start, node.tag.end)
        return ParseFailure("a function's tag has no >", detail, "truncated" if cut else "format")
    if not name:
        return ParseFailure("the tool name is empty: give the name of a tool")
    if parts.problem:
        return parts.problem
    if not node.closed and not parts.repaired and (node.until is None or node.until.kind != "/call"):
        problem = f"the call of {excerpt(name)} is not closed"
        return ParseFailure(problem, excerpt(text, node.tag.start), "format" if node.until else "truncated")
    if tools is not None and name not in tools:
        return _schema.unknown_tool(name, tools)
    values = {}
    for key, raw in parts.arguments.items():
        types = _schema.types_of(tools[name] if tools is not None else None, key)
        try:
            values[key] = _schema.from_text(raw, types)
        except ValueError as error:
            return _schema.wrong_type(name, key, types, f"{excerpt(raw)!r} {error}")
    return _schema.checked(name, values, tools)


def render(calls: Sequence[ToolCall]) -> str:
    """Returns the text of calls. Strings are written as they are, other values as JSON."""
    return "\n".join(_render(call) for call in calls)


def as_text(value: Json) -> str:
    """Returns the text that stands for a value."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _render(call: ToolCall) -> str:
    lines = []
    for name, value in call.arguments.items():
        lines.append(f"<parameter={name}>\n{as_text(value)}\n</parameter>\n")
    return f"<tool_call>\n<function={call.name}>\n{''.join(lines)}</function>\n</tool_call>"
