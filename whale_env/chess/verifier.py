"""The chess verifier: reads moves, follows a puzzle line, and says whether a text contains a move.

A puzzle is a position *before* the opponent's last move (the trigger) and a line of UCI moves that begins with that
trigger: trigger, solver, reply, solver, … Everything that judges a move lives here, so that the environment's step,
the one-shot `chess_line` and the commit rule cannot disagree.

What it does NOT cover: puzzle files (`whale_env.chess.puzzles`), pulling a move out of prose (a harness does that),
engines, Chess960.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import chess

from whale_env.errors import InputError

Verdict = Literal["solved", "failed", "illegal", "incomplete"]
"""``incomplete`` while the line goes on; ``illegal`` when the text is no legal move; the other two end the puzzle."""

_LONGEST_MOVE = 16
"""Characters of the longest text that can be one move, annotations included (``Qa1xb2=Q+!?`` has 11)."""

_UCI = re.compile(r"([a-h][1-8][a-h][1-8])(?:=?([qrbnQRBN]))?", re.ASCII)
_SAN = re.compile(r"(?:O-O(?:-O)?|0-0(?:-0)?|(?![-x])[NBRQK]?[a-h]?[1-8]?[-x]?[a-h][1-8](?:=?[qrbnQRBN])?)", re.ASCII)

# A word of the text: letters, digits and '_', joined by '-' (O-O-O, Ng1-f3) or '@' (a drop), with the promotion that
# '=' may carry. Longer words are kept whole, so a move inside one is not found.
_WORD = re.compile(r"[\w@]+(?:-[\w@]+)*(?:=[qrbnQRBN](?!\w))?")


class LineError(InputError):
    """A position or a line that is not legal chess. The message holds the offending value."""


def read_position(fen: str) -> chess.Board:
    """Reads a FEN and checks that the position is legal.

    Fields after the side to move may be missing and spaces may be doubled. An en passant square that the position
    rules out is dropped: writers disagree on when to set it, and it changes no legal move.

    Raises:
        LineError: The FEN cannot be read, or the position is not legal.
    """
    try:
        board = chess.Board(fen)
    except ValueError as error:
        raise LineError(f"FEN {fen!r} cannot be read: {error}") from None
    status = board.status()
    if status & chess.STATUS_INVALID_EP_SQUARE:
        board.ep_square = None
        status = board.status()
    if status != chess.STATUS_VALID:
        faults = ", ".join(flag.name.lower().replace("_", " ") for flag in chess.Status if flag & status and flag.name)
        raise LineError(f"FEN {fen!r} is not a legal position: {faults}")
    return board


def parse_move(board: chess.Board, text: str) -> chess.Move | None:
    """Returns the one legal move that a text denotes, or None.

    The text must be the move and nothing else, surrounding whitespace aside:

    * UCI, castling as the king's step (``e1g1``) or as king takes rook (``e1h1``), the promotion letter in either
      case and with or without ``=`` (``e7e8q``, ``e7e8Q``, ``e7e8=Q``). A missing letter is never filled in;
    * SAN where it is unambiguous, castling with letters or zeros (``O-O``, ``0-0``), a longer form than needed
      allowed (``Ng1f3``, ``e2-e4``);
    * either with annotations at the end (``+ # ! ?``), which are not checked.

    Null moves, drops, prose and markup are no moves. Time is bounded for any text.
    """
    token = text.strip()
    if len(token) > _LONGEST_MOVE:
        return None
    token = token.rstrip("+#!?")
    if uci := _UCI.fullmatch(token):
        try:
            move = board.parse_uci(uci[1] + (uci[2] or "").lower())
        except ValueError:
            return None
        return None if uci[2] and not move.promotion else move  # "e1g1q" is read as castling
    if _SAN.fullmatch(token):
        try:
            return board.parse_san(token)
        except ValueError:
            return None
    return None


def said_in(board: chess.Board, move: chess.Move, text: str) -> bool:
    """Says whether a text contains a move, as a word of its own, in any notation that `parse_move` reads.

    This is the comparison behind the commit rule. A word is a run of letters and digits, so ``e2e4`` is not in
    ``e2e4x``, ``Nf3`` not in ``Nf3e5``, ``e4`` not in ``e2e4``, ``O-O`` not in ``O-O-O``; punctuation, quotes, tags
    and Markdown around a word do not matter. SAN counts for the move that it denotes on this board, and for none when
    it is ambiguous.

    Args:
        board: The position in which the move would be played. Not changed.
        move: A legal move there.
        text: What the model wrote.
    """
    target = board.uci(move)[2:4]
    castles = board.is_castling(move)
    words = {word.strip("_") for word in _WORD.findall(text)}
    return any(
        parse_move(board, word) == move for word in words if len(word) <= _LONGEST_MOVE and (castles or target in word)
    )


def moves_in(board: chess.Board, text: str) -> list[chess.Move]:
    """Returns the legal moves that a text names, in order, each as a word of its own (see `said_in`)."""
    known: dict[str, chess.Move | None] = {}
    found = []
    for match in _WORD.finditer(text):
        word = match[0].strip("_")
        if word not in known:
            known[word] = parse_move(board, word) if len(word) <= _LONGEST_MOVE else None
        move = known[word]
        if move is not None:
            found.append(move)
    return found


@dataclass(frozen=True, slots=True)
class LineState:
    """A puzzle in progress: where the solver stands and what the line still holds.

    States are values: `play` returns the next one and leaves this one as it is, so a caller that forgives an illegal
    move simply keeps the state it had.

    Attributes:
        board: The position, the solver to move while the verdict is ``incomplete``. Its ``move_stack`` is the game so
            far: the trigger, then the solver's moves and the replies in turn. Read it, never push to it.
        rest: The moves still to come: solver, reply, solver, …
        verdict: What is known so far.
    """

    board: chess.Board
    rest: tuple[chess.Move, ...]
    verdict: Verdict = "incomplete"

    @property
    def reply(self) -> chess.Move | None:
        """The opponent's last move: the trigger at first; None once the solver's move has ended the puzzle."""
        stack = self.board.move_stack
        return stack[-1] if len(stack) % 2 else None

    @property
    def played(self) -> tuple[chess.Move, ...]:
        """The solver's accepted moves."""
        return tuple(self.board.move_stack[1::2])

    def play(self, text: str) -> LineState:
        """Plays one move of the solver, and the reply when the line goes on.

        The move must be the line's next one; any move that mates at once solves too. After the end, moves are refused:
        the state comes back as it is.

        Args:
            text: The move, in a notation that `parse_move` reads. Anything else gives the verdict ``illegal``.
        """
        if self.verdict != "incomplete":
            return self
        move = parse_move(self.board, text) if isinstance(text, str) else None
        if move is None:
            return replace(self, verdict="illegal")
        board = self.board.copy()
        board.push(move)
        if board.is_checkmate():
            return LineState(board, (), "solved")
        if move != self.rest[0]:
            return LineState(board, (), "failed")
        if len(self.rest) <= 2:
            return LineState(board, (), "solved")
        board.push(self.rest[1])
        return LineState(board, self.rest[2:])


def start_line(fen: str, moves: str) -> LineState:
    """Checks a puzzle, plays its trigger and returns the state in which the solver is to move.

    Args:
        fen: The position before the trigger.
        moves: The line in UCI, separated by spaces, trigger first.

    Raises:
        LineError: The position or a move of the line is not legal, or the solver has no move in it.
    """
    board = read_position(fen)
    after = board.copy()
    line: list[chess.Move] = []
    for number, uci in enumerate(moves.split(), start=1):
        try:
            move = after.parse_uci(uci)
        except ValueError:
            move = chess.Move.null()
        if not move:
            raise LineError(f"move {number} of the line {moves!r} is not a legal UCI move: {uci!r} in {after.fen()!r}")
        line.append(move)
        after.push(move)
    if len(line) < 2:
        raise LineError(f"the line {moves!r} has {len(line)} moves; it needs the trigger and a move of the solver")
    board.push(line[0])
    return LineState(board, tuple(line[1:]))


def chess_line(fen: str, moves: str, played: Sequence[str]) -> Verdict:
    """Judges the solver's moves against a puzzle line.

    The trigger and the replies are played by themselves. The first move that is not legal, or not the line's, decides;
    any move that mates at once solves, whichever ply it is; moves after the end change nothing. No moves at all, or too
    few of them, are ``incomplete``.

    Args:
        fen: The position before the trigger.
        moves: The line in UCI, separated by spaces, trigger first.
        played: The solver's moves only, each in a notation that `parse_move` reads.

    Raises:
        LineError: The puzzle itself is not legal (whatever was played).
        TypeError: ``played`` is a single string.
    """
    if isinstance(played, str):
        raise TypeError(f"played must be a sequence of moves, not a string. Did you mean [{played[:20]!r}]?")
    state = start_line(fen, moves)
    for text in played:
        state = state.play(text)
        if state.verdict != "incomplete":
            break
    return state.verdict
