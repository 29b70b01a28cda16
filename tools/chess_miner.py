"""Mines chess puzzles: plays games, finds positions with exactly one winning continuation, writes them as a file.

Games start from openings of random moves, from late middlegames and from small endgames, and both sides blunder. All
along, legal moves are looked at as the blunder (the trigger) that makes a puzzle; the position after it is one when

* mate in 1, 2 or 3 can be forced, and at each of the solver's turns exactly one move keeps the shortest mate. This is
  proved by exhaustive search with the rules alone; the reply in the line is one that holds out longest;
* or Stockfish's best move wins (at least +3.00) and its second best does not (at most +0.50).

Mates in 1 need no engine. For the longer mates and the tactics Stockfish plays the good moves and points at candidates,
with a fixed number of nodes on one thread.

Rows have the Lichess format plus the columns of `whale_env.chess.puzzles.EXTRA_COLUMNS`. Positions repeated or mirrored
are written once. A run is a function of its arguments: the same seed and the same engine give the same file, whatever
the number of processes; one that was interrupted is taken up by the same command. The file that ships with the package
was made with Stockfish 15.1 by::

    python -m tools.chess_miner --rows 5033 --seed 0 --out whale_env/data/chess_puzzles.csv.zst --processes 2

What it does NOT cover: reading puzzles (`whale_env.chess.puzzles`), judging solutions (`whale_env.chess.verifier`),
ratings from play: `difficulty` is a formula.
"""

from __future__ import annotations

import argparse
import csv
import io
import itertools
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import chess
import zstandard

from whale_env.chess.puzzles import COLUMNS, EXTRA_COLUMNS, position_key

Kind = Literal["mate1 few moves", "mate1", "mate2", "mate3", "tactic"]
"""What is counted when mining; ``few moves``: at most 25 legal moves."""

Row = dict[str, str | int]
"""A row of the file, by column name."""

SHARES: dict[Kind, float] = {
    "mate1 few moves": 0.4237,
    "mate1": 0.3408,
    "mate2": 0.1524,
    "mate3": 0.0211,
    "tactic": 0.0620,
}
"""How the rows are shared out when there is an engine."""

_BY_RULES: frozenset[Kind] = frozenset(("mate1 few moves", "mate1"))
_BY_ENGINE: frozenset[Kind] = frozenset(("mate2", "mate3", "tactic"))

_GAMES_A_BATCH = 64  # What is still wanted is looked up once a batch, so that the number of processes has no effect.
_LONGEST_GAME = 120  # Half-moves from an opening; games from later positions are a quarter of it.
_APART = 8  # Half-moves between two puzzles of one game; nearer ones would be one puzzle twice.
_BLUNDERS = 8  # Moves a position that the engine looks at as triggers.
_CORNERED = 3  # Most flight squares of a king that is looked at for mates in 1.
_PLAY_NODES = 400
_PROOF_NODES = 20_000
_WINS, _DOES_NOT_WIN = 300, 50  # Centipawns.
_MATE_SCORE = 100_000

_INFO = re.compile(r"multipv (?P<rank>\d+) score (?P<unit>cp|mate) (?P<number>-?\d+) nodes .* pv (?P<move>\w+)")
_VALUES = {chess.PAWN: 1, chess.KNIGHT: 3, chess.BISHOP: 3, chess.ROOK: 5, chess.QUEEN: 9, chess.KING: 100}
_PATIENCE = {2: 60, 3: 40}  # Most legal moves with which a mate in n is tried: the proof costs b^(2n-1).


# --- Forced mates, by the rules alone -------------------------------------------------------------------------------


def mating_moves(board: chess.Board) -> list[chess.Move]:
    """Returns all moves that mate at once."""
    return [move for move in board.legal_moves if board.gives_check(move) and _mates(board, move)]


def _mates(board: chess.Board, move: chess.Move) -> bool:
    board.push(move)
    mated = not any(board.generate_legal_moves())
    board.pop()
    return mated


def can_mate(board: chess.Board, n: int) -> bool:
    """Says whether the side to move forces mate within ``n`` of its moves. Exhaustive."""
    if n < 1:
        return False
    if n == 1:
        return any(board.gives_check(move) and _mates(board, move) for move in board.legal_moves)
    refutations: list[chess.Move] = []
    return any(_forces_mate(board, move, n, refutations) for move in _checks_first(board))


def _checks_first(board: chess.Board) -> list[chess.Move]:
    return sorted(board.legal_moves, key=board.gives_check, reverse=True)


def _forces_mate(board: chess.Board, move: chess.Move, n: int, refutations: list[chess.Move]) -> bool:
    """Says whether ``move`` forces mate within ``n`` moves, itself included.

    ``refutations`` carries replies that refuted sister moves; they are tried first.
    """
    board.push(move)
    try:
        replies = list(board.legal_moves)
        if not replies:
            return board.is_check()
        if n == 1:
            return False
        replies.sort(key=lambda reply: refutations.index(reply) if reply in refutations else len(refutations))
        for reply in replies:
            board.push(reply)
            holds = not can_mate(board, n - 1)
            board.pop()
            if holds:
                if reply in refutations:
                    refutations.remove(reply)
                refutations.insert(0, reply)
                return False
        return True
    finally:
        board.pop()


def mate_line(board: chess.Board, n: int, guess: chess.Move | None = None) -> list[chess.Move] | None:
    """Returns the line of a puzzle "mate in ``n``", or None when the position is not one.

    The shortest mate takes exactly ``n`` moves and at each turn one move alone keeps it. Of the replies that hold out
    longest the line has the first that allows this: captures before other moves, in a fixed order.

    Args:
        board: The position, the solver to move. Left as it was.
        n: How many moves of the solver, at least 1.
        guess: The likely key move: a hint for speed that changes no result.
    """
    if n == 1:
        mates = mating_moves(board)
        return mates if len(mates) == 1 else None
    if can_mate(board, n - 1):
        return None
    refutations: list[chess.Move] = []
    moves = iter(sorted(_checks_first(board), key=lambda move: move != guess))
    first = next((move for move in moves if _forces_mate(board, move, n, refutations)), None)
    if first is None:
        return None
    rest = _after_key(board, first, n)
    if rest is None or any(_forces_mate(board, move, n, refutations) for move in moves):
        return None
    return [first, *rest]


def _after_key(board: chess.Board, key: chess.Move, n: int) -> list[chess.Move] | None:
    """Returns a reply to the key move of a mate in ``n`` that leaves a puzzle "mate in ``n - 1``", and its line."""
    board.push(key)
    try:
        for reply in sorted(board.legal_moves, key=lambda move: (not board.is_capture(move), move.uci())):
            board.push(reply)
            rest = mate_line(board, n - 1)
            board.pop()
            if rest:
                return [reply, *rest]
        return None
    finally:
        board.pop()


# --- The engine -----------------------------------------------------------------------------------------------------


class Engine:
    """A UCI engine that searches a fixed number of nodes on one thread: the same question, the same answer."""

    def __init__(self, path: str) -> None:
        """Starts the engine.

        Raises:
            OSError: It cannot be started.
            RuntimeError: It does not speak UCI.
        """
        self._process = subprocess.Popen(
            [path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        try:
            self._tell("uci")
            self._read("uciok")
            for name, value in (("Threads", 1), ("Hash", 1), ("MultiPV", 2)):
                self._tell(f"setoption name {name} value {value}")
        except BaseException:
            self.close()
            raise

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _read(self, until: str) -> list[str]:
        assert self._process.stdout is not None
        answer: list[str] = []
        for text in self._process.stdout:
            answer.append(text)
            if text.startswith(until):
                return answer
        raise RuntimeError(f"the engine ended without the answer {until!r}")

    def forget(self) -> None:
        """Clears what the engine remembers."""
        self._tell("ucinewgame\nisready")
        self._read("readyok")

    def best_two(self, boards: Sequence[chess.Board], nodes: int) -> list[list[tuple[chess.Move, int]]]:
        """Returns for each position its best one or two moves with their scores; nothing where the game is over.

        Scores are centipawns for the side to move; a mate in n moves is ``100000 - n``, being mated the negative.
        All positions are sent at once: the engine takes them in turn, and no time is lost between two.
        """
        self._tell("\n".join(f"position fen {board.fen()}\ngo nodes {nodes}" for board in boards))
        return [self._read_scores() for _ in boards]

    def _read_scores(self) -> list[tuple[chess.Move, int]]:
        found: dict[str, tuple[chess.Move, int]] = {}
        for line in self._read("bestmove"):
            parts = _INFO.search(line)
            if parts:
                number = int(parts["number"])
                if parts["unit"] == "mate":
                    number = _MATE_SCORE - number if number > 0 else -_MATE_SCORE - number
                found[parts["rank"]] = (chess.Move.from_uci(parts["move"]), number)
        return [found[rank] for rank in sorted(found)]

    def close(self) -> None:
        """Ends the engine."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # What was not yet sent is lost on purpose.
                if pipe:
                    pipe.close()
        self._process.wait()


def tactic_line(board: chess.Board, engine: Engine) -> list[chess.Move] | None:
    """Returns the line of a winning tactic, or None when the position is not one.

    The best move wins and the second best does not. The line goes on, at most to four moves, while that stays so
    against the engine's best reply. Merely taking the piece that has just moved is no tactic.
    """
    board = board.copy()
    moved_to = board.peek().to_square
    line: list[chess.Move] = []
    while len(line) < 7:
        engine.forget()
        [found] = engine.best_two([board], _PROOF_NODES)
        if len(found) < 2 or found[0][1] < _WINS or found[1][1] > _DOES_NOT_WIN:
            break
        move = found[0][0]
        if not line and (found[0][1] > _MATE_SCORE // 2 or move.to_square == moved_to):
            return None
        line.append(move)
        board.push(move)
        engine.forget()
        [replies] = engine.best_two([board], _PROOF_NODES)
        if not replies:
            break
        line.append(replies[0][0])
        board.push(replies[0][0])
    return line[: len(line) - 1 + len(line) % 2] or None


# --- Games ----------------------------------------------------------------------------------------------------------

_ENDGAMES = ("Q", "R", "RR", "QR", "BB", "BN", "RB", "RN", "QP", "RP", "RPP", "BPP", "NPP", "PPP", "RBP", "RNPP", "QBP")
_DEFENCES = ("", "P", "PP", "N", "B", "R", "NP", "BPP", "RP", "RPP", "QP", "BNP", "RBPP", "PPP", "PPPP")
_HUNTERS = ("R", "RP", "RN", "RB", "BN", "NN", "BB", "NP", "BP", "NPP", "BNP", "RPP", "RNP", "RBP", "Q", "RR", "PPP")
_LATE = ("R", "N", "B", "RR", "RN", "RB", "BN", "RBN", "RRB", "Q", "QN", "QB", "QR", "QRN")


def starting_position(rng: random.Random, openings: bool = True) -> chess.Board:
    """Returns a position to start a game from.

    It is an opening of random moves, a late middlegame (kings at home behind pawns, few pieces), a small endgame, or an
    endgame with a king in trouble at the edge.
    """
    kind = rng.choices((_opening, _late_middlegame, _endgame, _cornered), (25 * openings, 20, 30, 25))[0]
    while True:
        board = kind(rng)
        if kind is not _opening:
            board.turn = rng.choice(chess.COLORS)
            board.fullmove_number = rng.randrange(25, 60)
        if board.is_valid() and not board.is_game_over():
            return board


def _opening(rng: random.Random) -> chess.Board:
    board = chess.Board()
    for _ in range(rng.randrange(2, 9)):
        if moves := list(board.legal_moves):
            board.push(rng.choice(moves))
    return board


def _late_middlegame(rng: random.Random) -> chess.Board:
    board = chess.Board(None)
    for colour in chess.COLORS:
        home = [rank if colour else 7 - rank for rank in range(4)]
        king = chess.square(rng.randrange(8), rng.choices(home[:2], (7, 1))[0])
        files = sorted(range(8), key=lambda file: abs(file - chess.square_file(king)) + rng.uniform(0, 4))
        for file in files[: rng.randrange(3, 7)]:
            rank = rng.choices(home[1:], (5, 2, 1))[0]
            board.set_piece_at(chess.square(file, rank), chess.Piece(chess.PAWN, colour))
        board.set_piece_at(king, chess.Piece(chess.KING, colour))
        _place(board, rng.choice(_LATE), colour, rng)
    return board


def _endgame(rng: random.Random) -> chess.Board:
    board = chess.Board(None)
    strong = rng.choice(chess.COLORS)
    _place(board, "K" + rng.choice(_ENDGAMES), strong, rng)
    _place(board, "K" + rng.choice(_DEFENCES), not strong, rng)
    return board


def _cornered(rng: random.Random) -> chess.Board:
    """A king at the edge, the other king near, few pieces, the weak side's own ones in its king's way."""
    board = chess.Board(None)
    strong = rng.choice(chess.COLORS)
    edge = list(chess.SquareSet(chess.BB_BACKRANKS | chess.BB_FILE_A | chess.BB_FILE_H))
    weak_king = rng.choice(edge)
    board.set_piece_at(weak_king, chess.Piece(chess.KING, not strong))
    near = [square for square in chess.SQUARES if 2 <= chess.square_distance(square, weak_king) <= 3]
    board.set_piece_at(rng.choice(near), chess.Piece(chess.KING, strong))
    _place(board, rng.choice(_DEFENCES), not strong, rng, weak_king)
    _place(board, rng.choice(_HUNTERS), strong, rng)
    return board


def _place(
    board: chess.Board, army: str, colour: chess.Color, rng: random.Random, near: chess.Square | None = None
) -> None:
    """Puts pieces on free squares, pawns not on the first and last rank; close to ``near`` if given."""
    for symbol in army:
        piece = chess.Piece(chess.Piece.from_symbol(symbol).piece_type, colour)
        free = chess.SquareSet(~board.occupied & ~(chess.BB_BACKRANKS if symbol == "P" else 0))
        if near is not None:
            free = chess.SquareSet(s for s in free if chess.square_distance(s, near) <= 2) or free
        board.set_piece_at(rng.choice(list(free)), piece)


def _natural(board: chess.Board, rng: random.Random) -> chess.Move:
    """Returns the best of eight moves by what they win or lose at once: a player that sees one move ahead."""
    moves = list(board.legal_moves)

    def gain(move: chess.Move) -> float:
        victim, piece = board.piece_type_at(move.to_square), board.piece_type_at(move.from_square)
        assert piece is not None
        lost = _VALUES[piece] if piece != chess.KING and board.is_attacked_by(not board.turn, move.to_square) else 0
        return (_VALUES[victim] if victim else 0) - lost + rng.random()

    return max(rng.sample(moves, min(8, len(moves))), key=gain)


@dataclass(frozen=True, slots=True)
class Find:
    """A puzzle found: the position before the trigger, and the line with the trigger first."""

    fen: str
    moves: tuple[chess.Move, ...]


def mine_game(seed: str, engine: Engine | None, wanted: frozenset[Kind]) -> list[Find]:
    """Plays one game and returns puzzles of the kinds that are wanted.

    Wherever the game stands, the legal moves are looked at as blunders: as triggers of a puzzle.

    Args:
        seed: Decides the game, together with the engine.
        engine: Plays the good moves and points at longer mates and tactics; without one, mates in 1 alone are found.
        wanted: Kinds to look for.
    """
    rng = random.Random(seed)
    board = starting_position(rng, openings=not wanted.isdisjoint(("mate1", "tactic")))
    careless = {colour: rng.choice((0.05, 0.15, 0.3, 0.6)) for colour in chess.COLORS}
    length = _LONGEST_GAME if board.fullmove_number < 10 else _LONGEST_GAME // 4
    finds: list[Find] = []
    quiet_until = 0
    if engine:
        engine.forget()
    for ply in range(length):
        if board.is_game_over(claim_draw=False) or board.halfmove_clock > 60:
            break
        board = chess.Board(board.fen(en_passant="fen"))
        find, best = None, None
        if ply >= quiet_until:
            find, best = _with_engine(board, engine, wanted, rng) if engine else (_mate1(board, wanted, rng), None)
        elif engine and (hints := engine.best_two([board], _PLAY_NODES)[0]):
            best = hints[0][0]
        if find:
            finds.append(find)
            quiet_until = ply + _APART
        if rng.random() < careless[board.turn]:
            board.push(rng.choice(list(board.legal_moves)))
        else:
            board.push(best or _natural(board, rng))
    return finds


def _mate1(board: chess.Board, wanted: frozenset[Kind], rng: random.Random) -> Find | None:
    """Returns a mate in 1 that some move here would allow, if there is one of a kind that is wanted."""
    if _flights(board, board.turn) > _CORNERED + 1:
        return None
    triggers = list(board.legal_moves)
    rng.shuffle(triggers)
    for trigger in triggers:
        board.push(trigger)
        mates: list[chess.Move] = []
        if _flights(board, not board.turn) <= _CORNERED:
            legal = board.legal_moves.count()
            if legal > 1 and ("mate1 few moves" if legal <= 25 else "mate1") in wanted:
                mates = mating_moves(board)
        board.pop()
        if len(mates) == 1:
            return Find(board.fen(en_passant="fen"), (trigger, mates[0]))
    return None


def _flights(board: chess.Board, colour: chess.Color) -> int:
    """Counts the squares that a king could step to: a cheap sign of whether a mate may be near."""
    king = board.king(colour)
    assert king is not None
    free = chess.SquareSet(chess.BB_KING_ATTACKS[king] & ~board.occupied_co[colour])
    return sum(not board.is_attacked_by(not colour, square) for square in free)


def _with_engine(
    board: chess.Board, engine: Engine, wanted: frozenset[Kind], rng: random.Random
) -> tuple[Find | None, chess.Move | None]:
    """Returns a longer mate or a tactic that some move here would allow, and the engine's own move here."""
    legal = list(board.legal_moves)
    triggers = rng.sample(legal, min(_BLUNDERS, len(legal)))
    positions = []
    for trigger in triggers:
        board.push(trigger)
        positions.append(chess.Board(board.fen(en_passant="fen")))
        board.pop()
    (here, *hints) = engine.best_two([board, *positions], _PLAY_NODES)
    # Mates in 3 are the rarest, so they are looked at first.
    for trigger, hint in sorted(zip(triggers, hints, strict=True), key=lambda pair: _mate_in(pair[1]), reverse=True):
        if len(hint) == 2:
            after = board.copy()
            after.push(trigger)
            if line := _longer_line(after, hint, engine, wanted):
                return Find(board.fen(en_passant="fen"), (trigger, *line)), here[0][0]
    return None, here[0][0] if here else None


def _mate_in(hint: Sequence[tuple[chess.Move, int]]) -> int:
    """Returns n for a hint of mate in n, at most 3, else 0."""
    return n if hint and (n := _MATE_SCORE - hint[0][1]) <= 3 else 0


def _longer_line(
    board: chess.Board, hint: Sequence[tuple[chess.Move, int]], engine: Engine, wanted: frozenset[Kind]
) -> list[chess.Move] | None:
    (guess, best), (_, second) = hint
    n = _mate_in(hint)
    kinds: dict[int, Kind] = {2: "mate2", 3: "mate3"}
    if n in kinds:
        worth = kinds[n] in wanted and second < best and board.legal_moves.count() <= _PATIENCE[n]
        return mate_line(board, n, guess) if worth else None
    tactic = _WINS <= best < _MATE_SCORE // 2 and second <= _DOES_NOT_WIN and board.legal_moves.count() >= 5
    return tactic_line(board, engine) if tactic and "tactic" in wanted else None


# --- Rows -----------------------------------------------------------------------------------------------------------


def difficulty(board: chess.Board, line: Sequence[chess.Move], mates: bool) -> int:
    """Returns a difficulty on a scale that looks like a rating, by formula.

    ``300 + 10 * legal moves + 25 * checks beyond the first + 450 * (solver moves - 1)``, plus 150 when the first move
    gives no check and takes nothing, plus 400 when the line does not mate.

    Args:
        board: The position to solve.
        line: The moves from there, solver first.
        mates: Whether the line ends in mate.
    """
    moves = list(board.legal_moves)
    checks = sum(board.gives_check(move) for move in moves)
    quiet = not (board.gives_check(line[0]) or board.is_capture(line[0]))
    length = (len(line) + 1) // 2
    return 300 + 10 * len(moves) + 25 * max(checks - 1, 0) + 450 * (length - 1) + 150 * quiet + 400 * (not mates)


def themes_of(board: chess.Board, line: Sequence[chess.Move]) -> list[str]:
    """Returns the Lichess themes that hold by computation, sorted.

    Args:
        board: The position to solve.
        line: The moves from there, solver first.
    """
    themes = {("oneMove", "short", "long", "veryLong")[min((len(line) - 1) // 2, 3)], _stage(board)}
    first = line[0]
    moved = board.piece_type_at(first.from_square)
    after = board.copy(stack=False)
    for number, move in enumerate(line):
        if number % 2 == 0:
            if move.promotion:
                themes.add("promotion" if move.promotion == chess.QUEEN else "underPromotion")
            if after.is_en_passant(move):
                themes.add("enPassant")
            if after.is_castling(move):
                themes.add("castling")
        after.push(move)
        if number % 2 == 0 and len(after.checkers()) > 1:
            themes.add("doubleCheck")
    if after.is_checkmate():
        themes |= {"mate", f"mateIn{(len(line) + 1) // 2}"} | _mate_patterns(after)
    else:
        victim = board.piece_type_at(first.to_square)
        if victim and victim != chess.PAWN and not board.is_attacked_by(not board.turn, first.to_square):
            themes.add("hangingPiece")
        if moved and _forks(board, first):
            themes.add("fork")
    return sorted(themes)


def _stage(board: chess.Board) -> str:
    pieces = chess.popcount(board.occupied & ~board.pawns & ~board.kings)
    return "endgame" if pieces <= 6 else "opening" if board.fullmove_number <= 10 else "middlegame"


def _mate_patterns(board: chess.Board) -> set[str]:
    """Names the mate on the board: ``backRankMate`` and ``smotheredMate`` where they are beyond doubt."""
    king = board.king(board.turn)
    checkers = list(board.checkers())
    if king is None or len(checkers) != 1:
        return set()
    own, checker = board.occupied_co[board.turn], checkers[0]
    around = chess.BB_KING_ATTACKS[king]
    kind = board.piece_type_at(checker)
    if kind == chess.KNIGHT and not around & ~own:
        return {"smotheredMate"}
    rank = 0 if board.turn == chess.WHITE else 7
    ahead = around & chess.BB_RANKS[1 if board.turn == chess.WHITE else 6]
    on_back_rank = chess.square_rank(king) == rank == chess.square_rank(checker)
    return {"backRankMate"} if on_back_rank and kind in (chess.ROOK, chess.QUEEN) and not ahead & ~own else set()


def _forks(board: chess.Board, move: chess.Move) -> bool:
    """Says whether the moved piece then attacks two pieces that are worth more than it or stand unprotected."""
    board = board.copy(stack=False)
    board.push(move)
    piece = board.piece_type_at(move.to_square)
    assert piece is not None
    targets = 0
    for square in board.attacks(move.to_square) & board.occupied_co[board.turn]:
        target = board.piece_type_at(square)
        assert target is not None
        unprotected = target != chess.PAWN and not board.is_attacked_by(board.turn, square)
        targets += _VALUES[target] > _VALUES[piece] or unprotected
    return targets >= 2


def row_of(find: Find) -> Row:
    """Returns a find as a row of the file, by column name. The id is made of the position's fingerprint."""
    board = chess.Board(find.fen)
    board.push(find.moves[0])
    line = find.moves[1:]
    themes = themes_of(board, line)
    key = position_key(board)
    return {
        "PuzzleId": f"w{key[:9]}",
        "FEN": find.fen,
        "Moves": " ".join(move.uci() for move in find.moves),
        "Rating": difficulty(board, line, "mate" in themes),
        "RatingDeviation": 0,
        "Popularity": 0,
        "NbPlays": 0,
        "Themes": " ".join(themes),
        "GameUrl": "",
        "OpeningTags": "",
        "LegalMoves": board.legal_moves.count(),
        "PositionKey": key,
    }


# --- The run --------------------------------------------------------------------------------------------------------

_engine: Engine | None = None  # One a process, started by `_start_worker`.


def _start_worker(path: str | None) -> None:
    global _engine
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The parent process answers Ctrl-C.
    _engine = Engine(path) if path else None


def _work(job: tuple[str, frozenset[Kind]]) -> list[Row]:
    seed, wanted = job
    return [row_of(find) for find in mine_game(seed, None if wanted <= _BY_RULES else _engine, wanted)]


def kind_of(row: Row) -> Kind:
    """Returns what a row counts as."""
    themes = str(row["Themes"]).split()
    if "mateIn1" in themes:
        return "mate1 few moves" if int(row["LegalMoves"]) <= 25 else "mate1"
    return "mate2" if "mateIn2" in themes else "mate3" if "mateIn3" in themes else "tactic"


def quotas(rows: int, with_engine: bool) -> dict[Kind, int]:
    """Shares out ``rows`` over the kinds. Without an engine there are mates in 1 only."""
    kinds: tuple[Kind, ...] = ("mate2", "mate3", "tactic", "mate1 few moves")
    counts: dict[Kind, int] = {kind: int(rows * SHARES[kind]) if with_engine else 0 for kind in kinds}
    if not with_engine:
        counts["mate1 few moves"] = rows // 2
    counts["mate1"] = rows - sum(counts.values())
    return counts


def mine(
    rows: int, seed: int, engine: str | None, processes: int = 1, done: Sequence[Sequence[Row]] = ()
) -> Iterator[list[Row]]:
    """Yields batches of new rows until there are ``rows`` of them, each position once.

    Args:
        rows: How many.
        seed: Decides all games.
        engine: Path of a UCI engine, or None to mine mates without one.
        processes: How many games are played at a time; no effect on the result.
        done: The batches that an interrupted run of the same arguments has yielded; they are not yielded again.
    """
    left = quotas(rows, engine is not None)
    seen: set[str | int] = set()

    def take(row: Row) -> bool:
        kind = kind_of(row)
        if left[kind] <= 0 or not seen.isdisjoint((row["PositionKey"], row["PuzzleId"])):
            return False
        left[kind] -= 1
        seen.update((row["PositionKey"], row["PuzzleId"]))
        return True

    for row in itertools.chain.from_iterable(done):
        take(row)
    with multiprocessing.get_context("spawn").Pool(processes, _start_worker, (engine,)) as pool:
        for batch in itertools.count(len(done)):
            wanted = frozenset(kind for kind, count in left.items() if count > 0)
            if not wanted:
                return
            games = range(batch * _GAMES_A_BATCH, (batch + 1) * _GAMES_A_BATCH)
            jobs = [(f"{seed}/{game}", wanted & _BY_RULES or wanted & _BY_ENGINE) for game in games]
            yield [row for found in pool.imap(_work, jobs) for row in found if take(row)]


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Writes a puzzle file, compressed when its name ends in ``.zst``, in one atomic step. Sorted by difficulty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS + EXTRA_COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(sorted(rows, key=lambda row: (int(row["Rating"]), str(row["PuzzleId"]))))
    data = text.getvalue().encode()
    if path.suffix == ".zst":
        data = zstandard.ZstdCompressor(level=19).compress(data)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_bytes(data)
    part.replace(path)


def _journal(path: Path, run: dict[str, object]) -> list[list[Row]]:
    """Returns the batches that an interrupted run of the same arguments left, and trims a torn last line off."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
    if not lines or json.loads(lines[0]) != run:
        raise ValueError(f"{path} belongs to another run ({lines[0].strip() if lines else 'empty'}); remove it")
    part = path.with_name(path.name + ".part")
    part.write_text("".join(lines), encoding="utf-8")
    part.replace(path)
    return [json.loads(line) for line in lines[1:]]


def _progress(counts: Counter[str], rows: int) -> None:
    told = ", ".join(f"{counts[kind]} {kind}" for kind in SHARES)
    start, end = ("\r", "") if sys.stderr.isatty() else ("", "\n")
    print(f"{start}{counts.total()}/{rows} puzzles: {told}", end=end, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.chess_miner",
        description="Plays games and writes the puzzles found in them as a Lichess puzzle file.",
        epilog="example: python -m tools.chess_miner --rows 500 --seed 1 --out puzzles.csv.zst",
    )
    parser.add_argument("--rows", type=int, default=5033, help="puzzles to find (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="decides all games (default: %(default)s)")
    parser.add_argument("--out", type=Path, required=True, help="file to write: .csv or .csv.zst")
    parser.add_argument(
        "--stockfish",
        metavar="PATH",
        default=shutil.which("stockfish", path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/games"))),
        help="the engine; 'none' mines mates without one (default: %(default)s)",
    )
    parser.add_argument("--processes", type=int, default=1, help="games at a time (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.rows < 1 or options.processes < 1:
        parser.error("--rows and --processes must be at least 1")
    engine = None if options.stockfish in (None, "none") else options.stockfish
    if engine and not shutil.which(engine):
        parser.error(f"--stockfish {engine!r} is not a program; give its path, or 'none'")
    if engine:
        try:
            Engine(engine).close()
        except (OSError, RuntimeError) as error:
            parser.error(f"--stockfish {engine!r} does not answer as a UCI engine: {error}")
    run: dict[str, object] = {"rows": options.rows, "seed": options.seed, "engine": engine}
    journal = options.out.with_name(options.out.name + ".journal")
    counts: Counter[str] = Counter()
    try:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        done = _journal(journal, run)
        batches = list(done)
        with journal.open("a", encoding="utf-8") as log:
            counts.update(kind_of(row) for batch in done for row in batch)
            if not log.tell():
                log.write(json.dumps(run) + "\n")
                log.flush()
            for batch in mine(options.rows, options.seed, engine, options.processes, done):
                log.write(json.dumps(batch) + "\n")
                log.flush()
                batches.append(batch)
                counts.update(kind_of(row) for row in batch)
                _progress(counts, options.rows)
        write_rows(options.out, [row for batch in batches for row in batch])
        journal.unlink()
    except KeyboardInterrupt:
        print(f"\nstopped; the same command goes on from {journal}", file=sys.stderr)
        return 130
    except (OSError, ValueError) as error:
        parser.error(f"--out {str(options.out)!r}: {error}")
    print(f"\n{options.out}: {counts.total()} puzzles, {options.out.stat().st_size:,} bytes", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
