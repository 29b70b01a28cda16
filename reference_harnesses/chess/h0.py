"""Chess, the plain starting harness: the paper's in spirit."""

from __future__ import annotations

from collections.abc import Sequence

from harness_sdk import Episode, Harness, Message, ParseFailure, ToolSchema, ToolSpec


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
