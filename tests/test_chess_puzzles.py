"""Puzzle files in, tiers and splits out; and the miner's proofs."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import chess
import pytest
import zstandard

from tools import chess_miner
from whale_env.chess import puzzles as chess_puzzles
from whale_env.chess.puzzles import (
    EMBEDDED,
    TIERS,
    Puzzle,
    PuzzleFileError,
    PuzzleRowError,
    load_puzzles,
    position_key,
    read_puzzles,
    tier_of,
)
from whale_env.chess.verifier import chess_line, start_line

HEADER = "PuzzleId,FEN,Moves,Rating,RatingDeviation,Popularity,NbPlays,Themes,GameUrl,OpeningTags\n"
ROOK = "6k1/5ppp/8/8/8/8/5PPP/4R1K1 b - - 0 1"
ROW = f"a1,{ROOK},g8h8 e1e8,600,80,-100,7,mate mateIn1 oneMove,https://example.org/x,\n"
OTHER = "a2,6k1/5ppp/8/8/8/8/5PPP/3R2K1 b - - 0 1,g8h8 d1d8,900,80,95,7,mate mateIn1 endgame,https://example.org/y,\n"

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str | bytes, name: str = "puzzles.csv") -> Path:
        path = tmp_path / name
        data = text.encode() if isinstance(text, str) else text
        path.write_bytes(zstandard.ZstdCompressor().compress(data) if name.endswith(".zst") else data)
        return path

    return write


@pytest.mark.parametrize(
    "text",
    [
        HEADER + ROW,
        ROW,
        "\ufeff" + HEADER + ROW,
        (HEADER + ROW).replace("\n", "\r\n"),
        HEADER + "\n" + ROW + "\n\n",
        (HEADER + ROW).rstrip("\n"),
        HEADER.replace("OpeningTags", "OpeningTags,DailyDate") + ROW.replace(",\n", ",,2024-01-01\n"),
        HEADER.lower() + ROW,
        ROW.replace("/x,\n", "/x\n"),
        ROW.replace(",600,80,", ",600.0,80.0,"),
        ROW.replace(f",{ROOK},g8h8 e1e8,", f',"{ROOK}","g8h8 e1e8",'),
        ROW.replace(" b - - 0 1", "  b  -  -  0  1"),
        ROW.replace(" b - - 0 1", " b"),
        "Moves,Themes,PuzzleId,FEN,Rating\ng8h8 e1e8,mate mateIn1 oneMove,a1," + ROOK + ",600\n",
    ],
)
@pytest.mark.parametrize("name", ["puzzles.csv", "puzzles.csv.zst"])
def test_dialects_of_the_format(write: Write, text: str, name: str) -> None:
    [puzzle] = load_puzzles(write(text, name))
    assert (puzzle.id, puzzle.fen, puzzle.moves) == ("a1", ROOK, "g8h8 e1e8")
    assert (puzzle.rating, puzzle.themes) == (600, ("mate", "mateIn1", "oneMove"))
    assert (puzzle.legal_moves, puzzle.tier) == (20, "2")


def test_three_columns_are_enough_and_an_empty_rating_is_none(write: Write) -> None:
    [puzzle] = load_puzzles(write(f"a1,{ROOK},g8h8 e1e8\n"))
    assert puzzle.rating is None and puzzle.themes == ()
    [puzzle] = load_puzzles(write(ROW.replace(",600,", ",,")))
    assert puzzle.rating is None


def test_an_impossible_en_passant_square_is_dropped(write: Write) -> None:
    fen = "rnbqkbnr/pppppppp/8/8/P7/8/1PPPPPPP/RNBQKBNR w KQkq a3 0 1"
    [puzzle] = load_puzzles(write(f"a1,{fen},e2e4 e7e5\n"))
    assert puzzle.fen == fen.replace("a3", "-")


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ("b1,6k1/5ppp/8/8/8/8/5PPP/4R3 b - - 0 1,g8h8 e1e8", "no white king"),
        ("b1,6kk/5ppp/8/8/8/8/5PPP/4R1K1 b - - 0 1,g8h8 e1e8", "too many kings"),
        ("b1,6k1/5ppp/8/8/8/8/5PPP/4R1K1 x - - 0 1,g8h8 e1e8", "cannot be read"),
        ("b1,6k1/5ppp/8/8/8/8/5PPP/4R1K b - - 0 1,g8h8 e1e8", "cannot be read"),
        ("b1,,g8h8 e1e8", "no FEN"),
        (f"b1,{ROOK},", "no Moves"),
        (f"b1,{ROOK}", "no Moves"),
        (f",{ROOK},g8h8 e1e8", "no PuzzleId"),
        (f"b1,{ROOK},g8h8", "has 1 moves"),
        (f"b1,{ROOK},g8h8 e1e9", "'e1e9'"),
        (f"b1,{ROOK},g8h8 Re8#", "'Re8#'"),
        (f"b1,{ROOK},g8h8 e1e1", "'e1e1'"),
        (f"b1,{ROOK},g8h8 0000", "'0000'"),
        (f"b1,{ROOK},g8h8 e1e2 h8g8", "ends with a move of the opponent"),
        (f"b1,{ROOK},g8h8 e1e8,high", "'high'"),
        (f"b1,{ROOK},g8h8 e1e8,1479.5", "'1479.5'"),
        (f"b1,{ROOK},g8h8 e1e8,inf", "'inf'"),
        (f"b1,{ROOK},g8h8 e1e8,nan", "'nan'"),
    ],
)
def test_a_bad_row_is_refused_by_name(write: Write, row: str, why: str) -> None:
    path = write("PuzzleId,FEN,Moves,Rating\n" + f"a1,{ROOK},g8h8 e1e8,600\n{row}\n")
    with pytest.raises(PuzzleRowError) as refusal:
        load_puzzles(path)
    message = str(refusal.value)
    assert why in message and str(path) in message and "line 3" in message and "\n" not in message
    assert row.startswith(",") or "'b1'" in message
    loaded = read_puzzles(path, on_bad_row="skip")
    assert [puzzle.id for puzzle in loaded.puzzles] == ["a1"]
    assert [str(error) for error in loaded.report.bad] == [message]


def test_skipped_rows_are_logged(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    assert len(load_puzzles(write(ROW + "b1,nonsense,e2e4 e7e5\n"), on_bad_row="skip")) == 1
    assert "skipped 1 of 2 rows" in caplog.text and "'b1'" in caplog.text


def test_repeated_and_mirrored_positions_are_dropped_and_counted(write: Write) -> None:
    board = chess.Board(ROOK)
    twins = [board.mirror().fen(), board.transform(chess.flip_horizontal).fen(), ROOK]
    lines = ["g1h1 e8e1", "b8a8 d1d8", "g8h8 e1e8"]
    rows = "".join(f"c{number},{fen},{line}\n" for number, (fen, line) in enumerate(zip(twins, lines, strict=True)))
    loaded = read_puzzles(write(ROW + rows + OTHER))
    assert [puzzle.id for puzzle in loaded.puzzles] == ["a1", "a2"]
    assert (loaded.report.rows, loaded.report.duplicates, loaded.report.bad) == (5, 3, ())


def test_one_id_for_two_positions_is_refused(write: Write) -> None:
    with pytest.raises(PuzzleRowError, match="has come before"):
        load_puzzles(write(ROW + OTHER.replace("a2", "a1")))


def test_filters(write: Write) -> None:
    path = write(HEADER + ROW + OTHER)

    def ids(**filters: object) -> list[str]:
        return [puzzle.id for puzzle in load_puzzles(path, **filters)]  # type: ignore[arg-type]

    assert ids(themes=["oneMove"]) == ["a1"]
    assert ids(themes=["oneMove", "endgame"]) == ["a1", "a2"]
    assert ids(rating=(600, 899)) == ["a1"]
    assert ids(rating=(601, 900)) == ["a2"]
    assert ids(tiers=["2"]) == ["a1", "a2"]
    assert ids(limit=1) == ["a1"]
    assert ids(max_legal=20) == ["a1", "a2"]


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"themes": ["mateIn"]}, "Did you mean 'mateIn1'"),
        ({"themes": "mateIn1"}, "Did you mean"),
        ({"rating": (2000, 3000)}, "widen"),
        ({"rating": (2, 1)}, "lowest, highest"),
        ({"tiers": ["7"]}, "'7'"),
        ({"tiers": ["6"]}, "widen"),
        ({"limit": 0}, "at least 1"),
        ({"max_legal": 0}, "max_legal must be a whole number"),
        ({"max_legal": 19}, "widen"),
        ({"on_bad_row": "ignore"}, "'ignore'"),
    ],
)
def test_filters_that_leave_nothing_say_so(write: Write, filters: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_puzzles(write(HEADER + ROW + OTHER), **filters)  # type: ignore[arg-type]


def test_limit_does_not_read_on(write: Write) -> None:
    assert len(load_puzzles(write(ROW + OTHER + "broken,row\n"), limit=2)) == 2


def test_unreadable_files(write: Write, tmp_path: Path) -> None:
    path = write(HEADER + ROW, "puzzles.csv.zst")
    with pytest.raises(PuzzleFileError, match=r"Did you mean 'puzzles\.csv\.zst'"):
        load_puzzles(tmp_path / "puzzle.csv.zst")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(PuzzleFileError, match="damaged Zstandard"):
        load_puzzles(path)
    with pytest.raises(PuzzleFileError, match="UTF-8"):
        load_puzzles(write(b"\xff\xfe\x00"))
    with pytest.raises(PuzzleFileError, match="no puzzle"):
        load_puzzles(write(HEADER))
    with pytest.raises(PuzzleFileError, match="without the column 'FEN'"):
        load_puzzles(write("PuzzleId,Fen2,Moves\n"))
    with pytest.raises(PuzzleFileError, match="cannot be read"):
        load_puzzles(tmp_path)


def test_frames_in_a_row_are_one_file(write: Write) -> None:
    path = write(b"", "puzzles.csv.zst")
    text, compress = (HEADER + ROW + OTHER).encode(), zstandard.ZstdCompressor().compress
    path.write_bytes(compress(text[:120]) + compress(text[120:]))
    assert len(load_puzzles(path)) == 2


def test_key_is_shared_by_mirror_images_and_by_nothing_else() -> None:
    board = chess.Board("r3k2r/pp3ppp/2n5/8/4P3/2N5/PPP3PP/R3K2R w KQkq - 0 1")
    images = [board, board.mirror(), board.transform(chess.flip_horizontal)]
    images.append(images[2].mirror())
    assert len({position_key(image) for image in images}) == 1
    other = board.copy()
    other.turn = chess.BLACK
    moved = board.copy()
    moved.push_uci("c3d5")
    assert len({position_key(image) for image in (board, other, moved)}) == 3
    en_passant = chess.Board("4k3/8/8/3pP3/8/8/8/4K3 w - d6 0 1")
    plain = chess.Board("4k3/8/8/3pP3/8/8/8/4K3 w - - 0 1")
    unplayable = chess.Board("4k3/8/8/3p4/8/8/8/4K3 w - d6 0 1")
    assert position_key(en_passant) != position_key(plain)
    assert position_key(unplayable) == position_key(chess.Board("4k3/8/8/3p4/8/8/8/4K3 w - - 0 1"))


def test_tiers() -> None:
    def tier(line: str, legal_moves: int) -> str:
        return tier_of(Puzzle("x", ROOK, line, None, (), legal_moves, "0" * 16))

    assert [tier("t s", legal) for legal in (15, 16, 25, 26)] == ["1", "2", "2", "3"]
    assert [tier("t" + " s r" * n + " s", 9) for n in (1, 2, 3, 4)] == ["4", "5", "6", "6"]


# --- The puzzles that ship with the package -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def embedded() -> tuple[Puzzle, ...]:
    return load_puzzles()


def test_embedded_file_is_the_recorded_one(embedded: tuple[Puzzle, ...]) -> None:
    assert hashlib.sha256(EMBEDDED.read_bytes()).hexdigest() == chess_puzzles._EMBEDDED_SHA256
    assert EMBEDDED.stat().st_size < 2_000_000
    themes = Counter(theme for puzzle in embedded for theme in puzzle.themes)
    assert len(embedded) >= 5_000
    assert themes["mateIn1"] >= 3_500 and themes["mateIn2"] >= 750 and themes["mateIn3"] >= 100
    assert len(embedded) - themes["mate"] >= 300
    assert sum("mateIn1" in puzzle.themes and puzzle.legal_moves <= 25 for puzzle in embedded) >= 1_500


def test_embedded_extra_columns_equal_what_a_full_check_finds(embedded: tuple[Puzzle, ...], tmp_path: Path) -> None:
    copy = tmp_path / "copy.csv.zst"
    copy.write_bytes(EMBEDDED.read_bytes())
    checked = read_puzzles(copy)
    assert checked.puzzles == embedded
    assert checked.report.duplicates == 0 and checked.report.bad == ()


def test_embedded_mates_are_sound(embedded: tuple[Puzzle, ...]) -> None:
    for n, every in ((1, 3), (2, 20), (3, 40)):
        for puzzle in [puzzle for puzzle in embedded if f"mateIn{n}" in puzzle.themes][::every]:
            state = start_line(puzzle.fen, puzzle.moves)
            assert chess_miner.mate_line(state.board, n) == list(state.rest), puzzle.id
    for puzzle in embedded[::3]:
        assert chess_line(puzzle.fen, puzzle.moves, puzzle.moves.split()[1::2]) == "solved"


def test_embedded_splits(embedded: tuple[Puzzle, ...]) -> None:
    assert len({puzzle.key for puzzle in embedded}) == len({puzzle.id for puzzle in embedded}) == len(embedded)
    sizes: Counter[str] = Counter(puzzle.split for puzzle in embedded)
    for split, share in (("train", 0.6), ("search", 0.2), ("test", 0.2)):
        assert abs(sizes[split] / len(embedded) - share) < 0.03
    assert {puzzle.tier for puzzle in embedded} >= set(TIERS[:5])


# --- The miner ------------------------------------------------------------------------------------------------------


def test_forced_mates_by_search() -> None:
    mate2 = chess.Board("7k/8/5K2/8/8/8/8/6R1 w - - 0 1")  # Kf7 is the only move: then Rh1 mates.
    assert not chess_miner.can_mate(mate2, 1) and chess_miner.can_mate(mate2, 2)
    assert [move.uci() for move in chess_miner.mate_line(mate2, 2) or []] == ["f6f7", "h8h7", "g1h1"]
    assert chess_miner.mate_line(mate2, 1) is None
    assert chess_miner.mate_line(chess.Board("k7/8/1K6/8/8/8/8/QR6 w - - 0 1"), 1) is None  # Several mates.
    assert not chess_miner.can_mate(chess.Board("8/8/8/4k3/8/8/8/R3K3 w - - 0 1"), 2)
    assert not chess_miner.can_mate(chess.Board("k7/2Q5/8/8/8/8/8/K7 w - - 0 1"), 0)


def test_guess_changes_no_result() -> None:
    board = chess.Board("7k/8/5K2/8/8/8/8/6R1 w - - 0 1")
    lines = {tuple(chess_miner.mate_line(board, 2, guess) or ()) for guess in [None, *board.legal_moves]}
    assert len(lines) == 1


def test_games_are_repeatable_and_their_puzzles_sound() -> None:
    wanted = frozenset(chess_miner.SHARES)
    finds = [find for game in range(5) for find in chess_miner.mine_game(f"test/{game}", None, wanted)]
    again = [find for game in range(5) for find in chess_miner.mine_game(f"test/{game}", None, wanted)]
    assert finds == again and len(finds) >= 2
    for find in finds:
        state = start_line(find.fen, " ".join(move.uci() for move in find.moves))
        assert chess_miner.mating_moves(state.board) == list(state.rest)
        assert chess_miner.row_of(find)["LegalMoves"] == state.board.legal_moves.count()


def test_themes_by_computation() -> None:
    def themes(fen: str, *line: str) -> list[str]:
        return chess_miner.themes_of(chess.Board(fen), [chess.Move.from_uci(move) for move in line])

    assert themes("6k1/5ppp/8/8/8/8/8/4R1K1 w - - 0 30", "e1e8") == [
        "backRankMate",
        "endgame",
        "mate",
        "mateIn1",
        "oneMove",
    ]
    assert "smotheredMate" in themes("6rk/6pp/8/6N1/8/8/8/6K1 w - - 0 30", "g5f7")
    assert {"fork", "oneMove"} <= set(themes("q3k3/8/8/1N6/8/8/8/4K3 w - - 0 30", "b5c7"))
    assert "hangingPiece" in themes("4k3/8/8/3r4/8/8/8/3RK3 w - - 0 30", "d1d5")
    assert "underPromotion" in themes("8/P6k/8/8/8/8/8/K7 w - - 0 1", "a7a8n")


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chess_miner, "_GAMES_A_BATCH", 4)
    out = tmp_path / "mined.csv.zst"
    arguments = ["--rows", "6", "--seed", "3", "--stockfish", "none", "--out", str(out)]
    assert chess_miner.main(arguments) == 0
    mined = load_puzzles(out)
    assert len(mined) == 6 and {puzzle.solver_moves for puzzle in mined} == {1}
    assert [path.name for path in tmp_path.iterdir()] == [out.name]
    first = out.read_bytes()
    assert chess_miner.main(arguments) == 0 and out.read_bytes() == first
    for wrong in (["--rows", "0"], ["--stockfish", "/bin/true"], ["--stockfish", "/no/such"]):
        with pytest.raises(SystemExit) as exit_:
            chess_miner.main([*wrong, "--out", str(out)])
        assert exit_.value.code == 2
    errors = capsys.readouterr().err
    assert "'/no/such' is not a program" in errors and "'/bin/true' does not answer" in errors


def test_a_journal_is_taken_up_only_by_the_same_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "mined.csv"
    journal = tmp_path / "mined.csv.journal"
    journal.write_text(json.dumps({"rows": 9, "seed": 0, "engine": None}) + "\n", encoding="utf-8")
    with pytest.raises(SystemExit):
        chess_miner.main(["--rows", "6", "--stockfish", "none", "--out", str(out)])
    assert "another run" in capsys.readouterr().err and not out.exists()


def test_shared_rows_and_the_lichess_sample(tmp_path: Path) -> None:
    shared = Path(os.environ.get("WHALE_SHARED", Path(__file__).parents[2] / "shared"))
    if not (shared / "cases" / "chess_cases.jsonl").exists():
        pytest.skip("no shared cases here")
    for case in map(json.loads, (shared / "cases" / "chess_cases.jsonl").read_text("utf-8").strip("\n").split("\n")):
        path = tmp_path / "row.csv"
        row = case["candidate"][0] if case["category"] == "csv" else f"{case['id']},{case['fen']},{case['moves']}"
        path.write_text(row + "\n", encoding="utf-8")
        if case["expected"] in ("row_rejected", "row_error"):
            with pytest.raises(PuzzleRowError):
                load_puzzles(path)
        else:
            assert len(load_puzzles(path)) == 1, case["id"]
    sample = read_puzzles(shared / "data" / "lichess_puzzles_500.csv")
    assert len(sample.puzzles) == 500 and sample.report.bad == ()
