"""Chess puzzles: find the line's moves, one ``move(uci)`` at a time; replies are played by the environment.

The rules of judging are `whale_env.chess.verifier`, the files `whale_env.chess.puzzles`. This file shows the position
and connects the two to the domain protocols.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import chess

from whale_env.chess.puzzles import EMBEDDED, Puzzle, load_puzzles
from whale_env.chess.verifier import LineState, moves_in, parse_move, said_in, start_line
from whale_env.commit import Named, said_verbatim
from whale_env.core import DomainSpec, Easy, Outcome, ToolEnv
from whale_env.errors import InputError
from whale_env.splits import Plan, Source, plan_of
from whale_env.text_files import stamp
from whale_env.types import Observation, Score, Split, Task, ToolCall, ToolSpec

MOVE = ToolSpec(
    "move",
    "Plays a move for the side to move.",
    {
        "type": "object",
        "properties": {"uci": {"type": "string", "description": "The move in UCI, e.g. e2e4 or e7e8q."}},
        "required": ["uci"],
    },
    commits=True,
)


def chess_env(
    *,
    source: Source = None,
    tiers: Sequence[str] | None = None,
    themes: Sequence[str] | None = None,
    rating: Sequence[int] | None = None,
    max_legal: int | None = None,
    limit: int | None = None,
    split: Split = "train",
    render_mode: str | None = None,
) -> ToolEnv:
    """Makes the chess environment (``whale/Chess-v0``).

    Args:
        source: A Lichess puzzle file (``.csv`` or ``.csv.zst``), several, or a mapping from split to those, e.g.
            ``{"train": "train.csv", "search": "search.csv", "test": "test.csv"}``. None takes the embedded puzzles.
        tiers: Keep these tiers (`whale_env.chess.puzzles.tier_of`), e.g. ``["1"]``.
        themes: Keep puzzles with one of these Lichess themes, e.g. ``["mateIn1"]``.
        rating: Keep puzzles rated ``[lowest, highest]``.
        max_legal: Keep puzzles that begin with at most so many legal moves.
        limit: Keep the first so many puzzles.
        split: Where ``reset()`` draws from.
        render_mode: ``"ansi"``, ``"svg"`` or None.

    Returns:
        The environment.

    Raises:
        whale_env.chess.puzzles.PuzzleFileError: The file cannot be read, a row is bad, or nothing is left.
        InputError: A filter makes no sense.
    """
    if rating is not None and len(rating) != 2:
        raise InputError(f"rating must be [lowest, highest], not {rating!r}")
    puzzles = _load(
        (plan := plan_of(source or str(EMBEDDED))),
        None if tiers is None else tuple(tiers),
        None if themes is None else tuple(themes),
        None if rating is None else (int(rating[0]), int(rating[1])),
        max_legal,
        limit,
        stamp(*(name for name, _ in plan)),
    )
    return ToolEnv(ChessDomain(puzzles), split=split, render_mode=render_mode)


@lru_cache(maxsize=8)
def _load(
    plan: Plan,
    tiers: tuple[str, ...] | None,
    themes: tuple[str, ...] | None,
    rating: tuple[int, int] | None,
    max_legal: int | None,
    limit: int | None,
    files: Hashable,
) -> tuple[Puzzle, ...]:
    """Loads puzzles, or finds them again if the stamp of the ``files`` is the same.

    A position of a file kept for testing is not taken from another one.
    """
    found: dict[str, Puzzle] = {}
    for name, splits in sorted(plan, key=lambda part: "train" in part[1]):
        kept = load_puzzles(Path(name), tiers=tiers, themes=themes, rating=rating, max_legal=max_legal, limit=limit)
        for puzzle in kept:
            found.setdefault(puzzle.key, replace(puzzle, among=splits))
    return tuple(found.values())[:limit]


class ChessDomain:
    """Chess puzzles as a `whale_env.core.Domain`."""

    spec = DomainSpec(
        "chess",
        (MOVE,),
        max_steps=32,
        max_invalid=4,
        easy=Easy({"themes": ["mateIn1"], "max_legal": 20}, calls=8, tokens=128),
        baseline="reference_harnesses.chess.h0:ChessH0",
    )

    def __init__(self, puzzles: Sequence[Puzzle]) -> None:
        """Sorts puzzles into splits.

        Args:
            puzzles: The puzzles; their answers stay inside.
        """
        self._puzzles = {puzzle.id: puzzle for puzzle in puzzles}
        self._tasks: dict[Split, list[Task]] = {"train": [], "search": [], "test": []}
        for puzzle in puzzles:
            self._tasks[puzzle.split].append(
                Task(puzzle.id, "chess", puzzle.split, {"tier": puzzle.tier, "rating": puzzle.rating})
            )

    def tasks(self, split: Split) -> Sequence[Task]:
        """Returns the public tasks of a split, in file order."""
        return self._tasks[split]

    def start(self, task: Task, seed: int) -> ChessSession:
        """Opens a puzzle; nothing in it is random."""
        puzzle = self._puzzles[task.id]
        return ChessSession(start_line(puzzle.fen, puzzle.moves))


class ChessSession:
    """One puzzle in progress."""

    def __init__(self, state: LineState) -> None:
        self._state = state
        self._tried = self._legal = 0

    def observe(self) -> Observation:
        """Shows the side to move, FEN, board, last reply, own accepted moves, and the legal moves as UCI and SAN.

        Nothing in it is the work of a solver: a mate looks like any check.
        """
        board = self._state.board
        over = self._state.verdict in ("solved", "failed")
        legal = [] if over else [{"uci": move.uci(), "san": _san(board, move)} for move in _in_order(board)]
        before = board.copy()
        reply = before.pop() if self._state.reply is not None else None
        data: dict[str, Any] = {
            "side_to_move": chess.COLOR_NAMES[board.turn],
            "fen": board.fen(),
            "board": str(board),
            "last_reply": None if reply is None else {"uci": reply.uci(), "san": _san(before, reply)},
            "accepted_moves": [move.uci() for move in self._state.played],
            "legal_moves": legal,
        }
        if over:
            return Observation(f"The puzzle is over: {self._state.verdict}.\n{data['board']}", data)
        lines = [
            f"Side to move: {data['side_to_move']}",
            f"FEN: {data['fen']}",
            f"Board:\n{data['board']}",
            "Opponent's last move: " + ("none" if reply is None else f"{reply.uci()} ({_san(before, reply)})"),
            "Your accepted moves: " + (" ".join(data["accepted_moves"]) or "none"),
            "Legal moves: " + ", ".join(f"{move['uci']} ({move['san']})" for move in legal),
        ]
        return Observation("\n".join(lines), data)

    def apply(self, call: ToolCall) -> Outcome:
        """Plays a move; one that is not legal is an error and changes nothing."""
        self._tried += 1
        text = str(call.arguments["uci"])
        after = self._state.play(text)
        if after.verdict == "illegal":
            return Outcome(self.observe(), f"{text!r:.40} is not a legal move here")
        self._legal += 1
        self._state = after
        return Outcome(self.observe(), None, after.verdict != "incomplete")

    def said(self, call: ToolCall, text: str) -> bool:
        """Whether the text has the move in UCI, SAN or a castling alias."""
        move = parse_move(self._state.board, str(call.arguments.get("uci", "")))
        return said_verbatim(call, text) if move is None else said_in(self._state.board, move, text)

    def named(self, call: ToolCall, text: str) -> list[Named]:
        """Returns the legal moves that the text names."""
        board, given = self._state.board, str(call.arguments.get("uci", ""))
        move = parse_move(board, given)
        if move is None:  # it can only be refused: where it was said, it is as good as chosen
            return [Named((given,) if said_verbatim(call, text) else (), given)]
        return [Named(tuple(named.uci() for named in moves_in(board, text)), move.uci())]

    def score(self) -> Score:
        """1 when the line is solved."""
        metrics = {"legality": self._legal / self._tried} if self._tried else {}
        match self._state.verdict:
            case "solved":
                return Score(1.0, None, metrics)
            case "failed":
                return Score(0.0, "wrong", metrics)
            case _:
                return Score(0.0, "budget", metrics)

    def svg(self) -> str:
        """Draws the board as SVG, the last move marked."""
        import chess.svg

        board = self._state.board
        last = board.move_stack[-1] if board.move_stack else None
        return str(chess.svg.board(board, lastmove=last, orientation=board.turn))


def _in_order(board: chess.Board) -> list[chess.Move]:
    """Legal moves in an arbitrary order, the same for the same position.

    Any order that follows from the moves says something about their worth: sorted by UCI, the first move mates in 10 %
    of the easy puzzles, where 6 % are due.
    """
    fen = board.fen()
    return sorted(board.legal_moves, key=lambda move: hashlib.sha256(f"{fen} {move.uci()}".encode()).digest())


def _san(board: chess.Board, move: chess.Move) -> str:
    """Returns a move in SAN, a mate marked ``+`` like any check: to tell the two apart is the puzzle."""
    return board.san(move).replace("#", "+")
