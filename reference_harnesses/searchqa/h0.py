"""Question answering, the plain starting harness: the paper's in spirit, one passage of 200 tokens, two turns."""

from __future__ import annotations

from collections.abc import Sequence

from harness_sdk import Harness, ToolCall, Tools, ToolSchema, ToolSpec

WORDS = 150
"""Words of a passage that come to about 200 tokens."""


class SearchQAH0(Harness):
    """One search, one passage, one answer."""

    instructions = "Search with <search>words</search>. Answer with <answer>a name, a number or a phrase</answer>."
    max_turns = 2
    max_failures = 2
    max_tokens_per_turn = 16384
    stop_strings = ("</search>", "</answer>")

    def tools(self, env_tools: Sequence[ToolSpec]) -> list[ToolSchema]:
        """Shows no native tools: the prompt explains the tags."""
        return []

    def act(self, call: ToolCall, env: Tools) -> str:
        """Searches for a single passage and cuts it."""
        if call.name != "search":
            return env.step(call).text
        result = env.step(ToolCall("search", {"query": call.arguments["query"], "k": 1}))
        return result.text if result.error is not None else " ".join(result.text.split()[:WORDS])
