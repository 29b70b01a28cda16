"""Chess, the plain starting harness."""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness_sdk import Completion, Episode, Harness, Message, ParseFailure, ToolCall, ToolSchema, ToolSpec


class ChessH0(Harness):
    """Shows the position and the legal moves, asks for one of them, and takes the move that the reply names."""

    system = "You are solving a chess puzzle. Find the best move for the side to move."
    instructions = "Answer with the best of the legal moves.\nBest move:"
    max_turns = 16
    max_failures = 2
    max_tokens_per_turn = 8

    def tools(self, env_tools: Sequence[ToolSpec]) -> list[ToolSchema]:
        """Shows no native tools: a move needs no form."""
        return []

    def pack(self, episode: Episode) -> list[Message]:
        """Shows the current position; a failed reply is not shown, each try begins from a clean prompt."""
        return [
            {"role": "system", "content": self.system},
            {"role": "user", "content": f"{self.show(episode)}\n\n{self.instructions}"},
        ]

    def show(self, episode: Episode) -> str:
        """Writes the position as FEN and the legal moves in SAN, in the order in which they come."""
        data = episode.observation.data
        moves = " ".join(move["san"] for move in data["legal_moves"])
        return f"side to move: {data['side_to_move']}\nfen: {data['fen']}\nlegal moves: {moves}"

    def parse(self, completion: Completion, episode: Episode) -> list[ToolCall] | ParseFailure:
        """Takes the legal move that the reply names, in SAN or UCI: the first of at most three, else the last one."""
        legal = {}
        for move in episode.observation.data["legal_moves"]:
            legal[move["uci"]] = legal[move["san"].rstrip("+")] = move["uci"]
        words = [word.rstrip("+#") for word in re.findall(r"[\w=+#-]+", completion.text)]
        named = [legal[word] for word in words if word in legal]
        if not named:
            return ParseFailure("the reply names no legal move")
        return [ToolCall("move", {"uci": named[0] if len(set(named)) <= 3 else named[-1]})]
