"""`docs/new_domain.md` is run as written, and the contract checks find what they are there for."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import pytest
from riddles import Riddle, Riddles

from whale_env import EnvHandle, Observation, Outcome, Score, Task, ToolCall, ToolEnv
from whale_env.testing import RULES, ContractError, Subject, check_domain, problems
from whale_env.types import Split

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "new_domain.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's files, each under the name that its first line gives."""
    made = tmp_path_factory.mktemp("domain")
    for block in blocks("python"):
        (made / block.split("\n", 1)[0].removeprefix("# ")).write_text(block)
    return made


def run(folder: Path, *command: str) -> str:
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, cwd=folder, env=env, check=False, timeout=280
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_domain_is_short() -> None:
    source = next(block for block in blocks("python") if "ToolEnv" in block)
    assert source.count("\n") < 60


def test_the_scripted_policy_breaks_every_code(folder: Path) -> None:
    assert run(folder, "play.py") == "20.0 of 20\n"


def test_the_domain_keeps_the_contract(folder: Path) -> None:
    run(folder, "-W", "error", "-c", "import test_codebreaker as t; t.test_codebreaker_keeps_the_contract()")
    command = next(line for block in blocks("sh") for line in block.splitlines() if "whale_env.testing" in line)
    said = run(folder, *command.split()[1:])
    assert said.count("kept") == len(RULES) and "FAILED" not in said


def test_every_command_of_the_page_resolves(folder: Path) -> None:
    pytest.importorskip("reasoning_gym")
    commands = [line for block in blocks("sh") for line in block.splitlines() if "optimizers.whale" in line]
    assert len(commands) == 3
    for command in commands:
        *flags, arguments = re.split(r"--env-args '(.*?)'", command)[0].split()[1:], re.findall(r"'(.*?)'", command)
        extra = ["--env-args", arguments[0]] if arguments else []
        assert "rollouts in all" in run(folder, *flags[0], *extra, "--preset", "smoke", "--dry-run")


# Domains that break one rule each


class Broken(Riddles):
    """Riddles whose sessions, tasks or tools are wrong in one way."""

    def __init__(self, session: type[Riddle] = Riddle, **facts: Any) -> None:
        super().__init__()
        self._session, self._facts, self._listed = session, facts, 0

    def tasks(self, split: Split) -> Sequence[Task]:
        first = {"train": 10, "search": 20, "test": 30}[split]
        self._listed += 1
        names = [f"{split}-{first + n}" for n in range(10)]
        if self._facts.get("unstable") and self._listed % 2:
            names.reverse()
        if self._facts.get("shared") and split == "test":
            names = [f"test-{10 + n}" for n in range(10)]
        data = {name: {"answer": 1} if self._facts.get("named") else {} for name in names}
        return [
            Task(name, "riddles", "train" if self._facts.get("mislabelled") else split, data[name]) for name in names
        ]

    def start(self, task: Task, seed: int) -> Riddle:
        return self._session(int(task.id.rsplit("-", 1)[1]))


class Leaks(Riddle):
    """Holds its answer where it is found, and shows it under another name."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.kept = str(2 * number)

    def observe(self) -> Observation:
        return Observation(f"What is twice {self._number}?", {"checksum": 2 * self._number})


class Prints(Leaks):
    def __init__(self, number: int) -> None:
        super().__init__(number * 1001)

    def observe(self) -> Observation:
        return Observation(f"What is twice {self._number}?")

    def __repr__(self) -> str:
        return f"Prints({self.kept})"


class Gives(Riddle):
    def observe(self) -> Observation:
        return Observation("What?" + str(self._number), {"session": self})


class Believes(Riddle):
    def said(self, call: ToolCall, text: str) -> bool:
        return True


class Doubts(Riddle):
    def said(self, call: ToolCall, text: str) -> bool:
        return False


class Raises(Riddle):
    def score(self) -> Score:
        if self._given is not None:
            int(self._given)
        return super().score()


class Half(Riddle):
    def score(self) -> Score:
        return Score(0.5) if self._given else super().score()


class Credits(Riddle):
    def score(self) -> Score:
        return Score(1.0) if self._given else super().score()


class Shares(Riddle):
    asked: ClassVar[list[str]] = []

    def apply(self, call: ToolCall) -> Outcome:
        self.asked.append(call.name)
        return super().apply(call)

    def observe(self) -> Observation:
        return Observation(f"{self._number} after {len(self.asked)}")


class Draws(Riddle):
    """Draws from a generator that nothing seeds."""

    random = random.Random()

    def observe(self) -> Observation:
        return Observation(f"{self._number}: {self.random.random()}")


class Ends(Riddle):
    def apply(self, call: ToolCall) -> Outcome:
        return Outcome(Observation("over", {"bad": float("nan")}), done=True)


def subject(name: str, make: Callable[[], Broken]) -> Subject:
    env_id = f"broken/{name}-v0"
    if env_id not in gym.registry:
        gym.register(env_id, entry_point=lambda **kwargs: ToolEnv(make(), **kwargs))
    return Subject(EnvHandle(env_id, {}))


@pytest.mark.parametrize(
    ("make", "rule", "words"),
    [
        (lambda: Broken(Leaks), "custody", r"observation.data.checksum holds the answer in each of 6 tasks"),
        (lambda: Broken(Prints), "custody", "repr of the session holds the answer"),
        (lambda: Broken(Gives), "custody", "leads to a test_new_domain.Gives"),
        (lambda: Broken(named=True), "custody", "task.data.answer is public"),
        (lambda: Broken(unstable=True), "tasks", "another order"),
        (lambda: Broken(shared=True), "tasks", "begins like one of 'train'"),
        (lambda: Broken(mislabelled=True), "tasks", "says that it is of 'train'"),
        (lambda: Broken(Believes), "commit rule", "says nothing of the kind"),
        (lambda: Broken(Doubts), "commit rule", "could never commit"),
        (lambda: Broken(Raises), "verdicts", "raised ValueError"),
        (lambda: Broken(Half), "verdicts", "only 0.0 and 1.0 are verdicts"),
        (lambda: Broken(Credits), "verdicts", "is solved by 'qzxv wkjp'"),
        (lambda: Broken(Shares), "episodes", "changed what another one shows"),
        (lambda: Broken(Draws), "seeds", "goes differently"),
        (lambda: Broken(Ends), "observations", "not text with JSON data"),
    ],
)
def test_a_breach_is_found(make: Callable[[], Broken], rule: str, words: str, request: pytest.FixtureRequest) -> None:
    found = problems(rule, subject(re.sub(r"\W+", "-", request.node.callspec.id), make))
    assert any(re.search(words, line) for line in found), found


def test_a_sound_domain_passes_and_a_broken_one_names_every_breach() -> None:
    check_domain(subject("sound", Broken).env)
    with pytest.raises(ContractError) as caught:
        check_domain(subject("half", lambda: Broken(Half, named=True)).env)
    assert "- verdicts:" in str(caught.value) and "- custody:" in str(caught.value)


def test_a_secret_is_looked_for_everywhere() -> None:
    broken = subject("leaks", lambda: Broken(Leaks))
    assert any("the secret '20'" in line for line in problems("custody", Subject(broken.env, ("20",))))
    assert problems("custody", Subject(subject("sound", Broken).env, ("a text that is nowhere",))) == []
