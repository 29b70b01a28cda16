"""Policies without skill: they repeat, count, and name what the prompt lists, and know nothing of any problem.

What a harness earns with one of them is its own doing, or chance (`harness_sdk.floor`). Each is a reader: from the
prompt's text it takes one value (or several), which is then written in every form at once: bare, in the tag of the
committing tool, and as a native call where tools are offered. Whoever tells skill apart from reading may add a reader.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness_sdk.policies.api import cut_at_stop
from harness_sdk.policies.base import Generation, Request
from harness_sdk.randomness import derive_seed
from harness_sdk.types import Completion, Message
from whale_env.types import ToolCall, ToolSpec

CHARS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a reader sees.

    Attributes:
        text: All messages, one after the other.
        last: The last message that is no prefix.
        rng: Seeded by the model call.
    """

    text: str
    last: str
    rng: random.Random

    @classmethod
    def of(cls, messages: Sequence[Message], seed: int) -> Prompt:
        """Reads messages."""
        contents = [message["content"] for message in messages]
        asked = [message["content"] for message in messages if message["role"] != "assistant"]
        return cls("\n".join(contents), asked[-1] if asked else "", random.Random(seed))

    def words(self) -> list[str]:
        """Returns the words of the last message, marks around them left out."""
        return [word for raw in self.last.split() if (word := _bare(raw))]

    def lines(self) -> list[str]:
        """Returns the lines of the whole prompt that are not blank."""
        return [line.strip() for line in self.text.splitlines() if line.strip()]

    def listed(self) -> list[str]:
        """Returns the items of the longest list in the prompt: set off by commas, by lines, or words with a digit."""
        best: list[str] = []
        block: list[str] = []
        for line in [*self.text.splitlines(), ""]:
            body = line.rpartition(": ")[2]
            commas = [item for part in body.split(",") if (item := _head(part))]
            coded = [word for raw in body.split() if (word := _bare(raw)) and any(c.isdigit() for c in word)]
            block = [*block, _head(line)] if line.strip() and len(line.split()) <= 6 else []
            best = max(best, commas if len(commas) > 2 else [], coded, block, key=len)
        return best

    def numbers(self) -> list[str]:
        """Returns the numbers of the last message."""
        return re.findall(r"-?\d+(?:\.\d+)?", self.last)

    def names(self) -> list[str]:
        """Returns what is written with capitals within lines of the last message."""
        return re.findall(r"(?<=[^.?!:\n] )[A-Z][^\W\d]+(?:[ '-][A-Z][^\W\d]+)*\b(?![\w+#])", self.last)

    def tagged(self) -> list[str]:
        """Returns what stands in tags or boxes."""
        return re.findall(r"(?:<(?:\w+)>|\\boxed\{)([^<>{}\n]+)(?:</|\})", self.text)

    def marked(self) -> list[str]:
        """Returns what stands in quotes or is set in bold, italics or as code."""
        found = re.finditer(r"(?:\*\*|[*`\"\u201c])([^*`\"\u201d\n]{1,80})[*`\"\u201d]", self.text)
        return [match[1] for match in found]

    def told(self) -> list[str]:
        """Returns what stands behind a colon, an equals sign, an arrow, or a word that tells what to say."""
        word = r"(?:[:=>]|\b(?:is|say|write|answer|play|choose|reply|repeat|with|best|move)\b)"
        return [bare for match in re.finditer(rf"{word}[ \t]+(\S+)", self.text, re.I) if (bare := _bare(match[1]))]


Reader = Callable[[Prompt], str]


def _at(items: Sequence[str], place: int) -> str:
    return items[place] if items else ""


def _any(items: Sequence[str], rng: random.Random) -> str:
    return rng.choice(items) if items else ""


COMMON = ("0", "1", "2", "3", "4", "5", "6", "8", "10", "12", "100", "yes", "no", "A", "the", "True")

VALUES: Mapping[str, Reader] = {
    "first word": lambda p: _at(p.words(), 0),
    "last word": lambda p: _at([word for raw in p.text.split() if (word := _bare(raw))], -1),
    "last line": lambda p: _at(p.lines(), -1),
    "behind the last colon": lambda p: _at([line.rpartition(":")[2].strip() for line in p.lines() if ": " in line], -1),
    "first of a list": lambda p: _at(p.listed(), 0),
    "last of a list": lambda p: _at(p.listed(), -1),
    "any of a list": lambda p: _any(p.listed(), p.rng),
    "most often listed": lambda p: _at([item for item, _ in Counter(p.listed()).most_common(1)], 0),
    "first number": lambda p: _at(p.numbers(), 0),
    "last number": lambda p: _at(p.numbers(), -1),
    "first name": lambda p: _at(p.names(), 0),
    "last name": lambda p: _at(p.names(), -1),
    "first tag": lambda p: _at(p.tagged(), 0),
    "last tag": lambda p: _at(p.tagged(), -1),
    "last in quotes or bold": lambda p: _at(p.marked(), -1),
    "first thing told": lambda p: _at(p.told(), 0),
    "last thing told": lambda p: _at(p.told(), -1),
    "any word": lambda p: _any(p.words(), p.rng),
    "a common answer": lambda p: _any(COMMON, p.rng),
}
"""Readers that name one value."""

TEXTS: Mapping[str, Reader] = {
    "silence": lambda p: "",
    "repeat": lambda p: p.last,
    "repeat all": lambda p: p.text,
    "the whole list": lambda p: " ".join(p.listed()),
    "counting": lambda p: " ".join(map(str, range(1, 1001))),
}
"""Readers that say more, or nothing, as it stands."""


class NoSkill:
    """A policy that says what a reader takes from the prompt; see `harness_sdk.policies.base.Policy`."""

    def __init__(self, reader: Reader, tools: Sequence[ToolSpec], *, plain: bool = False, asks: bool = False) -> None:
        """Builds the policy.

        Args:
            reader: Takes a text from the prompt.
            tools: The environment's tools.
            plain: Whether the text is said as it stands, in no further form.
            asks: Whether the first reply of an episode calls an informing tool with the prompt's last line.
        """
        self._reader, self._plain, self._asks = reader, plain, asks
        self._commits = [tool for tool in tools if tool.commits]
        self._informs = [tool for tool in tools if _asked_in_words(tool)]

    async def generate(self, request: Request) -> Generation:
        """Answers one request."""
        prompt = Prompt.of(request.messages, derive_seed("no skill", request.seed))
        tools = self._commits
        if self._asks and request.previous is None and self._informs:
            value, tools = _at(prompt.lines(), -1), self._informs
        else:
            value = self._reader(prompt)
        text = value
        calls: tuple[ToolCall, ...] = ()
        if not self._plain and value:
            prefixed = request.messages[-1]["role"] == "assistant"
            closing = "".join(f"{after}</{tool.name}>" for tool in tools[:1] for _, after in [_form(tool)])
            text = value + closing if prefixed else "\n".join([value, *(_tag(tool, value) for tool in tools)])
            offered = {schema["function"]["name"]: schema["function"].get("parameters", {}) for schema in request.tools}
            calls = tuple(
                ToolCall(name, {_argument(schema): _filled(ToolSpec(name, "", schema), value)}, "call_0")
                for name, schema in offered.items()
                if name in {tool.name for tool in tools} or len(offered) == 1
            )[:1]
        text, stopped = cut_at_stop(text[: request.max_tokens * CHARS_PER_TOKEN], request.stop)
        tokens = max(1, min(request.max_tokens, math.ceil(len(text) / CHARS_PER_TOKEN) + 1))
        cut = not stopped and tokens == request.max_tokens
        if cut:  # as a backend does: a call that was cut off is none
            calls = ()
        return Generation(Completion(text, "length" if cut else "stop", calls, tokens, (), bool(calls)), text)


ASKED = ", having asked"
"""How the name ends of a policy that first calls an informing tool."""


def policies(tools: Sequence[ToolSpec]) -> dict[str, NoSkill]:
    """Returns all policies without skill, by name.

    Args:
        tools: The environment's tools; where some inform, each reader of a value also plays after asking one.
    """
    found = {name: NoSkill(reader, tools, plain=True) for name, reader in TEXTS.items()}
    found |= {name: NoSkill(reader, tools) for name, reader in VALUES.items()}
    if any(map(_asked_in_words, tools)):
        found |= {f"{name}{ASKED}": NoSkill(reader, tools, asks=True) for name, reader in VALUES.items()}
    return found


def _asked_in_words(tool: ToolSpec) -> bool:
    return not tool.commits and not tool.runs and bool(tool.parameters.get("required"))


def _argument(schema: Mapping[str, Any]) -> str:
    return next(iter([*schema.get("required", ()), *schema.get("properties", {})]), "text")


def _form(tool: ToolSpec) -> tuple[str, str]:
    """What stands around a value where the tool's schema shows it by example: a box."""
    examples = tool.parameters.get("properties", {}).get(_argument(tool.parameters), {}).get("examples") or [""]
    before, _, after = re.fullmatch(r"(.*?)(\w*)(\W*)", str(examples[0]), re.DOTALL).groups()  # type: ignore[union-attr]
    return (before, after) if after else ("", "")


def _filled(tool: ToolSpec, value: str) -> Any:
    kind = tool.parameters.get("properties", {}).get(_argument(tool.parameters), {}).get("type", "string")
    if kind in ("integer", "number"):
        match = re.search(r"-?\d{1,15}", value)
        return int(match[0]) if match else 0
    before, after = _form(tool)
    return before + value + after


def _tag(tool: ToolSpec, value: str) -> str:
    before, after = _form(tool)
    return f"<{tool.name}>{before}{value}{after}</{tool.name}>"


def _bare(word: str) -> str:
    return word.strip(".,;:!?()[]{}<>\"'`*|\u201c\u201d")


def _head(item: str) -> str:
    words = re.sub(r"^\s*(?:[-*\u2022]|\d+[.)])\s+", "", item).split()
    return _bare(words[0]) if words else ""
