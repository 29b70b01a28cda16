"""Chess, hand-written: what a person writes after an afternoon with a small model."""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness_sdk import Completion, Episode, Harness, Message, ParseFailure, ToolCall, ToolSchema, ToolSpec


class ChessStrong(Harness):
    """A short prompt, one SAN list with forcing moves first, and a parser that takes a move however it is written."""

    system = "Chess puzzle. Answer with the winning move."
    max_turns = 16
    max_failures = 2
    max_tokens_per_turn = 12

    def tools(self, env_tools: Sequence[ToolSpec]) -> list[ToolSchema]:
        """Shows no native tools."""
        return []

    def pack(self, episode: Episode) -> list[Message]:
        """Lists the legal moves in SAN: mates, checks, captures, the rest."""
        data = episode.observation.data
        sans = sorted((move["san"] for move in data["legal_moves"]), key=_forcing)
        user = f"{data['side_to_move']} to move. Moves: {' '.join(sans)}\nBest move:"
        return [{"role": "system", "content": self.system}, {"role": "user", "content": user}]

    def parse(self, completion: Completion, episode: Episode) -> list[ToolCall] | ParseFailure:
        """Takes the first word that is a legal move in UCI or SAN."""
        legal = {}
        for move in episode.observation.data["legal_moves"]:
            legal[move["uci"]] = legal[_bare(move["san"])] = move["uci"]
        for word in re.findall(r"[A-Za-z0-9=+#-]+", completion.text):
            if _bare(word) in legal:
                return [ToolCall("move", {"uci": legal[_bare(word)]})]
        return ParseFailure("no legal move in the reply")


def _forcing(san: str) -> tuple[int, str]:
    rank = 0 if "#" in san else 1 if "+" in san else 2 if "x" in san else 3
    return rank, san


def _bare(move: str) -> str:
    return move.rstrip("+#!?").replace("=", "").lower() if move[:1].islower() else move.rstrip("+#!?").replace("=", "")
