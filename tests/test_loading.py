"""Where harnesses come from: files, modules, cells, scripts; what is refused, and in which words."""

from __future__ import annotations

import asyncio
import linecache
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import riddles  # noqa: F401

from harness_sdk import Harness, HarnessLoadError, ScriptedPolicy, jobs_for, load, load_source, rollout_sync, validate
from harness_sdk.trajectory import ModelCall, Sample, Trajectory
from harness_sdk.types import Completion, Episode, Turn
from reference_harnesses.chess import ChessH0
from whale_env.core import EnvHandle
from whale_env.types import Observation, Score, Task

ENV = EnvHandle("riddles/Riddles-v0", {})
TASKS = ENV.tasks("train")[:2]

TWO = """
from harness_sdk import Harness


class One(Harness):
    system = "Be brief."


class Two(Harness):
    system = "Be long."
"""


class AtTop(Harness):
    system = "Be brief."


def cell(source: str, number: int = 1) -> dict[str, Any]:
    """Runs a source as a notebook does: in ``__main__``, its text known to `linecache` alone."""
    name = f"<ipython-input-{number}>"
    source = textwrap.dedent(source)
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    names: dict[str, Any] = {"__name__": "__main__", "Harness": Harness}
    exec(compile(source, name, "exec"), names)
    return names


def test_a_class_of_a_module_is_the_module_s() -> None:
    assert load(ChessH0) == load("reference_harnesses.chess:ChessH0")
    assert load(AtTop).source == Path(__file__).read_text("utf-8")


def test_a_class_in_a_cell_has_its_own_source() -> None:
    mine = cell(
        """
        x = 1


        class Mine(Harness):
            system = "Be brief."

            def stop(self, episode):
                return None
        """
    )["Mine"]
    loaded = load(mine)
    assert loaded.source.startswith("class Mine(Harness):") and loaded.source.endswith("return None\n")
    assert loaded.name == "Mine" and loaded.trusted and len(loaded.id) == 32
    again = cell(
        'class Mine(Harness):\n    system = "Be long."\n\n    def stop(self, episode):\n        return None\n', 2
    )
    assert load(again["Mine"]).id != loaded.id
    assert load(mine).id == loaded.id  # the older class still knows its own cell


def test_a_class_in_a_cell_needs_no_method_and_brings_its_parents() -> None:
    names = cell('class Base(Harness):\n    system = "A"\n\n\nclass Child(Base):\n    instructions = "B"\n', 3)
    assert load(names["Child"]).source == (
        'class Base(Harness):\n    system = "A"\n\n\nclass Child(Base):\n    instructions = "B"\n'
    )


def test_a_class_in_a_function_has_its_own_source() -> None:
    def made(word: str) -> type[Harness]:
        class Local(Harness):
            system = word

        return Local

    assert load(made("x")).source == "class Local(Harness):\n    system = word\n"


def test_a_class_without_source_is_refused_in_one_line() -> None:
    names: dict[str, Any] = {"__name__": "__main__", "Harness": Harness}
    exec("class Lost(Harness):\n    def stop(self, episode): return None\n", names)
    with pytest.raises(HarnessLoadError, match="Lost has no source to know it by; define it in a file or a notebook"):
        load(names["Lost"])
    with pytest.raises(HarnessLoadError, match="int is no subclass of Harness"):
        load(int)  # type: ignore[arg-type]
    with pytest.raises(HarnessLoadError, match=r"untrusted harnesses are loaded from a \.py file"):
        load(AtTop, trusted=False)


def test_a_class_in_a_script_plays(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(
        textwrap.dedent(
            """
            from harness_sdk import Harness, ScriptedPolicy, jobs_for, load, rollout_sync
            import riddles
            from whale_env.core import EnvHandle


            class Mine(Harness):
                system = "Be brief."


            env = EnvHandle("riddles/Riddles-v0", {})
            harness = load(Mine)
            done = rollout_sync(jobs_for(harness, env.tasks("train")[:2]), env, ScriptedPolicy(["<answer>x</answer>"]))
            print(harness, len(done), harness.source.count("\\n"))
            """
        )
    )
    here = str(Path(__file__).parent)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env={"PYTHONPATH": _paths(here)})
    assert done.stdout.endswith("name='Mine', trusted=True) 2 2\n"), done.stderr


def _paths(*more: str) -> str:
    return ":".join([*more, *(entry for entry in sys.path if entry)])


def test_a_rollout_runs_without_await() -> None:
    policy = ScriptedPolicy(["<answer>2</answer>"])
    jobs = jobs_for(load(AtTop), TASKS, 2)
    heard: list[Trajectory] = []
    assert rollout_sync(jobs, ENV, policy, on_done=heard.append) == sorted(heard, key=lambda t: (t.task.id, t.index))


def test_a_rollout_runs_within_a_running_loop() -> None:
    jobs = jobs_for(load(AtTop), TASKS, 2)
    plain = rollout_sync(jobs, ENV, ScriptedPolicy(["<answer>2</answer>"]))

    async def notebook() -> list[Trajectory]:
        return rollout_sync(jobs, ENV, ScriptedPolicy(["<answer>2</answer>"]))

    assert asyncio.run(notebook()) == plain


def test_an_error_within_a_running_loop_is_the_callers() -> None:
    def fails(trajectory: Trajectory) -> None:
        raise LookupError("no")

    async def notebook() -> None:
        rollout_sync(jobs_for(load(AtTop), TASKS), ENV, ScriptedPolicy(["x"]), on_done=fails)

    with pytest.raises(LookupError, match="no"):
        asyncio.run(notebook())


def test_ctrl_c_within_a_running_loop_ends_the_rollout() -> None:
    program = textwrap.dedent(
        """
        import asyncio, os, signal, threading
        from harness_sdk import Harness, jobs_for, load, rollout_sync
        import riddles, test_loading
        from whale_env.core import EnvHandle

        class Never:
            async def generate(self, request):
                threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
                await asyncio.Event().wait()

        async def notebook():
            env = EnvHandle("riddles/Riddles-v0", {})
            try:
                rollout_sync(jobs_for(load(test_loading.AtTop), env.tasks("train")[:1]), env, Never())
            except KeyboardInterrupt:
                print("ended")

        loop = asyncio.new_event_loop()  # as notebooks do: no handler of asyncio's own for Ctrl-C
        task = loop.create_task(notebook())
        loop.run_until_complete(task)
        """
    )
    here = str(Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env={"PYTHONPATH": _paths(here)}
    )
    assert done.stdout == "ended\n", done.stderr


@pytest.mark.parametrize("trusted", [True, False])
def test_a_named_class_of_several_is_loaded(trusted: bool, tmp_path: Path) -> None:
    file = tmp_path / "two.py"
    file.write_text(TWO)
    for name in ("One", "Two"):
        loaded = load(f"{file}:{name}", trusted)
        assert loaded.name == name
        assert loaded.id == load(f"{file}:{name}", not trusted).id
    assert load(f"{file}:One").id != load(f"{file}:Two").id
    with pytest.raises(HarnessLoadError, match=r"Did you mean 'Two'|name one of: One, Two"):
        load(f"{file}:Tow", trusted)
    with pytest.raises(HarnessLoadError, match=r"Two"):
        load(file, trusted)


def test_the_named_class_plays_in_the_cage() -> None:
    for name, words in (("One", "Be brief."), ("Two", "Be long.")):
        harness = load_source(TWO, name)
        policy = ScriptedPolicy(["<answer>x</answer>"])
        rollout_sync(jobs_for(harness, TASKS[:1]), ENV, policy)
        assert policy.prompts[0][0]["content"] == words


@pytest.mark.parametrize("trusted", [True, False])
def test_a_byte_order_mark_is_no_part_of_a_source(trusted: bool, tmp_path: Path) -> None:
    plain, marked = tmp_path / "plain.py", tmp_path / "marked.py"
    text = "from harness_sdk import Harness\n\n\nclass Mine(Harness):\n    system = 'Be brief.'\n"
    plain.write_text(text, "utf-8")
    marked.write_text(text, "utf-8-sig")
    assert load(marked, trusted).id == load(plain, trusted).id
    assert load(marked, trusted).source == text
    assert validate("\ufeff" + text, "chess").ok and load_source("\ufeff" + text).id == load(plain).id
    assert not validate(text + "\ufeff", "chess").ok  # anywhere else it hides something


SLIPS = [
    ("def prase(self, completion, episode): return []", "parse"),
    ("def pakc(self, episode): return []", "pack"),
    ("def Pack(self, episode): return []", "pack"),
    ("def pack_(self, episode): return []", "pack"),
    ("def recoverr(self, failure, episode): return None", "recover"),
    ("def recovr(self, failure, episode): return None", "recover"),
    ("def stpo(self, episode): return None", "stop"),
    ("def tool(self, env_tools): return []", "tools"),
    ("def acts(self, call, env): return ''", "act"),
    ("@staticmethod\n    def parce(completion, episode): return []", "parse"),
    ("max_turn = 3", "max_turns"),
    ("stop_string = ('x',)", "stop_strings"),
    ("maxtokens = 3", "max_tokens"),
]


@pytest.mark.parametrize(("member", "meant"), SLIPS)
def test_a_misspelt_name_is_told(member: str, meant: str, tmp_path: Path) -> None:
    file = tmp_path / "slip.py"
    file.write_text(f"from harness_sdk import Harness\n\n\nclass Slip(Harness):\n    {member}\n")
    for trusted in (True, False):
        with pytest.raises(HarnessLoadError, match=f"Did you mean '{meant}'"):
            load(file, trusted)


@pytest.mark.parametrize(
    "members",
    [
        "def parsed(self): return []\n    def parse(self, completion, episode): return self.parsed()",
        "def stops(self): return None\n    def stop(self, episode): return getattr(self, 'stops')()",
        "def _prase(self): return None",
        "def step(self, n): return n",
        "max_turn = 3\n    def stop(self, episode): return 'x' if len(episode.turns) > self.max_turn else None",
    ],
)
def test_what_is_used_is_no_slip(members: str, tmp_path: Path) -> None:
    file = tmp_path / "helper.py"
    file.write_text(f"from harness_sdk import Harness\n\n\nclass Helper(Harness):\n    {members}\n")
    for trusted in (True, False):
        assert load(file, trusted).name == "Helper"


def test_what_a_parent_elsewhere_uses_is_no_slip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "slips_parent.py").write_text(
        "from harness_sdk import Harness\n\n\nclass Parent(Harness):\n"
        "    def parse(self, completion, episode): return self.parsed()\n"
    )
    child = tmp_path / "slips_child.py"
    child.write_text("from slips_parent import Parent\n\n\nclass Child(Parent):\n    def parsed(self): return []\n")
    assert load(f"{child}:Child").name == "Child"


def test_reprs_are_short() -> None:
    ids = tuple(range(9999))
    call = ModelCall(({"role": "user", "content": "x" * 9999},), ids, ids, (0.0,) * 9999)
    turn = Turn(Completion("x" * 9999))
    task, seen = Task("t", "riddles", "train"), Observation("x" * 9999)
    trajectory = Trajectory(task, "0" * 32, 1, 2, (call,), (turn,), Score(0.0, "wrong"), "s" * 9999)
    assert repr(trajectory).startswith("Trajectory(task='t', index=1, reward=0.0, failure='wrong', turns=1, tokens=0")
    assert repr(call) == "ModelCall(messages=1, prompt_ids=9999, token_ids=9999, weights_version=0)"
    for item in (trajectory, call, Sample(ids, ids, ids), Episode(task, (), seen, seen, (turn,)), load(AtTop)):
        assert len(repr(item)) < 300, repr(item)
