r"""Mathematics, hand-written: worked examples, programs, and a check of results that no program confirms.

Commits only what the model put in a ``\\boxed{}``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness_sdk import Completion, Episode, Harness, Message, ParseFailure, ToolCall, ToolSchema, ToolSpec

PROGRAM = re.compile(r"<python>(.*?)</python>", re.DOTALL)
BOX = "\\boxed{"


class MathStrong(Harness):
    """Worked examples, several programs, and one check when the box and the last program's output differ."""

    system = "Solve the problem in short steps. End with the result in \\boxed{}."
    instructions = ""
    tool_text = "For hard computations write a Python program between <python> and </python> and read its output."
    check_text = (
        "Your result does not appear in the output of your program. Check both, then give the result in \\boxed{}."
    )
    last_text = "This is the last turn: give the result in \\boxed{} now."
    prompt_attributes = ("system", "instructions", "tool_text", "check_text", "last_text")
    examples = (
        ("What is 8 + 5?", "8 + 5 = 13. The answer is \\boxed{13}."),
        (
            "Zoe has 9 plums and eats 4. How many plums are left?",
            "She starts with 9 and eats 4: 9 - 4 = 5. The answer is \\boxed{5}.",
        ),
    )
    max_turns = 5
    max_failures = 3
    max_tokens_per_turn = 2048
    stop_strings = ("</python>",)

    def tools(self, env_tools: Sequence[ToolSpec]) -> list[ToolSchema]:
        """Shows no native tools: the system text explains the tag."""
        return []

    def pack(self, episode: Episode) -> list[Message]:
        """Shows the examples as turns of the chat, then the problem and what has happened."""
        messages: list[Message] = [{"role": "system", "content": f"{self.system} {self.tool_text}"}]
        for question, answer in self.examples:
            messages.append({"role": "user", "content": question})
            messages.append({"role": "assistant", "content": answer})
        messages.append({"role": "user", "content": f"{episode.first.text}\n{self.instructions}".strip()})
        for turn in episode.turns:
            messages.append({"role": "assistant", "content": turn.completion.text})
            told = turn.feedback if turn.failure else "\n".join(turn.results)
            messages.append({"role": "user", "content": told or self.check_text})
        if len(episode.turns) == self.max_turns - 1:
            messages[-1]["content"] += f"\n{self.last_text}"
        return messages

    def parse(self, completion: Completion, episode: Episode) -> list[ToolCall] | ParseFailure:
        """Reads the reply; a result that the last program did not print is sent back once to be checked."""
        calls = read(completion)
        if isinstance(calls, ParseFailure) or calls[0].name != "answer":
            return calls
        outputs = [text for turn in episode.turns if not turn.failure for text in turn.results]
        checked = any(not turn.calls and not turn.failure for turn in episode.turns)
        last = len(episode.turns) == self.max_turns - 1
        if outputs and not checked and not last and not _confirmed(completion.text, outputs[-1]):
            return []
        return calls

    def recover(self, failure: ParseFailure, episode: Episode) -> str | None:
        """Says what is missing."""
        if failure.kind == "truncated":
            return "Your reply was too long. Be brief and give the result in \\boxed{}."
        return "Give the result in \\boxed{}, or a program between <python> and </python>."


def _confirmed(text: str, output: str) -> bool:
    """Whether the boxed result stands in the output as a whole number or word."""
    thousands = re.compile(r"(?<=\d),(?=\d{3}\b)")
    boxed = thousands.sub("", text.rpartition(BOX)[2].partition("}")[0]).strip(" $")
    return bool(re.search(rf"(?<![\w.]){re.escape(boxed)}(?![\w.])", thousands.sub("", output)))


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
