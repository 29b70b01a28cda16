"""Chess, hand-written: what a person writes after an afternoon with a small model."""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness_sdk import Completion, Episode, Harness, Message, ParseFailure, ToolCall, ToolSchema, ToolSpec


class ChessStrong(Harness):
    """A short prompt, one SAN list in the order given, and a parser that takes a move however it is written."""

    system = "Chess puzzle. Answer with the winning move."
    max_turns = 16
    max_failures = 2
    max_tokens_per_turn = 12

    def tools(self, env_tools: Sequence[ToolSpec]) -> list[ToolSchema]:
        """Shows no native tools."""
        return []

    def pack(self, episode: Episode) -> list[Message]:
        """Lists the legal moves in SAN, as they come: an order by worth would answer in the model's place."""
        data = episode.observation.data
        sans = [move["san"] for move in data["legal_moves"]]
        user = f"{data['side_to_move']} to move. Moves: {' '.join(sans)}\nBest move:"
        return [{"role": "system", "content": self.system}, {"role": "user", "content": user}]

    def parse(self, completion: Completion, episode: Episode) -> list[ToolCall] | ParseFailure:
        """Takes the word that is a legal move in UCI or SAN: the first of at most three moves, else the last one."""
        legal = {}
        for move in episode.observation.data["legal_moves"]:
            legal[move["uci"]] = legal[_bare(move["san"])] = move["uci"]
        named: list[str] = []
        for word in re.findall(r"[A-Za-z0-9=+#-]+", completion.text):
            if _bare(word) in legal:
                named.append(legal[_bare(word)])
        if not named:
            return ParseFailure("no legal move in the reply")
        return [ToolCall("move", {"uci": named[0] if len(set(named)) <= 3 else named[-1]})]


def _bare(move: str) -> str:
    return move.rstrip("+#!?").replace("=", "").lower() if move[:1].islower() else move.rstrip("+#!?").replace("=", "")
