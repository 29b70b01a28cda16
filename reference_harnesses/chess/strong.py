"""Chess, hand-written: what a person writes after an afternoon with a small model."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from harness_sdk import Completion, Episode, Harness, Message, ParseFailure, ToolCall, ToolSchema, ToolSpec, seeded


class ChessStrong(Harness):
    """A short prompt, the legal moves in another order at each call, and a vote of up to five replies."""

    system = "Chess puzzle. Answer with the winning move."
    max_turns = 32
    max_failures = 2
    max_tokens_per_turn = 8
    votes = 5

    def tools(self, env_tools: Sequence[ToolSpec]) -> list[ToolSchema]:
        """Shows no native tools."""
        return []

    def pack(self, episode: Episode) -> list[Message]:
        """Lists the legal moves in SAN, each on a line of its own; where a move stands in the list means nothing."""
        data = episode.observation.data
        moves = [move["san"] for move in data["legal_moves"]]
        seeded(episode).shuffle(moves)
        user = f"{data['side_to_move']} to move. Moves:\n" + "\n".join(moves) + "\nBest move:"
        return [{"role": "system", "content": self.system}, {"role": "user", "content": user}]

    def parse(self, completion: Completion, episode: Episode) -> list[ToolCall] | ParseFailure:
        """Asks again until one move has most of the votes, or all votes are given."""
        replies: list[str] = []  # since the last move
        for turn in episode.turns:
            replies = [] if turn.calls else [*replies, turn.completion.text]
        replies.append(completion.text)
        votes = Counter(move for reply in replies if (move := self.named(reply, episode)))
        most = max(votes.values(), default=0)
        if len(replies) < self.votes and most * 2 <= self.votes:
            return []
        if not votes:
            return ParseFailure("no legal move in the replies")
        return [ToolCall("move", {"uci": votes.most_common(1)[0][0]})]

    def named(self, text: str, episode: Episode) -> str:
        """Returns the legal move that a reply names, in UCI or SAN: the first of at most three, else the last one."""
        legal: dict[str, str] = {}
        for move in episode.observation.data["legal_moves"]:
            legal[move["uci"]] = legal[_bare(move["san"])] = move["uci"]
        found = [legal[word] for word in map(_bare, re.findall(r"[A-Za-z0-9=+#-]+", text)) if word in legal]
        if len(set(found)) > 3:
            return found[-1]
        return found[0] if found else ""


def _bare(move: str) -> str:
    return move.rstrip("+#").replace("=", "")
