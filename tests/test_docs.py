"""The pages that list things list all of them, and their examples run."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

from test_optimizers_cli import MATE, small

import whale_env
from harness_sdk import Harness, ScriptedPolicy, jobs_for, load, rollout, validate
from optimizers.run import start

DOCS = Path(__file__).parents[1] / "docs"


def test_every_file_of_a_run_directory_is_listed(tmp_path: Path) -> None:
    config = small()
    config = replace(config, search=replace(config.search, iterations=2, candidates=1))
    start.start(config, whale_env.handle("chess", MATE), tmp_path / "run", resume=False)
    named = re.findall(r"^\| `([^`]+)`", (DOCS / "run_directory.md").read_text("utf-8"), re.M)
    patterns = [re.sub(r"<\w+>", "*", name) for name in named]
    for file in (tmp_path / "run").rglob("*"):
        name = str(file.relative_to(tmp_path / "run"))
        assert file.is_dir() or any(fnmatch(name, pattern) for pattern in patterns), name


def test_every_hook_is_listed_and_the_example_overrides_them_all(tmp_path: Path) -> None:
    text = (DOCS / "harness.md").read_text("utf-8")
    source = re.findall(r"```python\n(.*?)```", text, re.S)[0]
    hooks = {name for name, value in vars(Harness).items() if callable(value) and not name.startswith("_")}
    assert set(re.findall(r"^\| `(\w+)\(", text, re.M)) == hooks == set(re.findall(r"    def (\w+)\(", source))
    assert validate(source, "chess").ok
    (tmp_path / "careful.py").write_text(source)
    env = whale_env.handle("chess", MATE)
    harness, tasks = load(tmp_path / "careful.py"), env.tasks("train")[:2]
    policy = ScriptedPolicy(lambda messages: "e1e8" if "Your plan" in messages[-1]["content"] else "Checks.")
    for trajectory in asyncio.run(rollout(jobs_for(harness, tasks), env, policy)):
        assert trajectory.score.failure != "harness_error", trajectory.stopped
        assert len(trajectory.turns) >= 2
