"""`docs/new_domain.md` is run as written, and the contract checks find what they are there for."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import pytest
from riddles import Riddle, Riddles

from whale_env import EnvHandle, Observation, Outcome, Score, Task, ToolCall, ToolEnv, ToolSpec
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
    assert len(commands) == 4
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


class RaisesAloud(Riddle):
    """Raises an error of many lines that quotes what it was given."""

    def score(self) -> Score:
        if self._given is not None:
            raise RuntimeError(f"cannot judge\n{self._given} at all")
        return super().score()


class Uncommitted(Broken):
    """No tool commits."""

    def __init__(self) -> None:
        super().__init__()
        self.spec = replace(self.spec, tools=tuple(replace(tool, commits=False) for tool in self.spec.tools))


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


class Turns(Broken):
    """Riddles with other caps on steps or invalid calls."""

    def __init__(self, **caps: int) -> None:
        super().__init__()
        self.spec = replace(self.spec, **caps)  # type: ignore[arg-type]


class Refuses(Riddle):
    """Refuses an answer that is no number, and is otherwise a riddle."""

    def apply(self, call: ToolCall) -> Outcome:
        if call.name == "answer" and not call.arguments["text"].isdecimal():
            return self.refused(call.arguments["text"])
        return super().apply(call)

    def refused(self, text: str) -> Outcome:
        return Outcome(self.observe(), f"answer: {text!r} is no number")


class Counts(Refuses):
    """Counts refused answers as tries, and shows it."""

    tries = 0

    def refused(self, text: str) -> Outcome:
        seen = super().refused(text)
        self.tries += 1
        return seen

    def observe(self) -> Observation:
        return Observation(f"{self._number} after {self.tries} tries")


class Echoes(Refuses):
    def refused(self, text: str) -> Outcome:
        return Outcome(self.observe(), f"answer: {text} is no number")


class Mute(Refuses):
    def refused(self, text: str) -> Outcome:
        return Outcome(self.observe(), "")


class Strict(Refuses):
    def refused(self, text: str) -> Outcome:
        return Outcome(self.observe(), "answer: no number", done=True)


class Keyed(Broken):
    """Has a tool that looks a key up; where it is found, nothing is returned. `schema` is the key's."""

    def __init__(self, **schema: Any) -> None:
        super().__init__(Looks)
        parameters = {"type": "object", "properties": {"key": {"type": "string", **schema}}, "required": ["key"]}
        self.spec = replace(self.spec, tools=(self.spec.tools[0], ToolSpec("look", "Looks up.", parameters)))


class Looks(Riddle):
    def apply(self, call: ToolCall) -> Outcome:
        if call.name == "answer":
            return super().apply(call)
        if call.arguments["key"] not in ("amber", "What"):
            return Outcome(self.observe(), f"look: no key {call.arguments['key']!r}")
        return None  # type: ignore[return-value]


class Shut(Looks):
    """Its keys are not shown."""

    def observe(self) -> Observation:
        return Observation(f"{self._number}?")


class Hidden(Keyed):
    def start(self, task: Task, seed: int) -> Riddle:
        return Shut(int(task.id.rsplit("-", 1)[1]))


class Typed(Broken):
    """Its answer is of another type than text."""

    def __init__(self, session: type[Riddle], **schema: Any) -> None:
        super().__init__(session)
        parameters = {"type": "object", "properties": {"text": schema}, "required": ["text"]}
        self.spec = replace(self.spec, tools=(replace(self.spec.tools[0], parameters=parameters),))


class CreditsAll(Riddle):
    def score(self) -> Score:
        return Score(0.0, "budget") if self._given is None else Score(1.0)


class CreditsLate(CreditsAll):
    """Asks three times."""

    asked = 0

    def apply(self, call: ToolCall) -> Outcome:
        self.asked += 1
        return Outcome(self.observe()) if self.asked < 3 else super().apply(call)


class Doubles(Riddle):
    def score(self) -> Score:
        if self._given is None:
            return Score(0.0, "budget")
        return Score(1.0) if self._given == 2 * self._number else Score(0.0, "wrong")


class DoublesLeak(Doubles):
    """Stores its answer, a number, and shows it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.kept = 2 * number

    def observe(self) -> Observation:
        return Observation(f"What is twice {self._number}?", {"checksum": self.kept})


class Indexes(Riddle):
    """Judges numbers by a list that most are not in."""

    def score(self) -> Score:
        if self._given is not None:
            [0, 1, 2, 3, 4, 5, 6, 7][self._given]
        return super().score()


class Fresh(Broken):
    """Is another domain each time it is made, in its tasks' data or in how they begin."""

    made: ClassVar[list[None]] = []

    def __init__(self, part: str) -> None:
        super().__init__()
        self.made.append(None)
        self._part, self._mark = part, len(self.made)

    def tasks(self, split: Split) -> Sequence[Task]:
        data = {"mark": self._mark} if self._part == "data" else {}
        return [replace(task, data=data) for task in super().tasks(split)]

    def start(self, task: Task, seed: int) -> Riddle:
        riddle = super().start(task, seed)
        riddle._hint = f" {self._mark}" if self._part == "start" else ""
        return riddle


class Named(Broken):
    """Its ids hold the answers."""

    def start(self, task: Task, seed: int) -> Riddle:
        return NamedRiddle(task.id.rsplit("-", 1)[1])


class NamedRiddle(Riddle):
    def __init__(self, answer: str) -> None:
        super().__init__(0)
        self._answer = answer

    def score(self) -> Score:
        if self._given is None:
            return Score(0.0, "budget")
        return Score(1.0) if self._given == self._answer else Score(0.0, "wrong")


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
        (lambda: Uncommitted(), "verdicts", "^no tool commits"),
        (lambda: Broken(Half), "verdicts", "only 0.0 and 1.0 are verdicts"),
        (lambda: Broken(Credits), "verdicts", "is solved by 'qzxv wkjp'"),
        (lambda: Broken(Shares), "episodes", "changed what another one shows"),
        (lambda: Broken(Draws), "seeds", "goes differently"),
        (lambda: Broken(Ends), "observations", "not text with JSON data"),
        (lambda: Broken(Counts), "invalid calls", r"the invalid call answer\(.*\) changed what is observed"),
        (lambda: Broken(Echoes), "invalid calls", "its error is no line of text: 'answer: two.nlines is no number'"),
        (lambda: Broken(Mute), "invalid calls", "its error is no line of text: ''"),
        (lambda: Broken(Strict), "invalid calls", "ended the episode"),
        (lambda: Hidden(examples=["amber"]), "observations", r"look\(key='amber'\) raised AttributeError.*an Outcome"),
        (lambda: Hidden(default="amber"), "invalid calls", r"look\(key='amber'\) raised AttributeError"),
        (lambda: Hidden(const="amber"), "observations", r"look\(key='amber'\) raised AttributeError"),
        (lambda: Hidden(enum=["opal", "amber"]), "observations", r"look\(key='amber'\) raised AttributeError"),
        (lambda: Keyed(), "observations", r"look\(key='What'\) raised AttributeError"),
        (lambda: Typed(CreditsAll, type="integer"), "verdicts", "credits everything"),
        (lambda: Typed(CreditsAll, type="number"), "verdicts", "credits everything"),
        (lambda: Typed(CreditsAll, type="boolean"), "verdicts", "credits everything"),
        (lambda: Typed(CreditsAll, enum=["a", "b", "c"]), "verdicts", "credits everything"),
        (lambda: Typed(CreditsLate, type="integer"), "verdicts", "credits everything"),
        (lambda: Broken(CreditsLate), "verdicts", "is solved by"),
        (lambda: Typed(Indexes, type="integer"), "verdicts", "after committing 1000 it raised IndexError"),
        (lambda: Typed(DoublesLeak, type="integer"), "custody", "observation.data.checksum holds the answer"),
        (lambda: Typed(DoublesLeak, type="number"), "custody", "observation.data.checksum holds the answer"),
        (lambda: Typed(DoublesLeak, enum=[*range(80)]), "custody", "observation.data.checksum holds the answer"),
        (lambda: Fresh("data"), "tasks", "in a second instance task 'train-10' has other data"),
        (lambda: Fresh("start"), "tasks", "in a second instance task 'train-10' begins otherwise"),
        (lambda: Named(), "custody", "task.id holds the answer in each of 6 tasks"),
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


@pytest.mark.parametrize(
    "make",
    [
        lambda: Turns(max_steps=6),
        lambda: Turns(max_steps=1),
        lambda: Turns(max_invalid=1),
        lambda: Turns(max_steps=8, max_invalid=8),
        lambda: Turns(max_steps=3, max_invalid=2),
        lambda: Broken(Refuses),
        lambda: Typed(Doubles, type="integer"),
        lambda: Typed(Doubles, type="number"),
    ],
)
def test_what_is_legitimate_passes(make: Callable[[], Broken], request: pytest.FixtureRequest) -> None:
    check_domain(subject(re.sub(r"\W+", "-", request.node.callspec.id) + "-sound", make).env)


def test_equal_findings_are_told_once_with_their_number() -> None:
    for session in (Raises, RaisesAloud):
        found = problems("verdicts", subject(session.__name__, lambda session=session: Broken(session)))  # type: ignore[misc]
        assert len(found) == 1 and re.search(r" … and \d\d more$", found[0]) and "\n" not in found[0], found
    found = problems("custody", subject("named", lambda: Broken(Leaks, named=True)))
    assert [line.endswith(" … and 5 more") for line in found] == [True, False], found


SETS = """
import gymnasium
from riddles import Riddle, Riddles
from whale_env import Observation, Task, ToolEnv

NAMES = {f"name {number}" for number in range(40)}


class Listed(Riddles):
    part = "%s"

    def tasks(self, split):
        first = {"train": 10, "search": 20, "test": 30}[split]
        data = {"names": list(NAMES)[:3]} if self.part == "data" else {}
        tasks = [Task(f"{split}-{first + place}", "riddles", split, data) for place in range(10)]
        return sorted(tasks, key=lambda task: hash(task.id)) if self.part == "order" else tasks

    def start(self, task, seed):
        return Hashed(int(task.id.rsplit("-", 1)[1])) if self.part == "start" else super().start(task, seed)


class Hashed(Riddle):
    def observe(self):
        return Observation(f"{self._number} of {next(iter(NAMES))}")


gymnasium.register("Listed-v0", entry_point=lambda **kwargs: ToolEnv(Listed(), **kwargs))
"""


@pytest.mark.parametrize(
    ("part", "words"),
    [("data", "has other data"), ("order", "another order"), ("start", "begins otherwise"), ("sound", "")],
)
def test_the_order_of_hashes_is_found_in_a_fresh_interpreter(tmp_path: Path, part: str, words: str) -> None:
    name = f"hashed_{part}"
    (tmp_path / f"{name}.py").write_text(SETS % part)
    code = "from whale_env import handle; from whale_env.testing import Subject, problems; "
    code += f"print(problems('tasks', Subject(handle('{name}:Listed-v0'))))"
    found = run(tmp_path, "-c", f"import sys; sys.path.append({str(ROOT / 'tests')!r}); {code}")
    assert re.search(rf"in a fresh process .*{words}", found) if words else found == "[]\n"


def test_the_command_says_what_custody_cannot_find(folder: Path) -> None:
    said = run(folder, "-m", "whale_env.testing", "codebreaker:Codebreaker-v0", "--same-openings")
    assert re.search(r"custody: .*finds only answers that a session stores; name others with --secret", said)
    assert "computed" in run(folder, "-m", "whale_env.testing", "--help")


def test_the_command_line_tells_a_broken_module_in_one_line(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "divides.py").write_text("1 / 0\n")
    paths = f"{ROOT}{os.pathsep}{tmp_path}{os.pathsep}{folder}"

    def failed(*arguments: str, **more: str) -> str:
        env = {**os.environ, "PYTHONPATH": paths, **more}
        command = [sys.executable, "-m", "whale_env.testing", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False, timeout=120)
        assert done.returncode and not done.stdout
        return done.stderr

    told = "cannot import module 'divides' of environment 'divides:A-v0': ZeroDivisionError: division by zero"
    assert failed("divides:A-v0") == f"error: {told} (divides.py, line 1)\n"
    assert failed("divides:A-v0", WHALE_TRACEBACK="1").startswith("Traceback")
    refused = failed("codebreaker:Codebreaker-v0", "--env-args", '{"letters": "ABCD"}')
    assert refused.count("\n") == 1 and "letters" in refused and "Traceback" not in refused


def test_a_secret_is_looked_for_everywhere() -> None:
    broken = subject("leaks", lambda: Broken(Leaks))
    assert any("the secret '20'" in line for line in problems("custody", Subject(broken.env, ("20",))))
    assert problems("custody", Subject(subject("sound", Broken).env, ("a text that is nowhere",))) == []
