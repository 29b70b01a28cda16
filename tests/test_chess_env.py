"""What the chess environment shows: everything of the position, nothing of its solution."""

from __future__ import annotations

import json

import pytest

import whale_env
from whale_env.chess.puzzles import TIERS, load_puzzles
from whale_env.chess.verifier import start_line
from whale_env.core import ToolEnv
from whale_env.types import Observation, ToolCall


@pytest.fixture(scope="module")
def env() -> ToolEnv:
    return whale_env.handle("chess", {}).prototype


def _text(observation: Observation) -> str:
    return json.dumps(observation.to_json(), ensure_ascii=False)


@pytest.mark.parametrize("tier", TIERS)
def test_no_observation_tells_a_mate_from_a_check(env: ToolEnv, tier: str) -> None:
    mates = 0
    for puzzle in load_puzzles(tiers=[tier])[::7]:
        state = start_line(puzzle.fen, puzzle.moves)
        seen = [env.reset(options={"task": puzzle.id})[0]]
        while state.verdict == "incomplete":
            board, move = state.board, state.rest[0]
            mates += "#" in board.san(move)
            listed = {item["uci"]: item["san"] for item in seen[-1].data["legal_moves"]}
            checks = {uci for uci, san in listed.items() if san.endswith("+")}
            assert checks == {option.uci() for option in board.legal_moves if board.gives_check(option)}
            refused, *_, info = env.step(ToolCall("move", {"uci": "a1a1"}))
            assert "#" not in f"{_text(refused)} {info['error']}"
            state = state.play(move.uci())
            seen.append(env.step(ToolCall("move", {"uci": move.uci()}))[0])
        assert state.verdict == "solved"
        assert not any("#" in _text(observation) for observation in seen)
    assert mates > 0 or tier == "6"


def test_a_wrong_move_shows_no_mate_either(env: ToolEnv) -> None:
    for puzzle in load_puzzles(themes=["mateIn2"])[::19]:
        state = start_line(puzzle.fen, puzzle.moves)
        wrong = next(move for move in state.board.legal_moves if state.play(move.uci()).verdict == "failed")
        first, _ = env.reset(options={"task": puzzle.id})
        after, _, over, _, _ = env.step(ToolCall("move", {"uci": wrong.uci()}))
        assert over and "#" not in _text(first) + _text(after)


@pytest.mark.parametrize("mark", ["#", "+", "", "#!"])
def test_a_mate_is_understood_however_it_is_marked(env: ToolEnv, mark: str) -> None:
    puzzle = load_puzzles(themes=["mateIn1"])[0]
    board = start_line(puzzle.fen, puzzle.moves).board
    (san,) = (board.san(move) for move in board.legal_moves if "#" in board.san(move))
    call = ToolCall("move", {"uci": san.replace("#", mark)})
    env.reset(options={"task": puzzle.id})
    assert env.said(call, f"I play {san}.") and env.said(call, f"I play {san.replace('#', mark)}.")
    assert env.step(call)[1] == 1.0
