"""Chess: the plain starting harness and a strong hand-written one.

`ChessH0` follows the paper's: the full observation, one ``<move>uci</move>`` a turn, one retry after a reply without a
move and one after an illegal move. `ChessStrong` is what a person writes after an afternoon with a small model.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness_sdk import Completion, Episode, Harness, Message, ParseFailure, ToolCall, ToolSchema, ToolSpec


class ChessH0(Harness):
    """Shows everything, asks for one tagged move, retries once each after a format and a legality failure."""

    system = "You are solving a chess puzzle. Find the best move for the side to move."
    instructions = "Reply with your move in UCI inside tags and nothing else, like this: <move>e2e4</move>"
    max_turns = 16
    max_failures = 3
    max_tokens_per_turn = 24
    stop_strings = ("</move>",)

    def tools(self, env_tools: Sequence[ToolSpec]) -> list[ToolSchema]:
        """Shows no native tools: the prompt explains the tag."""
        return []

    def pack(self, episode: Episode) -> list[Message]:
        """Shows the current observation, then what went wrong since the last accepted move."""
        messages: list[Message] = [
            {"role": "system", "content": self.system},
            {"role": "user", "content": f"{episode.observation.text}\n\n{self.instructions}"},
        ]
        for turn in _since_last_move(episode):
            messages.append({"role": "assistant", "content": turn[0]})
            messages.append({"role": "user", "content": turn[1]})
        return messages

    def recover(self, failure: ParseFailure, episode: Episode) -> str | None:
        """Gives one more try per kind of failure and accepted move."""
        illegal = [turn.failure.kind == "illegal" for turn in episode.turns if turn.failure is not None]
        if (failure.kind == "illegal") in illegal:
            return None
        if failure.kind == "illegal":
            return f"{failure.reason}. Choose a move from the list of legal moves. {self.instructions}"
        return f"Your reply has no move in tags. {self.instructions}"


def _since_last_move(episode: Episode) -> list[tuple[str, str]]:
    failed: list[tuple[str, str]] = []
    for turn in episode.turns:
        if turn.failure is None:
            failed.clear()
        else:
            failed.append((turn.completion.text, turn.feedback or ""))
    return failed


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
