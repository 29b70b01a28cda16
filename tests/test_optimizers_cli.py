"""What the optimisers' commands print, refuse and leave behind, called in this process; `test_commands` starts them."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from riddles import Riddles

import whale_env
from harness_sdk import ScriptedPolicy
from harness_sdk.policies import Generation, PolicyError, Request
from optimizers.commands import controls, evaluate, optimise
from optimizers.commands.cli import one_line_errors
from optimizers.commands.optimise import _follow_up
from optimizers.config import RunConfig, ScheduleConfig, preset
from optimizers.record.rundir import RunDir, RunDirError
from optimizers.run import plan, start
from optimizers.run.display import Display, outliving_readers
from optimizers.search import meta_harness
from whale_env import Task, ToolEnv
from whale_env.types import Split

MATE = {"tiers": ["1"]}
BAD = """from harness_sdk import Harness


class Bad(Harness):
    def pack(self, episode):
        raise KeyError("gone")
"""


def scripted(model: str) -> ScriptedPolicy:
    return ScriptedPolicy([f"<move>{model}</move>"])


class Down:
    async def generate(self, request: Request) -> Generation:
        raise PolicyError(f"no server,\nfor {request.max_tokens} tokens")


def down(model: str) -> Down:
    return Down()


SCRIPTED = ["--backend.kind", f"{__name__}:scripted", "--model", "e2e4"]


class Gaps(Riddles):
    """Riddles without tasks in some splits."""

    def __init__(self, *without: Split) -> None:
        super().__init__()
        self._without = without

    def tasks(self, split: Split) -> Sequence[Task]:
        return [] if split in self._without else super().tasks(split)


for gap in ("train", "search", "test"):
    gym.register(f"gaps/{gap.title()}-v0", entry_point=lambda gap=gap, **_: ToolEnv(Gaps(gap)))


@pytest.fixture(autouse=True)
def no_tracebacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WHALE_TRACEBACK", raising=False)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Returns a function that runs a command's main and gives its exit status and what it printed."""

    def run(main: Callable[[], None], *flags: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["command", *flags])
        status = 0
        try:
            main()
        except SystemExit as stop:
            status = int(stop.code or 0)
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


def small(method: str = "harness-only", **changes: Any) -> RunConfig:
    """A run on a scripted policy: no model, a second."""
    config = replace(preset("smoke", "chess"), method=method, model="e2e4")  # type: ignore[arg-type]
    return replace(
        config,
        **{
            "backend": replace(config.backend, kind=f"{__name__}:scripted"),
            "search": replace(config.search, iterations=1, examples=2, samples=1),
            "evaluation": replace(config.evaluation, tasks=2, k=1),
            **changes,
        },
    )


# What a command refuses


@pytest.mark.parametrize(
    ("main", "flags", "words"),
    [
        (controls.main, ["--out", "runs/ctl"], "keeps no run directory; leave --out out"),
        (controls.main, ["--resume"], "leave --resume out"),
        (controls.main, ["--search.samples", "0"], "--search.samples is 0; give at least 1"),
        (controls.main, ["--env-args", "[1]"], "--env-args must be a JSON object, not '[1]'"),
        (controls.main, ["--env", "gaps/Search-v0", "--dry-run"], "no task in its search split"),
        (controls.main, ["--method", "whale"], "takes no --method whale; for that use python -m optimizers.whale"),
        (
            optimise.meta_harness,
            ["--method", "whale"],
            "takes no --method whale; for that use python -m optimizers.whale",
        ),
        (optimise.rsft, ["--method", "fst"], "takes no --method fst; for that use python -m optimizers.whale"),
        (evaluate.main, ["--run", "r", "--env", "chess"], "--run takes the run's own environment; leave --env out"),
        (evaluate.main, ["--run", "r", "--env-args", "{}"], "leave --env-args out"),
        (evaluate.main, ["--run", "r", "--model", "x"], "--run takes the run's own model; leave --model out"),
        (evaluate.main, ["--tasks", "-14"], "error: --tasks is -14; give at least 0"),
        (evaluate.main, ["--k", "0"], "error: --k is 0; give at least 1"),
        (evaluate.main, ["--temperature", "-1"], "error: --temperature must be at least 0, not -1"),
        (evaluate.main, ["--max-turns", "-1"], "error: --max-turns must be at least 0, not -1 (see"),
        (evaluate.main, ["--backend.kind", "vlm"], "Did you mean 'vllm'?"),
        (evaluate.main, ["--env-args", "[1]"], "--env-args must be a JSON object, not '[1]'"),
        (evaluate.main, ["--env-args", '"x"'], "--env-args must be a JSON object"),
        (evaluate.main, ["--env-args", "{tiers: 1}"], "--env-args must be a JSON object"),
        (evaluate.main, ["--env", "gaps/Test-v0", *SCRIPTED], "no task in its test split; choose another with --split"),
        (
            optimise.whale,
            ["--env", "gaps/Search-v0", "--dry-run"],
            "no task in its search split; --method whale needs tasks in",
        ),
        (optimise.whale, ["--env", "gaps/Test-v0", "--dry-run"], "no task in its test split"),
        (optimise.whale, ["--env", "gaps/Train-v0", "--dry-run"], "needs tasks in train, search and test"),
        (
            optimise.whale,
            ["--method", "whal"],
            "error: --method 'whal' is not known; choose from whale, adaptive, weight-only,",
        ),
        (optimise.whale, ["--seed", "x"], "error: --seed is 'x'; give a whole number (see"),
        (optimise.whale, ["--weights.lr", "x"], "error: --weights.lr is 'x'; give a number (see"),
        (optimise.whale, ["--weights.lr"], "error: --weights.lr needs a value (see"),
        (
            optimise.whale,
            ["--budget.epoch", "3"],
            "error: unknown option --budget.epoch 3. Did you mean --budget.epochs?",
        ),
    ],
)
def test_it_is_one_line(main: Callable[[], None], flags: list[str], words: str, command: Any) -> None:
    status, out, err = command(main, *flags)
    assert status == 2 and not out and words in err
    assert err.startswith("error: ") and err.count("\n") == 1
    assert "Value error" not in err and "Invalid choice" not in err


@pytest.mark.parametrize(("method", "split"), [("whale", "search"), ("weight-only", "train"), ("harness-only", "test")])
def test_a_run_without_tasks_makes_nothing(method: str, split: str, tmp_path: Path) -> None:
    env = whale_env.handle(f"gaps/{split.title()}-v0")
    with pytest.raises(ValueError, match=f"no task in its {split} split"):
        start.start(small(method, env="gaps", env_args="{}"), env, tmp_path / "run", resume=False)
    assert not (tmp_path / "run").exists()
    plan.require_tasks(small("harness-only"), whale_env.handle("gaps/Train-v0"))  # it trains nothing


# Dry runs


def test_a_control_shows_its_plan_and_plays_nothing(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controls, "_best_of", None)
    status, out, err = command(controls.main, "--preset", "smoke", "--env", "chess", "--dry-run")
    assert status == 0 and json.loads(out)["env"] == "chess"
    assert "40 rollouts  best of 5: ChessH0 on 4 search tasks, 2 times each" in err
    assert "40 rollouts in all" in err
    status, out, _ = command(controls.main, "--help")
    assert status == 0 and "--dry-run" in out and "--out" not in out and "--resume" not in out


def test_a_control_plays_what_it_planned(command: Any) -> None:
    status, out, _ = command(controls.main, "--preset", "smoke", "--env", "chess", *SCRIPTED)
    assert status == 0 and len(json.loads(out)["means"]) == 5


def test_an_adaptive_plan_counts_the_most_and_says_so(command: Any) -> None:
    env = whale_env.handle("chess", MATE)
    schedule = ScheduleConfig(max_epochs=1.5, max_iterations=7)
    config = replace(preset("smoke", "chess"), method="adaptive", schedule=schedule)
    rows = dict(plan.planned(config, env))
    assert rows["all weight phases: 4 steps"] == 4 * 2 * 4  # an epoch of 8 tasks, 2 a step, 4 rollouts each
    assert rows["all harness phases: 2 iterations"] == 2 * 2 * 4 * 2
    assert rows["incoming harnesses of at most 1 phases"] == 4 * 2
    fixed = dict(plan.planned(replace(config, method="whale"), env))
    assert fixed["weights-1: 2 steps"] == 16 and fixed["harness-1: 2 iterations"] == 40
    flags = ["--env", "chess", "--preset", "smoke", "--dry-run"]
    assert "rollouts in all at most;" in command(optimise.whale, *flags, "--method", "adaptive")[2]
    assert "rollouts in all; 72 of them train and search; run directory" in command(optimise.whale, *flags)[2]


def test_a_plan_counts_the_tasks_there_are() -> None:
    env = whale_env.handle("riddles/Riddles-v0")
    config = small(evaluation=replace(preset("smoke", "chess").evaluation, tasks=0))
    assert dict(plan.planned(config, env))["test base"] == 10 * 2


# Evaluation


def test_failures_are_counted_and_a_broken_harness_is_said(tmp_path: Path, command: Any) -> None:
    (tmp_path / "bad.py").write_text(BAD)
    flags = ["--env", "chess", "--env-args", json.dumps(MATE), "--tasks", "3", "--k", "2", *SCRIPTED]
    status, out, err = command(evaluate.main, *flags, "--harness", str(tmp_path / "bad.py"))
    row = json.loads(out)
    assert status == 0 and row["mean"] == 0 and row["failures"] == {"harness_error": 6}
    assert err.startswith("warning: all 6 rollouts ended in harness_error, the first so: pack: KeyError: 'gone'")
    assert err.count("\n") == 1
    status, out, err = command(evaluate.main, *flags, "--max-tokens", "77")
    row = json.loads(out)
    assert status == 0 and not err and sum(row["failures"].values()) <= row["rollouts"] == 6
    assert row["env_args"] == MATE and row["agent"]["max_tokens"] == 77 and row["agent"]["max_turns"] == 0


def test_a_backend_that_never_answers_is_said(command: Any) -> None:
    flags = ["--env", "riddles/Riddles-v0", "--tasks", "2", "--k", "1", "--backend.kind", f"{__name__}:down"]
    status, out, err = command(evaluate.main, *flags)
    row = json.loads(out)
    assert status == 0 and row["failures"] == {"env_error": 2} and row["unknown"] == 2
    assert err.startswith("warning: all 2 rollouts ended in env_error, the first so: policy: no server, for ")


def test_the_help_tells_where_the_limits_differ_from_a_run(command: Any) -> None:
    text = " ".join(command(evaluate.main, "--help")[1].split())
    assert "nothing is taken from a preset" in text and "(default: 8192)" in text


# Run directories


def test_a_start_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env, config = whale_env.handle("chess", MATE), small()
    broken = replace(config, backend=replace(config.backend, kind="builtins:str"))
    out = tmp_path / "runs" / "mine"
    with pytest.raises(ValueError, match="has no method generate"):
        start.start(broken, env, out, resume=False)
    assert not (tmp_path / "runs").exists()
    out.mkdir(parents=True)
    with pytest.raises(ValueError, match="has no method generate"):
        start.start(broken, env, out, resume=False)
    assert out.is_dir() and not list(out.iterdir())  # it was there before
    with monkeypatch.context() as patch:

        async def interrupted(*_: object) -> Any:
            raise KeyboardInterrupt

        patch.setattr("optimizers.run.whale.evaluate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            start.start(config, env, out, resume=False)
    assert not list(out.iterdir())
    with monkeypatch.context() as patch:
        patch.setattr(meta_harness.MetaHarness, "iterate", None)
        with pytest.raises(TypeError):
            start.start(config, env, out, resume=False)
    assert "evaluation/base" in (out / "journal.jsonl").read_text()  # finished, so kept
    with monkeypatch.context() as patch:
        patch.setattr(meta_harness.MetaHarness, "iterate", None)
        with pytest.raises(TypeError):
            start.start(config, env, out, resume=True)
    assert start.start(config, env, out, resume=True).base.rollouts == 2


def test_a_directory_that_cannot_be_begun_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("optimizers.record.rundir._environment", full)
    with pytest.raises(RunDirError, match="No space left"):
        RunDir.open(tmp_path / "a" / "run", {}, resume=False)
    assert not (tmp_path / "a").exists()


def test_another_config_is_told_by_its_flag(tmp_path: Path) -> None:
    RunDir.open(tmp_path, {"env": "chess", "backend": {"dtype": "x", "kind": "vllm"}}, resume=False)
    with pytest.raises(RunDirError, match=r"another config: backend\.dtype is 'x' there, 'y' here$"):
        RunDir.open(tmp_path, {"env": "chess", "backend": {"dtype": "y", "kind": "vllm"}}, resume=True)
    with pytest.raises(
        RunDirError, match=r"backend is None there|backend\.dtype is 'x' there, None here \(and 1 more\)"
    ):
        RunDir.open(tmp_path, {"env": "chess"}, resume=True)


def test_the_follow_up_names_files_that_are_there(tmp_path: Path) -> None:
    assert "index.md" not in "".join(_follow_up(tmp_path, "abc"))
    (tmp_path / "harnesses").mkdir()
    (tmp_path / "harnesses" / "index.md").touch()
    assert f"{tmp_path}/harnesses/index.md" in _follow_up(tmp_path, "abc")[0]


# Ctrl-C and closed pipes


def test_ctrl_c_tells_how_to_go_on_where_one_can(
    tmp_path: Path, command: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(start, "start", interrupted)
    out = tmp_path / "run"
    flags = ["--env", "chess", "--preset", "smoke", "--out", str(out)]
    assert command(optimise.whale, *flags) == (130, "", "stopped; nothing was finished\n")
    out.mkdir()
    (out / "config.json").touch()
    status, _, err = command(optimise.whale, *flags)
    assert status == 130 and err.endswith(f"Give --out {out} --resume to go on.\n")
    monkeypatch.setattr(evaluate, "evaluate_pair", interrupted)
    assert command(evaluate.main) == (130, "", "stopped\n")
    with pytest.raises(SystemExit), one_line_errors():
        raise KeyboardInterrupt
    assert capsys.readouterr().err == "stopped\n"


def test_ctrl_c_is_not_lost_in_a_destructor(capsys: pytest.CaptureFixture[str]) -> None:
    class Torn:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(SystemExit) as left, one_line_errors():
        Torn()
        time.sleep(10)
        raise AssertionError("it went on")
    assert left.value.code == 130 and capsys.readouterr().err == "stopped\n"


@contextlib.contextmanager
def unread() -> Iterator[None]:
    """Makes standard output and error a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    with (
        open(writer, "w", encoding="utf-8", buffering=1) as stream,
        contextlib.redirect_stdout(stream),
        contextlib.redirect_stderr(stream),
    ):
        yield


def test_a_run_goes_on_when_nobody_reads_it(tmp_path: Path) -> None:
    with unread(), Display(3) as display:
        display.line("one")
        display.line("two")
    with unread():
        start.start(small(), whale_env.handle("chess", MATE), tmp_path / "run", resume=False)
    assert (tmp_path / "run" / "result.json").is_file()


@pytest.mark.parametrize("main", [optimise.whale, optimise.rsft, optimise.meta_harness, evaluate.main, controls.main])
def test_help_ends_quietly(main: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["command", "--help"])
    with unread(), pytest.raises(SystemExit) as left:
        main()
    assert left.value.code in (0, None)


def test_a_command_of_no_use_without_a_reader_ends() -> None:
    from benchmarks.command import READER_GONE, finish

    def main() -> int:
        print("a row")
        raise AssertionError("it went on")

    with unread(), pytest.raises(SystemExit) as left:
        finish(main)
    assert left.value.code == READER_GONE
    with pytest.raises(BrokenPipeError), outliving_readers():
        raise BrokenPipeError  # another pipe's


BENCHMARKS = sorted(
    path.stem
    for path in (Path(__file__).parents[1] / "benchmarks").glob("*.py")
    if "__main__" in path.read_text("utf-8") and path.stem != "command"
)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmarks_help_shows_how_it_is_called(name: str, command: Any) -> None:
    module = importlib.import_module(f"benchmarks.{name}")
    status, out, _ = command(module.main, "--help")
    assert status == 0 and out.startswith(f"usage: python -m benchmarks.{name} ")


def test_best_of_is_what_the_command_plays() -> None:
    config = small(env_args=json.dumps(MATE))
    found = asyncio.run(controls._best_of(config))
    assert found.rollouts == controls.planned(config)[0][1]
