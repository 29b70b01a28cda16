"""Chess puzzles: reading Lichess puzzle files, difficulty tiers, and the split of each position.

Files come in the format of the Lichess puzzle database (``PuzzleId,FEN,Moves,Rating,…``; plain CSV or Zstandard).
Every row is checked before it becomes a `Puzzle`; a row that is not legal chess is refused by name. The puzzles that
ship with the package (`EMBEDDED`) have the same format with two more columns, so that they load in a moment.

What it does NOT cover: the rules of solving (`whale_env.chess.verifier`), finding puzzles (`tools.chess_miner`),
download.
"""

from __future__ import annotations

import csv
import hashlib
import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import chess

from whale_env.arguments import check_whole, read_names
from whale_env.chess.verifier import LineError, start_line
from whale_env.errors import InputError
from whale_env.rows import DatasetError
from whale_env.splits import split_of
from whale_env.text_files import read_lines
from whale_env.types import SPLITS, Split
from whale_env.wording import did_you_mean

EMBEDDED = Path(__file__).parents[1] / "data" / "chess_puzzles.csv.zst"
"""The puzzles that ship with the package."""

COLUMNS = (
    "PuzzleId",
    "FEN",
    "Moves",
    "Rating",
    "RatingDeviation",
    "Popularity",
    "NbPlays",
    "Themes",
    "GameUrl",
    "OpeningTags",
)
"""The columns of the Lichess puzzle database, in order; a file without a header is read by position."""

EXTRA_COLUMNS = ("LegalMoves", "PositionKey")
"""What `EMBEDDED` adds: `Puzzle.legal_moves` and `Puzzle.key`. Other files may have them; they are then recomputed."""

TIERS = ("1", "2", "3", "4", "5", "6")
"""Difficulty tiers, easiest first; see `tier_of`."""

# The file whose rows were checked when it was made. Its extra columns are believed, those of any other file are not.
_EMBEDDED_SHA256 = "225b1abda7e67f1d30a4b9f86bef554a14a64152a292f506eb5b375fb1ee95ef"

_log = logging.getLogger(__name__)


class PuzzleFileError(DatasetError):
    """A puzzle file cannot be read, or holds nothing that was asked for. One line, naming the file."""


class PuzzleRowError(PuzzleFileError):
    """A row is not a legal puzzle. One line: file, line of the file, puzzle id, the value, why."""


@dataclass(frozen=True, slots=True)
class Puzzle:
    """One puzzle, with its answer: never to be handed to a harness.

    Attributes:
        id: The file's own id, unique within the file.
        fen: The position before the trigger.
        moves: The line in UCI, separated by spaces: trigger, solver, reply, solver, …
        rating: Difficulty (Glicko on Lichess), or None where the file gives none.
        themes: Lichess theme names (``mateIn1``, ``endgame``, …).
        legal_moves: How many legal moves the solver has at first.
        key: Fingerprint of the position to solve, the same for its mirror images (`position_key`).
        among: The splits among which its file is divided.
    """

    id: str
    fen: str
    moves: str
    rating: int | None
    themes: tuple[str, ...]
    legal_moves: int
    key: str
    among: tuple[Split, ...] = SPLITS

    @property
    def solver_moves(self) -> int:
        """How many moves the solver makes in the line."""
        return (self.moves.count(" ") + 1) // 2

    @property
    def tier(self) -> str:
        """The difficulty tier, see `tier_of`."""
        return tier_of(self)

    @property
    def split(self) -> Split:
        """The split, by the position and the file's splits alone: the same whatever the order or the filters."""
        return split_of(self.key, self.among)


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What became of the rows that were read.

    Attributes:
        rows: Rows read, the header and empty lines aside.
        filtered: Rows that the filters left out.
        duplicates: Rows whose position (or a mirror image of it) had come before.
        bad: One `PuzzleRowError` for each refused row.
    """

    rows: int
    filtered: int
    duplicates: int
    bad: tuple[PuzzleRowError, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class PuzzleFile:
    """The puzzles taken from a file, in its order, and the account of all its rows."""

    puzzles: tuple[Puzzle, ...]
    report: LoadReport


def tier_of(puzzle: Puzzle) -> str:
    """Returns the difficulty tier of a puzzle, from the length of its line and the number of legal moves.

    ==== ============= ================================
    tier solver moves  legal moves at the solver's turn
    ==== ============= ================================
    1    1             at most 15
    2    1             16 to 25
    3    1             more than 25
    4    2             any
    5    3             any
    6    4 and more    any
    ==== ============= ================================

    A uniformly random legal move solves a tier 1 puzzle at least once in 15 tries; tier 6 is for strong players.
    """
    if puzzle.solver_moves == 1:
        return "1" if puzzle.legal_moves <= 15 else "2" if puzzle.legal_moves <= 25 else "3"
    return str(min(puzzle.solver_moves, 4) + 2)


def position_key(board: chess.Board) -> str:
    """Returns a fingerprint of a position that its mirror images share: 16 hexadecimal digits.

    The colours are exchanged until White is to move, then the smaller of the position and its left-right mirror image
    is hashed. Piece placement and a playable en passant square count. Castling rights do not: a position and its copy
    without them are too alike to stand in different splits.
    """
    white = board if board.turn == chess.WHITE else board.mirror()
    flipped = white.transform(chess.flip_horizontal)
    text = min(f"{side.board_fen()} {_en_passant(side)}" for side in (white, flipped))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _en_passant(board: chess.Board) -> str:
    return chess.square_name(board.ep_square) if board.ep_square is not None and board.has_legal_en_passant() else "-"


def load_puzzles(
    path: str | Path = EMBEDDED,
    *,
    themes: Iterable[str] | None = None,
    rating: tuple[int, int] | None = None,
    tiers: Iterable[str] | None = None,
    max_legal: int | None = None,
    limit: int | None = None,
    on_bad_row: Literal["raise", "skip"] = "raise",
) -> tuple[Puzzle, ...]:
    """Loads puzzles, as `read_puzzles` does, without the report (rows that were skipped are logged as a warning)."""
    loaded = read_puzzles(
        path, themes=themes, rating=rating, tiers=tiers, max_legal=max_legal, limit=limit, on_bad_row=on_bad_row
    )
    if bad := loaded.report.bad:
        _log.warning("skipped %d of %d rows; the first: %s", len(bad), loaded.report.rows, bad[0])
    return loaded.puzzles


def read_puzzles(
    path: str | Path = EMBEDDED,
    *,
    themes: Iterable[str] | None = None,
    rating: tuple[int, int] | None = None,
    tiers: Iterable[str] | None = None,
    max_legal: int | None = None,
    limit: int | None = None,
    on_bad_row: Literal["raise", "skip"] = "raise",
) -> PuzzleFile:
    """Reads a Lichess puzzle file, checks its rows and drops repeated positions.

    The file is read as a stream and only as far as ``limit`` needs. Rows that ``themes`` or ``rating`` leave out are
    not checked any further.

    Args:
        path: A ``.csv`` or ``.csv.zst`` file, with or without a header line. Columns after ``Moves`` may be missing,
            unknown ones are ignored.
        themes: Keep puzzles with at least one of these themes.
        rating: Keep puzzles rated from the first to the second number, both included; those without a rating go.
        tiers: Keep puzzles of these tiers (`tier_of`).
        max_legal: Keep puzzles that begin with at most so many legal moves.
        limit: Stop after so many puzzles.
        on_bad_row: ``raise`` at the first row that is not a legal puzzle, or ``skip`` them into the report.

    Raises:
        PuzzleRowError: A row is refused.
        PuzzleFileError: The file cannot be read, or no puzzle is left.
        InputError: A filter makes no sense.
    """
    path = Path(path)
    wanted = _Filter.of(themes, rating, tiers, max_legal, limit)
    if on_bad_row not in ("raise", "skip"):
        raise InputError(f"on_bad_row must be 'raise' or 'skip', not {on_bad_row!r}")
    trusted = path == EMBEDDED and _is_embedded(path)
    puzzles: list[Puzzle] = []
    bad: list[PuzzleRowError] = []
    ids: set[str] = set()
    keys: set[str] = set()
    rows = filtered = duplicates = 0
    seen: Counter[str] = Counter()
    with _open_lines(path) as lines:
        for line, row in _rows(path, lines):
            rows += 1
            seen.update(row.get("Themes", "").split())
            try:
                if not wanted.admits_row(row, (score := _rating(row))):
                    filtered += 1
                    continue
                puzzle = _trusted_puzzle(row, score) if trusted else _puzzle(row, score)
                if puzzle.key in keys:
                    duplicates += 1
                    continue
                if puzzle.id in ids:
                    raise LineError("this id has come before with another position")
            except ValueError as error:
                refusal = PuzzleRowError(f"{path}, line {line}, puzzle {row.get('PuzzleId', '')!r}: {error}")
                if on_bad_row == "raise":
                    raise refusal from None
                bad.append(refusal)
                continue
            if not wanted.admits_puzzle(puzzle):
                filtered += 1
                continue
            ids.add(puzzle.id)
            keys.add(puzzle.key)
            puzzles.append(puzzle)
            if len(puzzles) == wanted.limit:
                break
    report = LoadReport(rows, filtered, duplicates, tuple(bad))
    if not puzzles:
        raise PuzzleFileError(_nothing_left(path, report, wanted, seen))
    return PuzzleFile(tuple(puzzles), report)


@dataclass(frozen=True, slots=True)
class _Filter:
    themes: frozenset[str] | None
    rating: tuple[int, int] | None
    tiers: frozenset[str] | None
    max_legal: int | None
    limit: int | None

    @classmethod
    def of(
        cls,
        themes: Iterable[str] | None,
        rating: tuple[int, int] | None,
        tiers: Iterable[str] | None,
        max_legal: int | None,
        limit: int | None,
    ) -> _Filter:
        check_whole(1, max_legal=max_legal, limit=limit)
        if rating is not None and not (len(rating) == 2 and rating[0] <= rating[1]):
            raise InputError(f"rating must be (lowest, highest), not {rating!r}")
        return cls(read_names("themes", themes), rating, read_names("tiers", tiers, TIERS), max_legal, limit)

    def admits_row(self, row: dict[str, str], rating: int | None) -> bool:
        if self.themes is not None and self.themes.isdisjoint(row.get("Themes", "").split()):
            return False
        return self.rating is None or (rating is not None and self.rating[0] <= rating <= self.rating[1])

    def admits_puzzle(self, puzzle: Puzzle) -> bool:
        few = self.max_legal is None or puzzle.legal_moves <= self.max_legal
        return few and (self.tiers is None or puzzle.tier in self.tiers)


def rows_of(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields the rows of a puzzle file unchecked: line in the file, and cells by column name.

    Raises:
        PuzzleFileError: The file cannot be read.
    """
    with _open_lines(path) as lines:
        yield from _rows(path, lines)


def puzzle_of(row: dict[str, str]) -> Puzzle:
    """Checks a row and makes a puzzle of it.

    Raises:
        ValueError: It is not a legal puzzle.
    """
    return _puzzle(row, _rating(row))


def _is_embedded(path: Path) -> bool:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == _EMBEDDED_SHA256
    except OSError:
        return False


@contextmanager
def _open_lines(path: Path) -> Iterator[Iterator[str]]:
    """Opens a plain or compressed CSV as lines; whatever goes wrong while reading becomes a `PuzzleFileError`."""
    try:
        with closing(read_lines(path, PuzzleFileError)) as lines:
            yield lines
    except FileNotFoundError:
        hint = did_you_mean(path.name, _siblings(path))
        raise PuzzleFileError(f"no puzzle file {str(path)!r}.{hint}") from None
    except OSError as error:
        raise PuzzleFileError(f"{path} cannot be read: {error.strerror or error}") from None


def _siblings(path: Path) -> list[str]:
    try:
        return [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return []


def _rows(path: Path, lines: Iterable[str]) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields (line number in the file, cells by column name)."""
    last = ""

    def noted() -> Iterator[str]:
        nonlocal last
        for line in lines:
            last = line
            yield line

    reader = csv.reader(noted(), strict=True)  # strict: a quote that stays open is an error
    names: Sequence[str] | None = None
    widest = 0
    try:
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) < widest and not last.endswith(("\n", "\r")):
                raise PuzzleFileError(
                    f"{path}, line {reader.line_num} has {len(cells)} columns where others have {widest}, and the file "
                    "ends there: is it cut off?"
                )
            widest = max(widest, len(cells))
            if names is None:
                names = COLUMNS
                if header := _header(path, cells):
                    names = header
                    continue
            yield reader.line_num, {name: cell.strip() for name, cell in zip(names, cells, strict=False)}
    except csv.Error as error:
        raise PuzzleFileError(f"{path}, line {reader.line_num} is not CSV: {error}. Mend or remove the line.") from None


def _header(path: Path, cells: Sequence[str]) -> Sequence[str] | None:
    """Returns the column names if the first line is a header; our own spelling for those we know."""
    ours = {name.lower(): name for name in COLUMNS + EXTRA_COLUMNS}
    names = [ours.get(cell.strip().lower(), cell.strip()) for cell in cells]
    known = [name for name in names if name in ours.values()]
    if not known:
        return None
    for needed in ("PuzzleId", "FEN", "Moves"):
        if needed not in names:
            hint = did_you_mean(needed, names)
            raise PuzzleFileError(f"{path} has a header without the column {needed!r}: {', '.join(names)}.{hint}")
    return names


def _rating(row: dict[str, str]) -> int | None:
    text = row.get("Rating", "")
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not number.is_integer():
        raise LineError(f"the rating {text!r} is not a whole number")
    return int(number)


def _puzzle(row: dict[str, str], rating: int | None) -> Puzzle:
    if missing := [name for name in ("PuzzleId", "FEN", "Moves") if not row.get(name)]:
        raise LineError(f"the row has no {' and no '.join(missing)}")
    state = start_line(row["FEN"], row["Moves"])
    if len(state.rest) % 2 == 0:
        raise LineError(f"the line {row['Moves']!r} ends with a move of the opponent")
    return Puzzle(
        id=row["PuzzleId"],
        fen=state.board.root().fen(en_passant="fen"),
        moves=" ".join(move.uci() for move in (*state.board.move_stack, *state.rest)),
        rating=rating,
        themes=tuple(row.get("Themes", "").split()),
        legal_moves=state.board.legal_moves.count(),
        key=position_key(state.board),
    )


def _trusted_puzzle(row: dict[str, str], rating: int | None) -> Puzzle:
    return Puzzle(
        id=row["PuzzleId"],
        fen=row["FEN"],
        moves=row["Moves"],
        rating=rating,
        themes=tuple(row["Themes"].split()),
        legal_moves=int(row["LegalMoves"]),
        key=row["PositionKey"],
    )


def _nothing_left(path: Path, report: LoadReport, wanted: _Filter, seen: Counter[str]) -> str:
    if not report.rows:
        return f"{path} holds no puzzle"
    told = f"{path}: no puzzle is left of {report.rows} rows ({report.filtered} filtered, {len(report.bad)} refused)"
    if report.bad:
        return f"{told}; the first refusal: {report.bad[0]}"
    for theme in sorted(wanted.themes or ()):
        if theme not in seen:
            return f"{told}; no row has the theme {theme!r}.{did_you_mean(theme, seen)}"
    return f"{told}; widen themes, rating, tiers or max_legal"
