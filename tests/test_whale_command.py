"""The console command ``whale``, and the live line of a run."""

from __future__ import annotations

import io
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
from rich.console import Console
from test_rollout import play

from harness_sdk import Harness
from optimizers.commands import main
from optimizers.run.display import Display


def called(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["whale", *arguments])
    try:
        main.main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def test_every_command_has_its_door_and_is_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert all(find_spec(module) for module, _ in main.DOORS.values())
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["scripts"] == {"whale": "optimizers.commands.main:main"}
    assert called(monkeypatch) == called(monkeypatch, "--help") == 0
    assert capsys.readouterr().out.startswith("examples:\n  whale run --env chess")
    monkeypatch.setattr(main.metadata, "version", lambda name: {"whale-rl": "1.2"}[name])
    assert called(monkeypatch, "--version") == 0 and capsys.readouterr().out == "whale 1.2\n"
    assert called(monkeypatch, "chek") == 2
    assert capsys.readouterr().err == "error: no command 'chek'. Did you mean 'check'? (see whale --help)\n"
    assert called(monkeypatch, "evaluate", "--wrong") == 2
    assert "unknown option --wrong" in capsys.readouterr().err


def test_the_live_line_fits_80_columns_and_tells_the_time_left() -> None:
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=80, color_system=None)
    trajectory = play(Harness, ["<answer>2</answer>"])[0]
    with Display(4608, console) as display:
        display.skip(608)
        display.unit("harness-1 iteration 6/6")
        for _ in range(16):
            display.rollout(trajectory)
        display.unit("harness-2 iteration 1/6")
        display._progress.refresh()
    line = next(line for line in reversed(shown.getvalue().splitlines()) if "harness-2 iteration 1/6" in line)
    assert "624/4608" in line and "tok/s" in line and line.rstrip().endswith("left") and "…" not in line
