"""Tool-call dialects: tables by kind of fault, totality, linear work, and `parse(render(calls)) == calls`.

``WHALE_TOOLCALL_EXAMPLES=100000 pytest tests/test_toolcalls.py -k any_text --timeout 0`` looks longer (five minutes).
"""

# ruff: noqa: E501 - one case a line keeps the tables readable
from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from harness_sdk.toolcalls import Protocol, _hermes, _json, _tags, _thinking, _xml, parse, render
from harness_sdk.types import ParseFailure
from whale_env.types import ToolCall, ToolSpec

EXAMPLES = int(os.environ.get("WHALE_TOOLCALL_EXAMPLES", "1500"))
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)


def tool(name: str, required: list[str], **types: Any) -> ToolSpec:
    properties = {key: {"type": kind} if isinstance(kind, str) else kind for key, kind in types.items()}
    return ToolSpec(name, "", {"type": "object", "properties": properties, "required": required})


TOOLS = [
    tool("python", ["code"], code="string"),
    tool("search", ["query"], query="string", k="integer"),
    tool("move", ["move"], move="string"),
    tool("answer", ["answer"], answer="string"),
    tool("zip", [], code="string", place="string"),
    tool(
        "finish",
        [],
        answer="string",
        confidence="number",
        final="boolean",
        extra="object",
        tags="array",
        limit={"anyOf": [{"type": "integer"}, {"type": "null"}]},
        note={"type": ["string", "null"]},
        free={},
    ),
]

Outcome = tuple[str, dict[str, Any]] | str
"""An expected call as (name, arguments), or a word of the expected failure's reason ("!word" if truncated)."""


def call(name: str = "search", **arguments: Any) -> Outcome:
    return name, arguments


def hermes(name: str = "search", **arguments: Any) -> str:
    return "<tool_call>\n" + json.dumps({"name": name, "arguments": arguments}) + "\n</tool_call>"


def xml(name: str = "search", **arguments: str) -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


def check(text: str, protocol: Protocol, expected: list[Outcome], tools: list[ToolSpec] | None = None) -> None:
    results = parse(text, protocol, tools)
    assert len(results) == len(expected), results
    for result, outcome in zip(results, expected, strict=True):
        if isinstance(outcome, tuple):
            assert isinstance(result, ToolCall), result
            assert (result.name, dict(result.arguments)) == outcome
            assert [type(v) for v in result.arguments.values()] == [type(v) for v in outcome[1].values()]
        else:
            assert isinstance(result, ParseFailure), result
            assert outcome.lstrip("!") in result.reason
            assert result.kind == ("truncated" if outcome.startswith("!") else "format")
    ids = [result.id for result in results if isinstance(result, ToolCall)]
    assert ids == [f"call_{number}" for number in range(len(ids))]


HERMES: dict[str, tuple[str, list[Outcome]]] = {
    "prose round a call": (f"Sure.\n{hermes(query='x')}\nDone.", [call(query="x")]),
    "parallel": (hermes(query="a") + "\n" + hermes(query="b") + hermes("x"), [call(query="a"), call(query="b"), call("x")]),
    "opening tag in a string": (hermes("python", code="s = '<tool_call>'"), [call("python", code="s = '<tool_call>'")]),
    "closing tag in a string": (hermes(query="a</tool_call>b"), [call(query="a</tool_call>b")]),
    "whole call in a string": (hermes(query=hermes(query="x")) + hermes(query="y"), [call(query=hermes(query="x")), call(query="y")]),
    "think tags in a string": (hermes(query="</think><think>") + hermes(query="y"), [call(query="</think><think>"), call(query="y")]),
    "braces in a string": (hermes(query='}}{"'), [call(query='}}{"')]),
    "broken call keeps its neighbours": (
        hermes(query="a") + '<tool_call>{"name": "search", "arguments": {"query": }}</tool_call>' + hermes(query="b"),
        [call(query="a"), "invalid JSON", call(query="b")],
    ),
    "missing quote": ('<tool_call>{"name": "search", "arguments": {"query": "x}}</tool_call>' + hermes(query="b"), ["not closed", call(query="b")]),
    "missing brace": ('<tool_call>{"name": "search", "arguments": {"query": "x"}</tool_call>' + hermes(query="b"), ["not closed", call(query="b")]),
    "broken call quoting a call": ('<tool_call>{"name": "python", "arguments": {"code": "<tool_call>{}</tool_call>",}}</tool_call>', ["invalid JSON"]),
    "cut in a string": ('<tool_call>\n{"name": "search", "arguments": {"query": "ca', ["!not closed"]),
    "cut after a call": (hermes(query="a") + '<tool_call>{"name": "sea', [call(query="a"), "!not closed"]),
    "cut before the braces": ('<tool_call>\n{"name": "search", "arguments": {"query": "x"}', ["!not closed"]),
    "only the tag": ("<tool_call>", ["!ends after"]),
    "no closing tag at the end": ('<tool_call>\n{"name": "search", "arguments": {"query": "x"}}\n', [call(query="x")]),
    "cut in the closing tag": (hermes(query="a") + hermes(query="x").removesuffix("ool_call>"), [call(query="a"), call(query="x")]),
    "no closing tag, next call": ('<tool_call>{"name": "x", "arguments": {}}\n' + hermes(query="b"), [call("x"), call(query="b")]),
    "repeated opening tag": ("<tool_call>\n" + hermes(query="x"), [call(query="x")]),
    "stray closing tag": ("</tool_call>" + hermes(query="x") + "</tool_call>", [call(query="x")]),
    "tag in prose": ("I use <tool_call> tags.", ["not a JSON object"]),
    "tag in backticks": ("I use `<tool_call>` tags, '<tool_call>' too." + hermes(query="x"), [call(query="x")]),
    "bare JSON": ('{"name": "search", "arguments": {"query": "x"}}', []),
    "no call": ("Hello.", []),
    "empty text": ("", []),
    "empty tag": ("<tool_call> \n</tool_call>", ["empty"]),
    "fence": ('<tool_call>\n```json\n{"name": "x", "arguments": {}}\n```\n</tool_call>', [call("x")]),
    "two objects": ('<tool_call>{"name": "x", "arguments": {}}{"name": "y", "arguments": {}}</tool_call>', ["extra text"]),
    "extra brace": ('<tool_call>{"name": "x", "arguments": {}}}</tool_call>' + hermes("y"), ["extra text", call("y")]),
    "list": ('<tool_call>[{"name": "x", "arguments": {}}]</tool_call>' + hermes("y"), ["list", call("y")]),
    "XML body": (xml(query="x"), ["XML"]),
    "single quotes": ("<tool_call>{'name': 'x', 'arguments': {}}</tool_call>", ["invalid JSON"]),
    "comment": ('<tool_call>{"name": "x", "arguments": {} /* c */}</tool_call>', ["invalid JSON"]),
    "NaN": ('<tool_call>{"name": "x", "arguments": {"a": NaN}}</tool_call>', ["NaN"]),
    "infinity": ('<tool_call>{"name": "x", "arguments": {"a": -Infinity}}</tool_call>', ["Infinity"]),
    "overflow": ('<tool_call>{"name": "x", "arguments": {"a": 1e999}}</tool_call>', ["too large"]),
    "5000 digits": ('<tool_call>{"name": "x", "arguments": {"a": ' + "9" * 5000 + "}}</tool_call>", ["invalid JSON"]),
    "deep": (f'<tool_call>{{"name": "x", "arguments": {{"a": {"[" * 5000}{"]" * 5000}}}}}</tool_call>' + hermes("y"), ["deeper", call("y")]),
    "as deep as allowed": (hermes("x", a=json.loads("[" * 98 + "]" * 98)), [call("x", a=json.loads("[" * 98 + "]" * 98))]),
    "lone surrogate": ('<tool_call>{"name": "x", "arguments": {"a": "\\ud83d"}}</tool_call>', ["surrogate"]),
    "emoji by escapes": ('<tool_call>{"name": "x", "arguments": {"a": "\\ud83d\\ude00"}}</tool_call>', [call("x", a="😀")]),
    "NUL": ('<tool_call>{"name": "x", "arguments": {"a": "b\\u0000"}}</tool_call>', [call("x", a="b\0")]),
    "raw newline and tab": ('<tool_call>{"name": "x", "arguments": {"a": "b\n\tc"}}</tool_call>', [call("x", a="b\n\tc")]),
    "code keeps its shape": (hermes("python", code="if x:\n    print('\\n')\n\n"), [call("python", code="if x:\n    print('\\n')\n\n")]),
    "no name": ('<tool_call>{"arguments": {}}</tool_call>', ["no name"]),
    "null name": ('<tool_call>{"name": null, "arguments": {}}</tool_call>', ["no name"]),
    "name is a number": ('<tool_call>{"name": 1, "arguments": {}}</tool_call>', ["integer"]),
    "empty name": ('<tool_call>{"name": " ", "arguments": {}}</tool_call>', ["empty"]),
    "no arguments": ('<tool_call>{"name": "x"}</tool_call>', ["missing arguments"]),
    "parameters": ('<tool_call>{"name": "x", "parameters": {}}</tool_call>', ["missing arguments"]),
    "string arguments": ('<tool_call>{"name": "x", "arguments": "hello"}</tool_call>', ["not an object but string"]),
    "list arguments": ('<tool_call>{"name": "x", "arguments": [1]}</tool_call>', ["not an object but array"]),
    "null arguments": ('<tool_call>{"name": "x", "arguments": null}</tool_call>', ["not an object but null"]),
    "JSON string arguments": ('<tool_call>{"name": "x", "arguments": "{\\"a\\": 1}"}</tool_call>', [call("x", a=1)]),
    "broken JSON string": ('<tool_call>{"name": "x", "arguments": "{\\"a\\": "}</tool_call>', ["not JSON"]),
    "nested function": ('<tool_call>{"type": "function", "function": {"name": "x", "arguments": {"a": 1}}}</tool_call>', [call("x", a=1)]),
    "extra keys": ('<tool_call>{"id": 7, "name": "x", "arguments": {}, "why": "y"}</tool_call>', [call("x")]),
    "call in think": (f"<think>{hermes(query='a')}</think>{hermes(query='b')}", [call(query="b")]),
    "broken call in think": (f'<think><tool_call>{{"a</think>{hermes(query="b")}', [call(query="b")]),
    "two thinks": (f"<think>x</think>{hermes('a')}<think>{hermes('b')}</think>{hermes('c')}", [call("a"), call("c")]),
    "unclosed think": (f"{hermes('a')}<think>{hermes('b')}", [call("a")]),
    "think opened by the template": (f"maybe {hermes('a')} or <tool_call> so\n</think>\n{hermes('b')}", [call("b")]),
    "think that quotes its tag": (f"<think>a <think> tag</think>{hermes('b')}", [call("b")]),
    "nested think": (f"<think>a<think>b</think>{hermes('a')}</think>{hermes('b')}", [call("b")]),
    "stray closing think": (f"<think>a</think>{hermes('a')}</think>", [call("a")]),
}  # fmt: skip


@pytest.mark.parametrize("kind", HERMES)
def test_hermes(kind: str) -> None:
    text, expected = HERMES[kind]
    check(text, "hermes", expected)


QUOTED = 'example = """\n' + xml(query="inner") + '\n"""\nprint(example)'
INLINE = "<tool_call><function=search><parameter=query>x</parameter></function></tool_call>"
CLOSERS = "</parameter>\n</function>\n</tool_call>"
XML: dict[str, tuple[str, list[Outcome]]] = {
    "parallel": (xml(query="a") + "\n" + xml(query="b"), [call(query="a"), call(query="b")]),
    "prose before": (f"Sure!{xml(query='a')}\nDone", [call(query="a")]),
    "two functions in one tag": ("<tool_call><function=search><parameter=query>a</parameter></function><function=search><parameter=query>b</parameter></function></tool_call>", [call(query="a"), call(query="b")]),
    "inline": ("<tool_call><function=search><parameter=query>a b</parameter></function></tool_call>", [call(query="a b")]),
    "code keeps its shape": (xml("python", code="\n  if x:\n\n    y\n"), [call("python", code="\n  if x:\n\n    y\n")]),
    "no unescaping": (xml("python", code="a &lt; b < c"), [call("python", code="a &lt; b < c")]),
    "leading zeros": (xml("zip", code="01234", place="5"), [call("zip", code="01234", place="5")]),
    "empty value": (xml(query=""), [call(query="")]),
    "no parameters": ("<tool_call>\n<function=finish>\n</function>\n</tool_call>", [call("finish")]),
    "literal closing parameter": (xml("python", code='print("</parameter>")\nx'), [call("python", code='print("</parameter>")\nx')]),
    "literal parameter pair": (xml("python", code="r'<parameter=a>(.*)</parameter>'\nx"), [call("python", code="r'<parameter=a>(.*)</parameter>'\nx")]),
    "literal opening parameter": (xml("python", code='print("<parameter=a>")'), [call("python", code='print("<parameter=a>")')]),
    "literal closers": (xml("python", code='print("</function></tool_call>", "</function>")'), [call("python", code='print("</function></tool_call>", "</function>")')]),
    "literal chain of closers": (xml("python", code='print("</parameter></function></tool_call>")\nx'), [call("python", code='print("</parameter></function></tool_call>")\nx')]),
    "open inline value keeps its neighbours": ("<tool_call><function=search><parameter=query>x</function></tool_call>" * 2, [call(query="x"), call(query="x")]),
    "prose right after": (xml(query="a") + "Now", [call(query="a")]),
    "literal openers": (xml("python", code='print("<function=x><parameter=y>")') + xml(query="b"), [call("python", code='print("<function=x><parameter=y>")'), call(query="b")]),
    "whole call in a value": (xml("python", code=QUOTED) + xml(query="b"), [call("python", code=QUOTED), call(query="b")]),
    "whole inline call in a value": (xml("python", code='s = "<tool_call><function=a><parameter=b>1</parameter></function></tool_call>"'), [call("python", code='s = "<tool_call><function=a><parameter=b>1</parameter></function></tool_call>"')]),
    "inline call in a value keeps its neighbours": (xml("zip", code=INLINE, place="5") + xml(query="b"), [call("zip", code=INLINE, place="5"), call(query="b")]),
    "inline calls in a value": (xml("zip", code=f"x = '{INLINE}', '{INLINE}'", place="5") + xml(query="b"), [call("zip", code=f"x = '{INLINE}', '{INLINE}'", place="5"), call(query="b")]),
    "long call in a string in a value": (xml("zip", code=f"x = '{xml(query='z')}'", place="5") + xml(query="b"), [call("zip", code=f"x = '{xml(query='z')}'", place="5"), call(query="b")]),
    "inline openers in a value": (xml("zip", code='f("<function=x><parameter=y>")', place="5"), [call("zip", code='f("<function=x><parameter=y>")', place="5")]),
    "parameter pairs in a value": (xml("zip", code='"<parameter=a>1</parameter><parameter=b>2</parameter>"', place="5"), [call("zip", code='"<parameter=a>1</parameter><parameter=b>2</parameter>"', place="5")]),
    "closers on lines of a value": (xml(query="a") + xml("python", code=f'x = """\n{CLOSERS}\n"""') + xml(query="b"), [call(query="a"), call("python", code=f'x = """\n{CLOSERS}\n"""'), call(query="b")]),
    "closers on lines, twice": (xml("zip", code=f"a\n{CLOSERS}\nb\n{CLOSERS}\nc", place="5"), [call("zip", code=f"a\n{CLOSERS}\nb\n{CLOSERS}\nc", place="5")]),
    "function and call closers on lines": (xml("zip", code="a\n</function>\n</tool_call>\nb", place="\n</function>\n</tool_call>"), [call("zip", code="a\n</function>\n</tool_call>\nb", place="\n</function>\n</tool_call>")]),
    "repeated closers": (f"{xml(query='a')}\n{CLOSERS}\nDone.\n</function>\n</tool_call>\n{xml(query='b')}", [call(query="a"), call(query="b")]),
    "cut after an inline call in a value": (f"<tool_call>\n<function=python>\n<parameter=code>\nExample: {INLINE}\nand", ["!not closed"]),
    "inline calls after prose": (f"{INLINE}Also:{INLINE} then {INLINE}", [call(query="x")] * 3),
    "CR LF": (xml("python", code="x\ny").replace("\n", "\r\n"), [call("python", code="x\r\ny")]),
    "repeated opening tag": ("<tool_call>\n" + xml(query="x"), [call(query="x")]),
    "think tags in a value": (xml("python", code='print("<think></think>")') + xml(query="b"), [call("python", code='print("<think></think>")'), call(query="b")]),
    "thought on lines of a value": (xml("python", code='x = "\n<think>\na\n</think>\n"') + xml(query="b"), [call("python", code='x = "\n<think>\na\n</think>\n"'), call(query="b")]),
    "less-than before an equals sign": (xml("python", code="IF C<function=1\nx"), [call("python", code="IF C<function=1\nx")]),
    "broken call keeps its neighbours": (xml(query="a") + "\n<tool_call>\n<function=bad\n</function>\n</tool_call>\n" + xml(query="b"), [call(query="a"), "no >", call(query="b")]),
    "open value keeps its neighbours": ("<tool_call>\n<function=search>\n<parameter=query>\nx\n" + xml(query="b") + "\n" + xml(query="c"), ["not closed", call(query="b"), call(query="c")]),
    "open call keeps its neighbours": ("<tool_call>\n<function=search>\n" + xml(query="b"), ["not closed", call(query="b")]),
    "cut in a value": (xml(query="a") + "<tool_call>\n<function=python>\n<parameter=code>\nprint(", [call(query="a"), "!not closed"]),
    "cut after a value": ("<tool_call>\n<function=search>\n<parameter=query>\nx\n</parameter>\n", ["!not closed"]),
    "cut before the function": ("<tool_call>\n", ["!no <function"]),
    "cut in the function's tag": (xml(query="a") + "\n<tool_call>\n<funct", [call(query="a"), "!no <function"]),
    "cut in the function's name": (xml(query="a") + "\n<tool_call>\n<function=sea", [call(query="a"), "!no >"]),
    "cut in the parameter's name": ("<tool_call>\n<function=search>\n<parameter=que", ["!no >"]),
    "no closing tool_call at the end": (xml(query="x").removesuffix("\n</tool_call>"), [call(query="x")]),
    "no wrapper": (f"I check.\n{xml(query='x').removeprefix('<tool_call>')}", [call(query="x")]),
    "no closing function": ("<tool_call>\n<function=search>\n<parameter=query>\nx\n</parameter>\n</tool_call>\n" + xml(query="b"), [call(query="x"), call(query="b")]),
    "no closing parameter": ("<tool_call>\n<function=zip>\n<parameter=code>\n1\n<parameter=place>\n2\n</parameter>\n</function>\n</tool_call>" + xml(query="b"), [call("zip", code="1", place="2"), call(query="b")]),
    "no closing parameter at the end": ("<tool_call>\n<function=search>\n<parameter=query>\nx\n</function>\n</tool_call>\n" + xml(query="b"), [call(query="x"), call(query="b")]),
    "odd closing parameter": (xml(query="x").replace("</parameter>", "</parameter_function>"), [call(query="x")]),
    "lone surrogate": (xml(query="\ud83d") + xml(query="x").replace("query", "\ud83d"), ["surrogate"] * 2),
    "doubled closing parameter": (xml(query="x").replace("</parameter>", "</parameter>\n</parameter>"), [call(query="x")]),
    "parameter without >": ("<tool_call>\n<function=search>\n<parameter=query\nx\n</parameter>\n</function>\n</tool_call>" + xml(query="b"), ["no >", call(query="b")]),
    "empty function name": (xml("", query="x"), ["empty"]),
    "empty parameter name": ("<tool_call><function=search><parameter=>x</parameter></function></tool_call>", ["name is empty"]),
    "spaces round equals": (xml(query="x").replace("=", " = "), ["no <function=name>"]),
    "quoted names": (xml('"search"').replace("</function>", "<parameter='query'>x</parameter></function>"), [call(query="x")]),
    "duplicate parameter": ("<function=search><parameter=query>x</parameter><parameter=query>y</parameter></function>", [call(query="y")]),
    "JSON body": (hermes(query="x"), ["JSON"]),
    "empty tag": ("<tool_call></tool_call>", ["empty"]),
    "another vendor": ('<function_calls><invoke name="search"></invoke></function_calls>', []),
    "tag in backticks": ("Use `<tool_call>`.", []),
    "call in think": (f"<think>{xml(query='a')}</think>{xml(query='b')}", [call(query="b")]),
    "unclosed think": (f"<think>{xml(query='a')}", []),
    "think opened by the template": (f"{xml(query='a')}\n<tool_call>\n<function=x>\n<parameter=y>\n</think>\n{xml(query='b')}", [call(query="b")]),
}  # fmt: skip


@pytest.mark.parametrize("kind", XML)
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["any tool", "tools"])
def test_xml(kind: str, tools: list[ToolSpec] | None) -> None:
    text, expected = XML[kind]
    check(text, "qwen_xml", expected, tools)


TAGS: dict[str, tuple[str, list[Outcome]]] = {
    "search": ("I look. <search> cats </search> done", [call(query="cats")]),
    "move": ("<move>e2e4</move>", [call("move", move="e2e4")]),
    "first action wins": ("<search>a</search><search>b</search><answer>x</answer>", [call(query="a")]),
    "answer before search": ("<answer>x</answer><search>a</search>", [call("answer", answer="x")]),
    "last answer wins": ("<answer>x</answer> no, <answer>y</answer>", [call("answer", answer="y")]),
    "dangling answer": ("<answer>x</answer>\n<answer>", [call("answer", answer="x")]),
    "nearest opening": ("in <answer> tags: <answer>x</answer>", [call("answer", answer="x")]),
    "other tag inside": ("<search>what is <answer>x</answer></search>", [call(query="what is <answer>x</answer>")]),
    "quoted tags": ("Use `<search>` or '<answer>'. <search>a</search>", [call(query="a")]),
    "unclosed": ("<search>q", ["!not closed"]),
    "unclosed, then an action": ("<search>q <answer>x</answer>", ["!not closed", call("answer", answer="x")]),
    "empty": ("<search> \n</search>", ["empty"]),
    "empty, then an action": ("<search></search><answer>x</answer>", ["empty", call("answer", answer="x")]),
    "no action": ("just thinking", ["no action"]),
    "empty text": ("", ["no action"]),
    "stray close": ("x</search>", ["no action"]),
    "think": ("<think><search>a</search></think><answer>x</answer>", [call("answer", answer="x")]),
    "only think": ("<think><answer>x</answer></think>", ["no action"]),
    "unclosed think": ("<think><answer>x</answer>", ["no action"]),
    "think opened by the template": ("<answer>a</answer> or <search> so</think><answer>x</answer>", [call("answer", answer="x")]),
    "result": ("<information><answer>x</answer></information> hmm", ["no action"]),
    "result before an answer": ("<information>42</information><answer>42</answer>", [call("answer", answer="42")]),
    "code": ("<python>\nif x:\n    y = '<'\n\n</python>", [call("python", code="if x:\n    y = '<'\n")]),
    "code quoting its tags": ("<python>print('<python></python>')\n'''\n</python>\n'''</python>", [call("python", code="print('<python></python>')\n'''\n</python>\n'''")]),
    "apostrophe in a comment": ("<python>x = 1  # don't</python> ok", [call("python", code="x = 1  # don't")]),
    "code that never ends its string": ("<python>s = '''</python>", [call("python", code="s = '''")]),
    "mention before code": ("I use <python> now.\n<python>\nx\n</python>", [call("python", code="x")]),
    "mention of code in a thought": ("<search>a</search> or <python> so</think><python>x</python>", [call("python", code="x")]),
    "other case": ("<SEARCH>x</SEARCH>", ["no action"]),
}  # fmt: skip


@pytest.mark.parametrize("kind", TAGS)
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["any tool", "tools"])
def test_tags(kind: str, tools: list[ToolSpec] | None) -> None:
    text, expected = TAGS[kind]
    check(text, "tags", expected, tools)


def test_tags_follow_the_tools() -> None:
    tools = [tool("guess", [], number="integer"), tool("resign", [])]
    check("<guess>7</guess>", "tags", [call("guess", number=7)], tools)
    check("<guess>seven</guess>", "tags", ["'number' of guess must be integer"], tools)
    check("<resign></resign>", "tags", [call("resign")], tools)
    check("<resign>now</resign>", "tags", ["takes nothing"], tools)
    check("<search>x</search>", "tags", ["unknown tool 'search'"], tools)
    check("<answer>x</answer>", "tags", [call("answer", answer="x")], tools)


TYPED: list[tuple[str, str, Any]] = [
    ("answer", "01234", "01234"),
    ("answer", "null", "null"),
    ("answer", " x ", " x "),
    ("confidence", "0.5", 0.5),
    ("confidence", "1", 1),
    ("confidence", "high", None),
    ("confidence", "NaN", None),
    ("confidence", "1e999", None),
    ("final", "true", True),
    ("final", "False", False),
    ("final", "yes", None),
    ("final", "1", None),
    ("extra", '{"w": [1,\n 2]}', {"w": [1, 2]}),
    ("extra", '{"a": 1', None),
    ("extra", "[1]", None),
    ("extra", '{"a": ' * 5000, None),
    ("tags", '["a", "b"]', ["a", "b"]),
    ("tags", "a, b", None),
    ("tags", "[" * 100_000, None),
    ("limit", "5", 5),
    ("limit", "3.0", 3),
    ("limit", "3.5", None),
    ("limit", "05", None),
    ("limit", "1_000", None),
    ("limit", "true", None),
    ("limit", "9" * 5000, None),
    ("note", "7", "7"),
    ("free", "7", "7"),
    ("unlisted", "7", "7"),
]


@pytest.mark.parametrize(("name", "text", "value"), TYPED, ids=[f"{name}={text[:9]}" for name, text, _ in TYPED])
def test_xml_values_follow_the_schema(name: str, text: str, value: Any) -> None:
    expected: Outcome = f"{name!r} of finish must be" if value is None else ("finish", {name: value})
    check(xml("finish", **{name: text}), "qwen_xml", [expected], TOOLS)


def test_quoted_parameter_that_the_tool_does_not_have() -> None:
    value = "Example:\n<parameter=edits>\nx\n</parameter>"
    check(xml("python", code=value) + xml(query="b"), "qwen_xml", [call("python", code=value), call(query="b")], TOOLS)
    check(
        xml("zip", code=value + "\nend", place="5"), "qwen_xml", [call("zip", code=value + "\nend", place="5")], TOOLS
    )


def test_types_behind_references_and_listed_values() -> None:
    spec = {"$ref": "#/$defs/a~1b"}
    properties = {
        "spec": spec,
        "maybe": {"anyOf": [spec, {"type": "null"}]},
        "all": {"allOf": [spec], "description": "x"},
        "level": {"enum": [1, 2]},
        "mode": {"enum": ["1", "2"]},
        "fixed": {"const": 5},
        "loop": {"$ref": "#/$defs/loop"},
        "lost": {"$ref": "#/$defs/none"},
        "far": {"$ref": "https://example.org/schema"},
    }
    defs = {"a/b": {"type": "object"}, "loop": {"anyOf": [{"$ref": "#/$defs/loop"}, {"type": "integer"}]}}
    tools = [ToolSpec("f", "", {"properties": properties, "$defs": defs})]
    text = {"spec": "{}", "maybe": "null", "all": '{"a": 1}', "level": "1", "mode": "1", "fixed": "5"}
    values = {"spec": {}, "maybe": None, "all": {"a": 1}, "level": 1, "mode": "1", "fixed": 5}
    unknown = {"loop": "5", "lost": "5", "far": "5"}
    check(xml("f", **text, **unknown), "qwen_xml", [("f", values | unknown)], tools)
    check(xml("f", maybe="x"), "qwen_xml", ["'maybe' of f must be null or object"], tools)
    check(hermes("f", spec="{}"), "hermes", ["'spec' of f must be object"], tools)


def test_null_where_the_schema_allows_it() -> None:
    for text in ("null", "None"):
        assert parse(xml("finish", note=text, limit=text), "qwen_xml", TOOLS) == [
            ToolCall("finish", {"note": None, "limit": None})
        ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"query": "x", "k": 3.0}, call(query="x", k=3)),
        ({"query": "x", "k": 3.5}, "'k' of search must be integer"),
        ({"query": "x", "k": True}, "'k' of search must be integer"),
        ({"query": "x", "k": "3"}, "'k' of search must be integer"),
        ({"query": 1234}, "'query' of search must be string"),
        ({"query": None}, "'query' of search must be string"),
        ({"k": 3}, "search needs the argument 'query'"),
        ({"query": "x", "page": 2}, call(query="x", page=2)),
    ],
)
def test_hermes_values_follow_the_schema(arguments: dict[str, Any], expected: Outcome) -> None:
    check(hermes("search", **arguments), "hermes", [expected], TOOLS)


def test_unknown_names_get_a_suggestion() -> None:
    (failure,) = parse(hermes("serch", query="x"), "hermes", TOOLS)
    assert isinstance(failure, ParseFailure) and "Did you mean 'search'?" in failure.reason
    closed = [ToolSpec("f", "", {"properties": {"query": {"type": "string"}}, "additionalProperties": False})]
    (failure,) = parse(hermes("f", qeury="x"), "hermes", closed)
    assert isinstance(failure, ParseFailure) and "Did you mean 'query'?" in failure.reason
    assert parse(hermes("serch", query="x"), "hermes") == [ToolCall("serch", {"query": "x"})]
    (failure,) = parse(hermes("search", query="x"), "hermes", [])
    assert isinstance(failure, ParseFailure) and "Available: none" in failure.reason


def test_unknown_protocol_names_the_others() -> None:
    with pytest.raises(ValueError, match=r"'xml'.*qwen_xml"):
        parse("", "xml")  # type: ignore[arg-type]


# --- the public sample, where it is at hand ---

SHARED = Path(os.environ.get("WHALE_SHARED", Path(__file__).parents[2] / "shared")) / "cases"
DIALECTS: dict[str, Protocol] = {"hermes": "hermes", "qwen3_xml": "qwen_xml", "search_tags": "tags"}


def sample() -> list[dict[str, Any]]:
    path = SHARED / "tool_calls.jsonl"
    return [json.loads(line) for line in path.read_text("utf-8").strip("\n").split("\n")] if path.exists() else []


@pytest.mark.skipif(not sample(), reason="the sample of public cases is not here")
@pytest.mark.parametrize("row", sample(), ids=lambda row: row["id"])
def test_public_cases(row: dict[str, Any]) -> None:
    schemas = json.loads((SHARED / "tool_calls_schemas.json").read_text("utf-8"))["tools"]
    tools = [tool(name, [], **types) for name, types in schemas.items()]
    results = parse(row["text"], DIALECTS[row["format"]], tools)
    calls = [{"name": r.name, "arguments": r.arguments} for r in results if isinstance(r, ToolCall)]
    failures = [r for r in results if isinstance(r, ParseFailure)]
    if "expected_error" in row:
        assert failures or (row.get("contested") and calls == row["expected_calls"])
    else:
        assert calls == row["expected_calls"] and not failures


# --- properties ---

PIECES = [
    "<tool_call>", "</tool_call>", "<function=search>", "<function=", "</function>", "<parameter=query>", "<parameter=",
    "</parameter>", "<think>", "</think>", "<search>", "</search>", "<python>", "</python>", "<answer>", "</answer>",
    "<information>", "</information>", '{"name": "search", "arguments": {"query": "x"}}', '{"name": ', "{", "}", "[", "]",
    '"', "'", "\\", ",", ":", "\n", " ", "`", "```", "'''", '"""', "#", "x", "1e999", "null", "NaN", "\ud83d", "\0", "<|im_end|>",
]  # fmt: skip
SAMPLES = [
    hermes(query="a"),
    xml(query="a\nb"),
    xml("python", code=QUOTED),
    "<python>x = '</python>'</python>",
    hermes(query=xml()),
]


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """Well-formed calls with pieces cut out, doubled, or put in between."""
    text = "".join(draw(st.lists(st.sampled_from(SAMPLES), min_size=1, max_size=3)))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 30)))
        middle = draw(st.sampled_from(["", text[start:end] * 2, *PIECES]))
        text = text[:start] + middle + text[end:]
    return text


TEXTS = st.one_of(
    st.text(st.characters(codec=None), max_size=60),
    st.lists(st.sampled_from(PIECES), max_size=25).map("".join),
    mutated(),
)


@settings(max_examples=EXAMPLES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(TEXTS)
@example("<tool_call>" + "{" * 5000)
@example("<function=a><parameter=b>" * 500)
def test_any_text_gives_a_list(text: str) -> None:
    for protocol in PROTOCOLS:
        for tools in (None, TOOLS):
            results = parse(text, protocol, tools)
            assert results or protocol != "tags"
            assert all(isinstance(result, (ToolCall, ParseFailure)) for result in results)
            json.dumps([r.to_json() for r in results], ensure_ascii=False, allow_nan=False).encode()


NAMES = st.from_regex(r"[a-z_][a-z0-9_.-]{0,8}", fullmatch=True)
STRINGS = st.one_of(st.text(max_size=20), st.lists(st.sampled_from(PIECES[:-3]), max_size=6).map("".join))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), STRINGS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(STRINGS, inner, max_size=3)),
    max_leaves=5,
)


@settings(max_examples=EXAMPLES // 5, deadline=None, derandomize=True)
@given(st.lists(st.builds(ToolCall, NAMES, st.dictionaries(STRINGS, VALUES, max_size=3)), max_size=3))
def test_hermes_round_trip(calls: list[ToolCall]) -> None:
    assert parse(render(calls, "hermes"), "hermes") == calls


@settings(max_examples=EXAMPLES // 5, deadline=None, derandomize=True)
@given(st.lists(st.builds(ToolCall, NAMES, st.dictionaries(NAMES, STRINGS, max_size=3)), max_size=3))
def test_xml_round_trip(calls: list[ToolCall]) -> None:
    try:
        text = render(calls, "qwen_xml")
    except ValueError:
        assert any("</" in value or "<tool" in value or "<f" in value or "<p" in value for c in calls for value in c.arguments.values())  # type: ignore[operator]  # fmt: skip
    else:
        assert parse(text, "qwen_xml") == calls


@settings(max_examples=EXAMPLES // 10, deadline=None, derandomize=True)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "answer": st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<"), max_size=20),
            "confidence": st.floats(allow_nan=False, allow_infinity=False),
            "final": st.booleans(),
            "extra": st.dictionaries(st.text("ab", max_size=3), VALUES.filter(lambda v: "<" not in json.dumps(v)), max_size=2),
            "tags": st.lists(st.integers(), max_size=3),
            "limit": st.one_of(st.none(), st.integers()),
        },
    )
)  # fmt: skip
def test_xml_round_trip_of_typed_values(arguments: dict[str, Any]) -> None:
    calls = [ToolCall("finish", arguments)]
    assert parse(render(calls, "qwen_xml"), "qwen_xml", TOOLS) == calls


@settings(max_examples=EXAMPLES // 5, deadline=None, derandomize=True)
@given(st.sampled_from(sorted(_tags.ARGUMENTS)), STRINGS)
def test_tags_round_trip(name: str, content: str) -> None:
    calls = [ToolCall(name, {_tags.ARGUMENTS[name]: content})]
    try:
        text = render(calls, "tags")
    except ValueError:
        assert content != content.strip() or not content or "<" in content or name == "python"
    else:
        assert parse(text, "tags") == calls


def test_render_refuses_what_the_dialect_cannot_say() -> None:
    with pytest.raises(ValueError, match="cannot write"):
        render([ToolCall("search", {"query": "x\n</parameter>\n</function>\n</tool_call>"})], "qwen_xml")
    with pytest.raises(ValueError, match="one call"):
        render([ToolCall("search", {"query": "x"})] * 2, "tags")
    with pytest.raises(ValueError, match="not integer"):
        render([ToolCall("guess", {"number": 7})], "tags")
    assert [render([], protocol) for protocol in PROTOCOLS] == ["", "", ""]


# --- work grows with the text, not with its square ---

UNITS = [
    "<tool_call>", "{", "[", '"', "\\", " ", "<tool_call>{", '<tool_call>{"', '<tool_call>{\\"', '<tool_call>{"a":"',
    '<tool_call>{"\\"', '<tool_call>{"a":1}', "<tool_call>\n\n{}", "<think>", "</think>", "<think></think>", "<function=",
    "<parameter=", "</parameter>", "<function=a>", "</function>", "</tool_call>", "<function=a><parameter=b>x",
    "<tool_call>\n<function=search>\n<parameter=query>\n", "\n<parameter=query>\n", "<parameter=query>\nx\n</parameter>\n",
    'x"<function=x><parameter=y>"\n', "<search>", "</search>", "<answer>x</answer>", "<search><answer>", "<information>",
    "<python>", "<python>'''</python>", "<python>\\'''</python>", '<python>"</python>', "<python># <python>", "'''", "`<tool_call>`",
]  # fmt: skip
PREFIXES = ["", '<tool_call>{"a":"', "<tool_call>\n<function=search>\n<parameter=query>\n", "<python>", "<think>"]


def steps(work: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> int:
    """Counts the characters searched and the functions called."""
    count = 0

    def counted(pattern: Any, text: str, start: int) -> Any:
        nonlocal count
        match = pattern.search(text, start)
        count += (match.end() if match else len(text)) - start
        return match

    def called(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    with monkeypatch.context() as patch:
        for module in (_hermes, _json, _xml, _tags):
            patch.setattr(module, "find", counted)
        before = sys.getprofile()
        sys.setprofile(called)
        try:
            work()
        finally:
            sys.setprofile(before)
    return count


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_work_is_linear(protocol: Protocol, monkeypatch: pytest.MonkeyPatch) -> None:
    for prefix in PREFIXES:
        for unit in UNITS:
            short, long = (prefix + unit * (size // len(unit)) for size in (1000, 4000))
            few, many = (steps(lambda text=text: parse(text, protocol, TOOLS), monkeypatch) for text in (short, long))  # type: ignore[misc]
            assert many < 6 * few + 1000, (prefix, unit, few, many)


def test_thinking_pairs_its_tags() -> None:
    thinking = _thinking.Thinking()
    assert thinking.close() == 0 and thinking.close() is None
    thinking.open(3)
    assert thinking.inside and thinking.close() == 3 and not thinking.inside
