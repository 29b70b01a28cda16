"""Question answering, hand-written: forced search, merged passages, titles seen, examples."""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness_sdk import Completion, Episode, Harness, Message, ParseFailure, ToolCall, Tools, ToolSchema, ToolSpec
from harness_sdk.toolcalls import parse

WORDS = 150
"""Words of a passage that come to about 200 tokens."""


class SearchQAStrong(Harness):
    """Forced search with the question's own words, merged evidence, worked examples, and a second search on request."""

    system = (
        "Answer the question from the passages. Write the answer as short as you can, like <answer>Rome</answer>. "
        "If the passages lack it, search for what you have learned, like <search>Italy currency</search>."
    )
    instructions = ""
    nudge = "Reply with <answer>…</answer>, or with <search>…</search> in words not tried yet."
    last_text = "Answer now with <answer>…</answer>."
    prompt_attributes = ("system", "instructions", "nudge", "last_text")
    examples = (
        (
            "Passages:\n[1] Oslo\nOslo is the capital of Norway. It lies on a fjord.\n\n"
            "Question: Of which country is Oslo the capital?",
            "<answer>Norway</answer>",
        ),
        (
            "Passages:\n[1] Norway: geography\nThe capital of Norway is Oslo. It has land borders with Sweden.\n\n"
            "Question: What is the currency of the country whose capital is Oslo?",
            "<search>currency of Norway</search>",
        ),
    )
    max_turns = 5
    max_failures = 3
    max_tokens_per_turn = 256
    stop_strings = ("</search>", "</answer>")
    passages_per_search = 3
    passages_shown = 5

    def __init__(self) -> None:
        self._evidence: dict[str, tuple[str, str]] = {}
        self._tried: list[str] = []

    def tools(self, env_tools: Sequence[ToolSpec]) -> list[ToolSchema]:
        """Shows no native tools: the system text explains the tags."""
        return []

    def pack(self, episode: Episode) -> list[Message]:
        """Shows the examples, then the newest passages, the state of the search, and the question."""
        messages: list[Message] = [{"role": "system", "content": self.system}]
        for asked, answered in self.examples:
            messages.append({"role": "user", "content": asked})
            messages.append({"role": "assistant", "content": answered})
        shown = list(self._evidence.values())[-self.passages_shown :]
        parts = [f"Passages:\n{_listed(shown)}"] if shown else []
        if self._tried:
            titles = "; ".join(title for title, _ in self._evidence.values() if title)
            parts.append(f"Tried: {'; '.join(self._tried)}. Titles seen: {titles or 'none'}.")
        parts.append(f"Question: {episode.first.text}")
        if self.instructions:
            parts.append(self.instructions)
        failed = episode.turns[-1].feedback if episode.turns else None
        if len(episode.turns) == self.max_turns - 1:
            parts.append(self.last_text)
        elif failed:
            parts.append(failed)
        messages.append({"role": "user", "content": "\n\n".join(parts)})
        return messages

    def parse(self, completion: Completion, episode: Episode) -> list[ToolCall] | ParseFailure:
        """Reads the tag; the first answer is held back until the question itself has been searched for."""
        found = parse(completion.text, "tags", episode.tools)
        calls = [item for item in found if isinstance(item, ToolCall) and item.name in ("search", "answer")]
        searched = ToolCall("search", {"query": episode.first.text})
        if not self._tried and (not calls or calls[-1].name == "answer"):
            return [searched]
        if not calls:
            return next((item for item in found if isinstance(item, ParseFailure)), ParseFailure(self.nudge))
        call = calls[-1]
        if call.name == "search" and _same(str(call.arguments.get("query", "")), self._tried):
            return ParseFailure("that has been searched for already")
        return [call]

    def act(self, call: ToolCall, env: Tools) -> str:
        """Searches and keeps what is new; answers go through."""
        if call.name != "search":
            return env.step(call).text
        query = _rewritten(str(call.arguments["query"]))
        result = env.step(ToolCall("search", {"query": query, "k": self.passages_per_search}))
        if result.error is not None:
            return result.error
        self._tried.append(query)
        found = result.observation.data.get("passages", ())
        for passage in reversed(list(found)):
            text = str(passage["text"])
            self._evidence.pop(text[:200], None)
            self._evidence[text[:200]] = (str(passage["title"]), " ".join(text.split()[:WORDS]))
        return f"{len(self._evidence)} passages"

    def recover(self, failure: ParseFailure, episode: Episode) -> str | None:
        """Says what went wrong and what to write."""
        return f"Not usable: {failure.reason}. {self.nudge}"


def _rewritten(query: str) -> str:
    """Drops the words that only make a query a question."""
    filler = {"what", "which", "who", "whom", "whose", "when", "where", "how", "is", "are", "was", "were", "do", "does"}
    kept = [word for word in re.findall(r"\.?\w[\w'-]*", query) if word.lower() not in filler]
    return " ".join(kept) or query


def _same(query: str, tried: Sequence[str]) -> bool:
    return _rewritten(query).lower() in {query.lower() for query in tried}


def _listed(passages: Sequence[tuple[str, str]]) -> str:
    return "\n\n".join(f"[{place}] {title}\n{text}" for place, (title, text) in enumerate(passages, 1))
