"""The commit rule: what binds the agent must be the model's own word, and its choice.

One `CommitRule` follows one episode. It hears every completion, refuses a committing call that no completion since the
last commit chose, and a program that the model did not write. Within one completion the choice is what stands in the
native call, the tag, the JSON field or the box; else any of at most three values that it names; else the last of them.
What a value is, and whether a text names it, is the domain's business (`whale_env.commit`). A prefix that the harness
wrote is in no completion and never counts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from harness_sdk import toolcalls
from harness_sdk.types import Completion, Message
from whale_env.commit import FEW, Named, leaves, said_verbatim
from whale_env.core import ToolEnv
from whale_env.types import ToolCall


@dataclass(frozen=True, slots=True)
class Heard:
    """One completion, and the prompt that it answers.

    Attributes:
        completion: What the model wrote.
        prompt: The prompt's text.
    """

    completion: Completion
    prompt: str

    @property
    def text(self) -> str:
        """All that the model wrote, the arguments of native calls included."""
        return "\n".join([self.completion.text, *(_arguments(call) for call in self.completion.tool_calls)])


@dataclass(slots=True)
class CommitRule:
    """Follows one episode; see the module.

    Attributes:
        env: The episode's environment.
        refused: How often a call was refused, by reason: ``unsaid`` (the model never said it), ``picked`` (it named
            many values, and this one was neither its choice nor the first) and ``first`` (the first of many).
        unsaid: Calls of informing tools that the model did not say.
    """

    env: ToolEnv
    refused: dict[str, int] = field(default_factory=dict)
    unsaid: int = 0
    _heard: list[Heard] = field(default_factory=list)
    _all: list[Heard] = field(default_factory=list)
    _following: list[str] = field(default_factory=list)
    _commits: int = 0
    _options: list[float] = field(default_factory=list)
    _copied: list[tuple[float, float, float]] = field(default_factory=list)

    def hear(self, completion: Completion, messages: Sequence[Message]) -> None:
        """Notes what the model wrote, and what it was asked."""
        heard = Heard(completion, "\n".join(message["content"] for message in messages))
        self._heard.append(heard)
        self._all.append(heard)
        self._following = []

    def refusal(self, call: ToolCall) -> str | None:
        """Judges a call that fits the environment's tools.

        Args:
            call: The call.

        Returns:
            Why it is refused, for the model to read, or None. What is not refused is noted as made.
        """
        tool = next((tool for tool in self.env.tools if tool.name == call.name), None)
        if tool is not None and tool.commits:
            return self._refused_commit(call)
        said = "\n".join(heard.text for heard in self._all)
        if tool is not None and tool.runs and not self.env.said(call, said):
            return self._refuse("unsaid", f"the model did not write the program that {call.name} was given")
        self.unsaid += bool(call.arguments) and not said_verbatim(_texts(call), said)
        return None

    def metrics(self) -> dict[str, float]:
        """Returns what the rule saw of an episode.

        ``calls_per_commit``: model calls for each commit. ``options_said``: different values that the model named for
        each commit. ``unsaid_calls``: calls of the environment that the model did not say. ``copied_first``,
        ``copied_last``, ``copied_any``: share of the commits that one finds who takes the first, the last or any value
        that the prompt names, and reads nothing. ``refused_unsaid``, ``refused_picked``, ``refused_first``: refused
        calls, where there were some.
        """
        found = {
            "calls_per_commit": len(self._all) / max(1, self._commits),
            "options_said": fmean(self._options) if self._options else 0.0,
            "unsaid_calls": float(self.unsaid),
        }
        for name, shares in zip(COPIED, zip(*self._copied, strict=True), strict=False):
            found[name] = fmean(shares)
        return {**found, **{f"refused_{why}": float(count) for why, count in self.refused.items()}}

    def _refused_commit(self, call: ToolCall) -> str | None:
        if self._following and _is_chosen(self.env.named(call, self._following[0])):
            self._made(call, self._all[-1:])  # the next of several calls in one completion
            del self._following[0]
            return None
        for heard in reversed(self._heard):
            texts = self._explicit(call, heard.completion)
            place = self._chosen_at(call, heard, texts)
            if place is not None:
                self._made(call, [heard, *self._heard])
                self._heard, self._following = [], texts[place + 1 :]
                return None
        shown = f"{dict(call.arguments)!r:.200}"
        saying = [heard for heard in self._heard if self.env.said(call, heard.text)]
        if not saying:
            return self._refuse("unsaid", f"the model did not say {shown} since the last commit")
        first = any(all(entry.first for entry in self.env.named(call, heard.text)) for heard in saying)
        why = f"the model named {shown} among others; its choice is the call, tag or box, else the last of many"
        return self._refuse("first" if first else "picked", why)

    def _chosen_at(self, call: ToolCall, heard: Heard, texts: Sequence[str]) -> int | None:
        """Returns where among the explicit texts the call's value is chosen (their end: elsewhere), or None."""
        if texts:
            places = range(len(texts))
            if len({" ".join(text.casefold().split()) for text in texts}) > FEW:
                places = range(0, len(texts), max(1, len(texts) - 1))  # the first and the last
            return next((place for place in places if _is_chosen(self.env.named(call, texts[place]))), None)
        if not self.env.said(call, heard.text):
            return None
        if _is_chosen(self.env.named(call, heard.text)):
            return len(texts)
        marked = [found for text in _marked(heard.completion.text) if (found := self.env.named(call, text))]
        single = [found for found in marked if all(len(set(entry.values)) == 1 for entry in found)]
        few = len({found[0].values for found in single}) <= FEW
        return len(texts) if few and any(_is_chosen(found) for found in single) else None

    def _explicit(self, call: ToolCall, completion: Completion) -> list[str]:
        """Returns the texts that a completion itself sets apart as its call, in order, of the plainest form it has."""
        informing = {tool.name for tool in self.env.tools if not tool.commits}
        native = completion.tool_calls or _written_calls(completion.text)
        text = completion.text
        for form in (
            [_arguments(made) for made in native if made.name not in informing],
            _tagged(call.name, text),
            _fields((call.name, *call.arguments), text),
            _boxed(text),
        ):
            found = [part for part in form if any(entry.values for entry in self.env.named(call, part))]
            if found:
                return found
        return []

    def _made(self, call: ToolCall, heard: Sequence[Heard]) -> None:
        """Notes a commit: the first heard one chose it, all of them named options."""
        self._commits += 1
        named = [entry.values for item in heard for entry in self.env.named(call, item.text)]
        self._options.append(float(len({value for values in named for value in values})))
        prompt = self.env.named(call, heard[0].prompt)
        shares = [_copies(entry) for entry in prompt]
        self._copied.append((min(s[0] for s in shares), min(s[1] for s in shares), min(s[2] for s in shares)))

    def _refuse(self, kind: str, why: str) -> str:
        self.refused[kind] = self.refused.get(kind, 0) + 1
        return f"refused: {why}"


COPIED = ("copied_first", "copied_last", "copied_any")
"""Names of the shares that a reader without skill finds in the prompt, see `CommitRule.metrics`."""


def _copies(prompt: Named) -> tuple[float, float, float]:
    """Returns how likely one commits the value who takes the first, the last, or any value of the prompt."""
    if not prompt.exact or prompt.value is None or prompt.value not in prompt.values:
        return 0.0, 0.0, 0.0
    first, last = (float(prompt.values[place] == prompt.value) for place in (0, -1))
    return first, last, 1.0 / len(set(prompt.values))


def _is_chosen(named: Sequence[Named]) -> bool:
    return bool(named) and all(entry.chosen for entry in named)


def _arguments(call: ToolCall) -> str:
    return "\n".join(str(value) for value in leaves(dict(call.arguments)))


def _texts(call: ToolCall) -> ToolCall:
    """The call with its texts alone: how many results are wanted is nothing that the model must say."""
    values = {name: value for name, value in call.arguments.items() if isinstance(value, str)}
    return ToolCall(call.name, values or call.arguments)


def _written_calls(text: str) -> list[ToolCall]:
    if "<tool_call>" not in text and "<function=" not in text:
        return []
    found = toolcalls.parse(text, "qwen_xml" if "<function=" in text else "hermes")
    return [item for item in found if isinstance(item, ToolCall)]


def _tagged(name: str, text: str) -> Iterator[str]:
    """Yields what stands in tags of a name; one that is cut off, or that a prefix opened, counts too."""
    marks = list(re.finditer(rf"<(/?){re.escape(name)}>", text))
    begin: int | None = None
    if marks and marks[0][1]:  # a prefix opened it
        begin = text[: marks[0].start()].rstrip().rfind("\n") + 1
    for mark in marks:
        if begin is not None:
            yield text[begin : mark.start()]
        begin = None if mark[1] else mark.end()
    if begin is not None:
        yield text[begin:]


_MARKED = re.compile(r"<(\w[\w-]*)>([^<>]{1,200})</\1>")


def _marked(text: str) -> list[str]:
    """Returns what stands in tags of any name."""
    return [match[2] for match in _MARKED.finditer(text)]


def _fields(names: Sequence[str], text: str) -> Iterator[str]:
    """Yields the values of JSON fields of some names."""
    keys = "|".join(map(re.escape, names))
    for match in re.finditer(rf'"(?:{keys})"\s*:\s*("(?:[^"\\]|\\.)*"|-?[\d.]+)', text):
        yield match[1].strip('"')


def _boxed(text: str) -> Iterator[str]:
    for match in re.finditer(r"\\(?:boxed|fbox)\s*\{", text):
        depth, place = 1, match.end()
        while place < len(text) and depth:
            depth += {"{": 1, "}": -1}.get(text[place], 0)
            place += 1
        yield text[match.end() : place - (not depth)]
