"""How fast the tool-call parsers are, and that no text makes them slow or fail: ``python -m benchmarks.toolcalls``.

Times one-megabyte texts made to be hard against quarter-megabyte ones (a linear parser needs four times as long), an
ordinary completion, and as many random and mutated texts as ``--inputs`` asks for. Ends with status 1 when a text
raises or takes more than four times its share. Does not check what the calls say: the tests do.
"""

from __future__ import annotations

import random
import time
import traceback
from collections.abc import Iterator
from typing import get_args

from benchmarks import command
from harness_sdk.toolcalls import Protocol, parse, render
from whale_env.types import ToolCall, ToolSpec

PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)
TOOLS = [
    ToolSpec("search", "", {"properties": {"query": {"type": "string"}, "k": {"type": "integer"}}}),
    ToolSpec("python", "", {"properties": {"code": {"type": "string"}}, "required": ["code"]}),
    ToolSpec("answer", "", {"properties": {"answer": {"type": "string"}}, "required": ["answer"]}),
]  # fmt: skip
CODE = 'for i in range(3):\n    print(i, "</parameter>", \'</python>\', "</tool_call>")\n'
PIECES = [
    "<tool_call>", "</tool_call>", "<function=search>", "<function=", "</function>", "<parameter=query>", "<parameter=",
    "</parameter>", "<think>", "</think>", "<search>", "</search>", "<python>", "</python>", "<answer>", "</answer>",
    "<information>", "</information>", "{", "}", "[", "]", '"', "'", "\\", ",", ":", "\n", " ", "`", "'''", "#", "x",
]  # fmt: skip
UNITS = [
    *PIECES,
    "<tool_call>{", '<tool_call>{"', '<tool_call>{\\"', '<tool_call>{"a":"', '<tool_call>{"a":1}', "<tool_call>\n\n{}",
    "<tool_call>\n<function=search>\n<parameter=query>\n", "\n<parameter=query>\n", "<function=a><parameter=b>x",
    "<parameter=query>\nx\n</parameter>\n", "<python>\\'''</python>", "<python>'''</python>", "<search><answer>",
]  # fmt: skip


def seconds(text: str, protocol: Protocol) -> float:
    """Returns the seconds that one parse takes."""
    began = time.perf_counter()
    parse(text, protocol, TOOLS)
    return time.perf_counter() - began


def hard() -> bool:
    """Prints the slowest hard texts of 1 MB. Returns whether all grow linearly."""
    rows = []
    for protocol in PROTOCOLS:
        for unit in UNITS:
            quarter, whole = (seconds(unit * (size // len(unit)), protocol) for size in (250_000, 1_000_000))
            rows.append((whole, whole / quarter, protocol, unit))
    rows.sort(reverse=True)
    print("slowest texts of 1 MB (seconds, times the quarter megabyte, dialect, repeated text)")
    for whole, ratio, protocol, unit in rows[:8]:
        print(f"  {whole:6.3f}  {ratio:5.1f}x  {protocol:8}  {unit!r}")
    slow = [row for row in rows if row[0] > 0.05 and row[1] > 16]
    for row in slow:
        print(f"NOT LINEAR: {row}")
    return not slow


def ordinary() -> None:
    """Prints the time of a completion with one call after two thousand words of thought."""
    thought = "<think>" + "I should look at this. " * 400 + "</think>\n"
    for protocol in PROTOCOLS:
        text = thought + render([ToolCall("search", {"query": "who wrote it"})], protocol)
        best = min(seconds(text, protocol) for _ in range(200))
        print(f"one call after 2,000 words of thought, {protocol:8}: {best * 1e6:6.0f} µs")


def texts(count: int, seed: int) -> Iterator[str]:
    """Yields random texts: characters, pieces of markup, and well-formed calls with pieces cut, doubled and put in."""
    rng = random.Random(seed)
    calls = [ToolCall("search", {"query": "a\nb"}), ToolCall("python", {"code": CODE})]
    whole = [*(render([call], protocol) for call in calls for protocol in PROTOCOLS), render(calls, "qwen_xml")]
    for number in range(count):
        if number % 4 == 0:
            yield "".join(chr(rng.randrange(0x110000 if rng.random() < 0.1 else 128)) for _ in range(rng.randrange(80)))
        elif number % 4 == 1:
            yield "".join(rng.choices(PIECES, k=rng.randrange(40)))
        else:
            text = "".join(rng.choices(whole, k=rng.randrange(1, 4)))
            for _ in range(rng.randrange(1, 5)):
                start = rng.randrange(len(text) + 1)
                end = start + rng.randrange(30)
                text = text[:start] + rng.choice(["", text[start:end] * 2, *PIECES]) + text[end:]
            yield text


def total(count: int, seed: int) -> bool:
    """Parses random texts in every dialect, with and without tools. Returns whether none raised."""
    began, failed = time.perf_counter(), 0
    for text in texts(count, seed):
        for protocol in PROTOCOLS:
            for tools in (None, TOOLS):
                try:
                    parse(text, protocol, tools)
                except Exception:
                    failed += 1
                    print(f"RAISED on {text!r} as {protocol}\n{traceback.format_exc()}")
    print(
        f"{count:,} texts in 3 dialects, with and without tools: {failed} raised, {time.perf_counter() - began:.1f} s"
    )
    return not failed


def main() -> int:
    """Runs all parts. Returns the exit status."""
    parser = command.parser("toolcalls", (__doc__ or "").partition("\n")[0])
    parser.add_argument("--inputs", type=int, default=20_000, help="how many random texts (default: 20,000)")
    parser.add_argument("--seed", type=int, default=0, help="their seed (default: 0)")
    options = parser.parse_args()
    ordinary()
    linear = hard()
    return 0 if total(options.inputs, options.seed) and linear else 1


if __name__ == "__main__":
    command.finish(main)
