"""Mathematics, the plain starting harness: the paper's in spirit, no system prompt, one tool, two turns."""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness_sdk import Completion, Episode, Harness, ParseFailure, ToolCall, ToolSchema, ToolSpec

PROGRAM = re.compile(r"<python>(.*?)</python>", re.DOTALL)
BOX = "\\boxed{"


class MathH0(Harness):
    """Asks for a boxed result and offers Python once: the first turn may run a program, the second one answers."""

    instructions = (
        "Work out the answer and put it in \\boxed{}. "
        "If it helps, first write one Python program between <python> and </python>; you will see what it prints."
    )
    max_turns = 2
    max_failures = 2
    max_tokens_per_turn = 16384
    stop_strings = ("</python>",)

    def tools(self, env_tools: Sequence[ToolSpec]) -> list[ToolSchema]:
        """Shows no native tools: the prompt explains the tag."""
        return []

    def parse(self, completion: Completion, episode: Episode) -> list[ToolCall] | ParseFailure:
        """Takes the box if there is one, else the program."""
        return read(completion)


def read(completion: Completion) -> list[ToolCall] | ParseFailure:
    """Reads a reply: one that has a box is the final answer, one that has a program runs it."""
    text = completion.text
    if BOX in text:
        return [ToolCall("answer", {"text": text})]
    programs = PROGRAM.findall(text)
    if programs and programs[-1].strip():
        return [ToolCall("python", {"code": programs[-1].strip("\n")})]
    if completion.tool_calls:
        return list(completion.tool_calls)
    cut = completion.finish_reason == "length"
    return ParseFailure("the reply has no \\boxed{} and no program", text[-200:], "truncated" if cut else "format")
