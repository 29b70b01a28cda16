"""The commands as a user types them: errors are one line and exit code 2, runs resume after a kill, figures repeat."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PUZZLES = "PuzzleId,FEN,Moves,Rating,RatingDeviation,Popularity,NbPlays,Themes,GameUrl,OpeningTags\n"
GOOD_ROW = "a,6k1/5ppp/8/8/8/8/5PPP/4R1K1 b - - 0 1,g8h8 e1e8,600,80,90,1,mateIn1,x,\n"
BAD_ROW = "b,6k1/5ppp/8/8/8/8/5PPP/4R1K1 b - - 0 1,g8h8 e1e9,600,80,90,1,mateIn1,x,\n"


def run(module: str, *flags: str, cwd: Path | None = None, code: int | None = 0) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-m", module, *flags], capture_output=True, text=True, env=env, cwd=cwd or ROOT, check=False
    )
    assert code is None or done.returncode == code, done.stdout + done.stderr
    return done


def small(model: str, out: Path, *more: str) -> list[str]:
    """Flags of a run of a few seconds."""
    return [
        *("--env", "chess", "--preset", "smoke", "--model", model, "--out", str(out)),
        *("--agent.max-prompt-tokens", "1900", "--agent.max-tokens", "24", *more),
    ]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--wrong-flag", "3"], "--wrong-flag"),
        (["--preset", "huge"], "choose from smoke, laptop, paper"),
        (["--env", "ches"], "Did you mean 'chess'"),
        (["--env", "no_such_package:Env-v0"], "no_such_package"),
        (["--env-args", "{bad"], "must be a JSON object"),
        (["--env-args", '{"tires": ["1"]}'], "tires"),
        (["--env-args", '{"tiers": ["9"]}'], "unknown tier '9'"),
        (["--env-args", '{"source": "nowhere.csv"}'], "no puzzle file 'nowhere.csv'"),
        (["--env-args", '{"source": "half.csv"}'], "line 3, puzzle 'b'"),
        (["--env-args", '{"source": "pyproject.toml"}'], "pyproject.toml"),
        (["--model", "smolm"], "no model 'smolm'"),
        (["--model", "./empty"], "no model './empty'"),
        (["--harness", "nowhere.py:X"], "no harness file 'nowhere.py'"),
        (["--harness", "broken.py"], "SyntaxError"),
        (["--resume"], "--resume needs --out"),
        (["--seed", "x"], "seed"),
        (["--env", "CartPole-v1"], "--env gymnasium"),
        (["--weights.prompts", "0"], "--weights.prompts is 0; give at least 1"),
        (["--search.holdout", "1.5"], "--search.holdout is 1.5"),
        (["--search.proposer.kind", "openai"], "model"),
    ],
)
def test_what_a_user_can_get_wrong_is_one_line(flags: list[str], words: str, tmp_path: Path) -> None:
    (tmp_path / "half.csv").write_text(PUZZLES + GOOD_ROW + BAD_ROW)
    (tmp_path / "pyproject.toml").write_text("not a puzzle file")
    (tmp_path / "broken.py").write_text("class X(:\n")
    done = run("optimizers.whale", *flags, cwd=tmp_path, code=2)
    assert words in done.stderr and done.stderr.startswith("error: ")
    assert len(done.stderr.strip().splitlines()) == 1 and not done.stdout
    assert not (tmp_path / "runs").exists()


def test_a_run_directory_of_another_config_is_refused(tmp_path: Path, tiny_model: str) -> None:
    (tmp_path / "config.json").write_text('{"env": "chess", "seed": 5}')
    (tmp_path / "journal.jsonl").touch()
    done = run("optimizers.whale", *small(tiny_model, tmp_path), "--resume", code=2)
    assert "another config" in done.stderr and len(done.stderr.strip().splitlines()) == 1
    assert "give --resume" in run("optimizers.whale", *small(tiny_model, tmp_path), code=2).stderr


def test_a_dry_run_prints_the_plan_and_does_nothing(tmp_path: Path) -> None:
    done = run("optimizers.whale", "--env", "chess", "--dry-run", "--out", str(tmp_path / "run"))
    assert json.loads(done.stdout)["env"] == "chess" and "rollouts in all" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--harness", "nowhere.py:X"], "no harness file 'nowhere.py'"),
        (["--model", "smolm"], "no model 'smolm'"),
        (["--out", "/dev/null/run"], "cannot write to /dev/null/run: /dev/null is no folder"),
    ],
)
def test_a_dry_run_says_no_to_what_a_run_would_refuse(flags: list[str], words: str) -> None:
    done = run("optimizers.whale", "--env", "chess", "--dry-run", *flags, code=2)
    assert done.stderr.startswith(f"error: {words}") and done.stderr.count("\n") == 1 and not done.stdout


@pytest.mark.parametrize("module", ["whale", "rsft", "meta_harness", "evaluate", "controls"])
def test_help_has_examples(module: str) -> None:
    done = run(f"optimizers.{module}", "--help")
    assert "examples:" in done.stdout and f"python -m optimizers.{module}" in done.stdout and "--seed" in done.stdout


@pytest.mark.parametrize(
    ("flags", "status"),
    [(["optimizers.evaluate", "--help"], 0), (["benchmarks.selection", "--help"], 141)],
)
def test_a_reader_that_leaves_is_no_traceback(flags: list[str], status: int) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", *flags]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, cwd=ROOT, check=False)
    os.close(writer)
    assert done.returncode == status and not done.stderr


def test_ctrl_c_during_imports_is_no_traceback() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "optimizers.whale", "--env", "chess", "--dry-run"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stderr is not None
    for line in process.stderr:
        if "harness_sdk." in line:
            break
    process.send_signal(signal.SIGINT)
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
    assert process.wait() in (-signal.SIGINT, 130)


def figures(out: Path) -> tuple[object, ...]:
    """What must repeat: metrics, the accepted harness, and all of the result but the times."""
    result = json.loads((out / "result.json").read_text())
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    for line in metrics:
        assert line.pop("time") > 1.7e9 and line.pop("seconds") >= 0
    return metrics, re.sub(r'"seconds": [0-9.e+-]+', "", json.dumps({k: v for k, v in result.items() if k != "spent"}))


def test_a_killed_run_resumes_to_the_same_end(tmp_path: Path, tiny_model: str) -> None:
    run("optimizers.whale", *small(tiny_model, tmp_path / "straight"))
    flags = [sys.executable, "-m", "optimizers.whale", *small(tiny_model, tmp_path / "killed")]
    journal = tmp_path / "killed" / "journal.jsonl"
    for lines in (2, 5, 8):
        process = subprocess.Popen(
            flags if lines == 2 else [*flags, "--resume"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
        )
        deadline = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < deadline:
            if journal.is_file() and len(journal.read_text().splitlines()) >= lines:
                break
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not (tmp_path / "killed" / "result.json").is_file()
    done = run("optimizers.whale", *small(tiny_model, tmp_path / "killed"), "--resume")
    assert figures(tmp_path / "killed") == figures(tmp_path / "straight")
    assert "final" in done.stdout and str(tmp_path / "killed") in done.stdout
    keys = [json.loads(line)["key"] for line in journal.read_text().splitlines()]
    assert len(keys) == len(set(keys))
    again = run("optimizers.whale", *small(tiny_model, tmp_path / "killed"), "--resume")
    assert again.stdout == done.stdout  # nothing is left to do; the table is shown once more
    evaluated = run("optimizers.evaluate", "--run", str(tmp_path / "killed"), "--tasks", "2", "--k", "1")
    assert json.loads(evaluated.stdout)["rollouts"] == 2


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)


def test_the_readme_begins_with_a_whole_program() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert text[: text.index("```python")].count("\n") < 20
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", blocks("python")[0]], capture_output=True, text=True, env=env, check=True
    )
    assert len(done.stdout.splitlines()) == 3


def test_the_readme_harness_is_sound_and_runs(tmp_path: Path, tiny_model: str) -> None:
    source = next(block for block in blocks("python") if block.startswith("# my_harness.py"))
    assert source.count("\n") <= 40
    (tmp_path / "my_harness.py").write_text(source)
    checked = run("harness_sdk.check", "my_harness.py", "--env", "chess", cwd=tmp_path)
    assert "FirstWord: valid" in checked.stdout and "sound" in checked.stdout
    flags = small(tiny_model, tmp_path / "run", "--harness", "my_harness.py:FirstWord", "--method", "weight-only")
    run("optimizers.whale", *flags, cwd=tmp_path)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["harness"]


def test_the_readme_domain_runs_from_another_package(tmp_path: Path, tiny_model: str) -> None:
    source = next(block for block in blocks("python") if block.startswith("# my_pkg.py"))
    assert source.count("\n") <= 45
    (tmp_path / "my_pkg.py").write_text(source)
    flags = ["--env", "my_pkg:MySums-v0", "--preset", "smoke", "--model", tiny_model, "--out", "run"]
    run("optimizers.whale", *flags, "--agent.max-prompt-tokens", "1900", cwd=tmp_path)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["env"] == "my_pkg:MySums-v0" and result["base"]["tasks"] == 4


def test_check_says_what_to_fix(tmp_path: Path) -> None:
    cheat = tmp_path / "cheat.py"
    cheat.write_text(
        "from harness_sdk import Harness, ToolCall\n\n\nclass Cheat(Harness):\n"
        "    def parse(self, completion, episode):\n"
        "        move = episode.observation.data['legal_moves'][0]['uci']\n"
        "        return [ToolCall('move', {'uci': move})]\n"
    )
    done = run("harness_sdk.check", str(cheat), code=1)
    assert "[violation]" in done.stdout and "the model did not say" in done.stdout
    cheat.write_text("import os\nfrom harness_sdk import Harness\n\n\nclass Os(Harness):\n    pass\n")
    done = run("harness_sdk.check", str(cheat), code=1)
    assert "line 1" in done.stdout and "import" in done.stdout
    assert "no harness file" in run("harness_sdk.check", str(tmp_path / "no.py"), code=2).stderr
