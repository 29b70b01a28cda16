"""One process a run directory, what a run is made of, and logs that were torn anywhere."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from test_optimizers_cli import BAD, MATE, small

import whale_env
from harness_sdk import models
from optimizers.commands.cli import one_line_errors
from optimizers.commands.optimise import _follow_up
from optimizers.config import ConfigError
from optimizers.record.lock import only_process
from optimizers.record.rundir import JOURNAL, RunDir, RunDirError
from optimizers.run import start

ROOT = Path(__file__).parents[1]
MINE = "from harness_sdk import Harness\n\n\nclass Mine(Harness):\n    system = 'One.'\n"


def test_a_second_process_is_kept_out_until_the_first_ends_however_it_ends(tmp_path: Path) -> None:
    out = tmp_path / "run"
    holds = (
        "import os, sys, time; from pathlib import Path; from optimizers.record.lock import only_process\n"
        f"with only_process(Path({str(out)!r})):\n"
        f"    Path({str(out)!r}, 'config.json').touch(); os.fork() or time.sleep(60)\n"
        "    print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", holds],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        with pytest.raises(RunDirError, match=rf"run is in use by process {process.pid}; wait"), only_process(out):
            pass
        process.kill()  # its child lives on
        process.wait()
        with only_process(out):
            assert (out / "lock").read_text() == str(os.getpid())
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        assert process.stdout is not None
        process.stdout.close()
        process.wait()


def test_a_directory_without_a_run_is_left_as_it_was(tmp_path: Path) -> None:
    env = whale_env.handle("chess", MATE)
    with pytest.raises(RunDirError, match="holds no run"):
        start.start(small(), env, tmp_path / "new" / "run", resume=True)
    (tmp_path / "note.txt").touch()
    with pytest.raises(RunDirError, match="is not empty"):
        start.start(small(), env, tmp_path, resume=False)
    assert [item.name for item in tmp_path.iterdir()] == ["note.txt"]


def test_a_run_goes_on_only_with_what_it_began_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    harness = Path("my_harness.py")
    harness.write_text(MINE)
    puzzles = Path("puzzles.csv")
    env, config = (
        whale_env.handle("chess", MATE),
        replace(small(), harness="my_harness.py:Mine", env_args='{"x": "puzzles.csv"}'),
    )
    puzzles.write_text("one")
    monkeypatch.setattr("optimizers.run.start.require_tasks", lambda *_: None)
    with monkeypatch.context() as patch:
        patch.setattr("optimizers.search.meta_harness.MetaHarness.iterate", None)
        with pytest.raises(TypeError):
            start.start(config, env, Path("run"), resume=False)
    harness.write_text(MINE.replace("One", "Two"))
    with pytest.raises(RunDirError, match=r"^the starting harness my_harness\.py:Mine changed since run began; put it"):
        start.start(config, env, Path("run"), resume=True)
    harness.write_text(MINE)
    puzzles.write_text("two")
    with pytest.raises(RunDirError, match=r"^the file puzzles\.csv changed since run began"):
        start.start(config, env, Path("run"), resume=True)
    puzzles.write_text("one")
    with pytest.raises(RunDirError, match=r"^the train tasks \(and \d more\) changed"):
        start.start(config, whale_env.handle("chess", {"tiers": ["2"]}), Path("run"), resume=True)
    assert start.start(config, env, Path("run"), resume=True).base.rollouts == 2


def test_a_harness_that_never_works_ends_the_run_at_once(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(BAD)
    config = replace(small(), harness=str(tmp_path / "bad.py"))
    words = (
        r"the starting harness Bad does not work: all 2 rollouts ended in harness_error, the first so: pack: KeyError"
    )
    with pytest.raises(ConfigError, match=words):
        start.start(config, whale_env.handle("chess", MATE), tmp_path / "run", resume=False)
    assert not (tmp_path / "run").exists()


def test_a_journal_torn_inside_a_character_loses_that_line_alone(tmp_path: Path) -> None:
    run = RunDir.open(tmp_path / "run", {}, resume=False)
    run.finish("one", {"text": "é"}, 0.0)
    whole = (run.path / JOURNAL).read_bytes()
    run.finish("two", {"text": "é"}, 0.0)
    both = (run.path / JOURNAL).read_bytes()
    for end in range(len(whole), len(both)):
        (run.path / JOURNAL).write_bytes(both[:end])
        again = RunDir.open(run.path, {}, resume=True)
        assert again.done()[0] == "one" and again.result("one") == {"text": "é"}
        assert again.done() == ["one"] or end == len(both) - 1  # all but the line break
        again.finish("three", {}, 0.0)
        assert RunDir.open(run.path, {}, resume=True).done()[-1] == "three"


def test_follow_up_commands_can_be_pasted() -> None:
    look, measure = _follow_up(Path("my runs/it's"), "h")
    assert "'my runs/it'\"'\"'s/harnesses/h/harness.py'" in look and """--run 'my runs/it'"'"'s' --tasks""" in measure


def test_warnings_of_a_command_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with one_line_errors():
        warnings.simplefilter("always")
        warnings.warn("told\ntwice", stacklevel=1)
    assert capsys.readouterr().err == "warning: told twice\n"


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("WHALE_CACHE", str(tmp_path / "file"))
    with pytest.raises(models.ModelNotFoundError, match=r"cannot keep the model in .*file: Not a directory; set WHALE"):
        models.resolve("smollm2-135m")
