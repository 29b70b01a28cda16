"""The environment core: spaces, the five verbs, invalid calls, caps, splits and the sealed handle."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env
from riddles import Riddles, riddle_env

import whale_env
from whale_env.core import EnvHandle, SealedSplitError, ToolEnv, UnknownTaskError, said_verbatim
from whale_env.json_schema import schema_error
from whale_env.spaces import ObservationSpace, ToolCallSpace
from whale_env.types import Observation, Task, ToolCall, ToolSpec


def answer(text: str) -> ToolCall:
    return ToolCall("answer", {"text": text})


def test_five_verbs() -> None:
    env = riddle_env()
    observation, info = env.reset(seed=0, options={"task": "train-0"})
    assert observation.text == "What is 0 + 0?" and info == {"task": "train-0", "error": None}
    observation, reward, terminated, truncated, info = env.step(answer("0"))
    assert (reward, terminated, truncated, info["error"]) == (1.0, True, False, None)
    assert env.score().reward == 1.0
    _, reward, terminated, _, info = env.step(answer("0"))
    assert terminated and reward == 0.0 and "over" in info["error"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (ToolCall("anwser", {"text": "1"}), "unknown tool 'anwser'"),
        (ToolCall("answer", {}), "'text' is missing"),
        (ToolCall("answer", {"text": 3}), "must be of type string, not 3"),
        (ToolCall("answer", {"text": "1", "more": 2}), "unknown 'more'"),
    ],
)
def test_an_invalid_call_is_data(call: ToolCall, words: str) -> None:
    env = riddle_env()
    before, _ = env.reset(seed=0, options={"task": "train-1"})
    after, reward, terminated, truncated, info = env.step(call)
    assert words in info["error"] and after == before
    assert (reward, terminated, truncated) == (0.0, False, False)


def test_the_cap_on_invalid_calls_ends_the_episode() -> None:
    env = riddle_env()
    env.reset(seed=0, options={"task": "train-1"})
    ends = [env.step(ToolCall("nothing"))[2] for _ in range(env.domain.spec.max_invalid)]
    assert ends == [False] * (len(ends) - 1) + [True]
    assert env.score().failure == "illegal"


def test_the_cap_on_steps_truncates() -> None:
    env = ToolEnv(Riddles(max_steps=3))
    env.reset(seed=0)
    results = [env.step(ToolCall("hint"))[2:4] for _ in range(3)]
    assert results == [(False, False), (False, False), (False, True)]
    assert env.score().failure == "budget"


def test_the_same_seed_draws_the_same_task() -> None:
    env = riddle_env()
    first = [env.reset(seed=7)[1]["task"] for _ in range(3)]
    assert len(set(first)) == 1
    assert len({env.reset(seed=seed)[1]["task"] for seed in range(20)}) > 1


def test_check_env_is_clean() -> None:
    gym.register("tests/Riddles-v0", entry_point="riddles:riddle_env")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gym.make("tests/Riddles-v0", disable_env_checker=True).unwrapped, skip_render_check=True)


def test_spaces_round_trip_and_agree_with_themselves() -> None:
    tools = (
        *riddle_env().tools,
        ToolSpec(
            "many",
            "",
            {
                "type": "object",
                "properties": {
                    "n": {"type": "integer"},
                    "x": {"type": "number"},
                    "b": {"type": "boolean"},
                    "l": {"type": "array", "items": {"type": "string"}},
                    "e": {"enum": ["a", "b"]},
                },
            },
        ),
    )
    calls = ToolCallSpace(tools, seed=1)
    drawn = [calls.sample() for _ in range(50)]
    assert all(call in calls for call in drawn) and {call.name for call in drawn} == {tool.name for tool in tools}
    assert calls.from_jsonable(calls.to_jsonable(drawn)) == drawn
    seen = ObservationSpace(seed=1)
    texts = [seen.sample() for _ in range(5)]
    assert all(text in seen for text in texts) and seen.from_jsonable(seen.to_jsonable(texts)) == texts
    assert Observation("x", {"bad": float("nan")}) not in seen
    assert "x" not in calls and eval("ToolCall('answer', {'text': 1})") not in calls


def test_values_that_a_schema_states_are_sampled_too() -> None:
    stated = {
        "examples": {"type": "string", "examples": ["amber", 3, "opal"]},
        "const": {"type": "string", "const": "amber"},
        "default": {"type": "integer", "default": 77},
        "nested": {"type": "array", "items": {"type": "string", "examples": ["amber"]}},
        "enum": {"type": "string", "enum": ["a", "b"], "examples": ["amber"]},
        "shared": {"type": "array", "items": {"type": "string"}, "examples": [["amber"]]},
    }
    space = ToolCallSpace([ToolSpec("look", "", {"type": "object", "properties": stated})], seed=3)
    drawn = [space.sample() for _ in range(200)]
    assert all(call in space for call in drawn)
    seen = {name: [call.arguments[name] for call in drawn] for name in stated}
    assert {"amber", "opal"} < set(seen["examples"]) and len(set(seen["examples"])) > 20
    assert set(seen["const"]) == {"amber"} and 40 < seen["default"].count(77) < 160
    assert any("amber" in items for items in seen["nested"]) and set(seen["enum"]) == {"a", "b"}
    space.seed(3)
    assert [space.sample() for _ in range(200)] == drawn
    next(items for items in seen["shared"] if items == ["amber"]).append("changed")
    assert stated["shared"]["examples"] == [["amber"]]


def test_schema_errors_name_the_value() -> None:
    assert schema_error(True, {"type": "integer"}) == "arguments must be of type integer, not True"
    assert "finite" in str(schema_error(float("inf"), {"type": "number"}))
    assert "arguments[1]" in str(schema_error(["a", 2], {"type": "array", "items": {"type": "string"}}))


def test_a_sealed_handle_cannot_open_the_test_split() -> None:
    handle = EnvHandle("tests/Riddles-v0", {})
    gym.register("tests/Riddles-v0", entry_point="riddles:riddle_env") if handle.name not in gym.registry else None
    sealed = handle.sealed()
    task = handle.tasks("test")[0]
    with pytest.raises(SealedSplitError):
        sealed.tasks("test")
    with pytest.raises(SealedSplitError):
        sealed.open(task, 0)
    with pytest.raises(SealedSplitError):  # the split a task claims is not believed
        sealed.open(Task(task.id, task.env, "train"), 0)
    env, observation = handle.open(task, 0)
    assert observation.text and env.tools


def test_unknown_tasks_and_environments_are_named() -> None:
    with pytest.raises(UnknownTaskError, match="no task 'nope'"):
        riddle_env().reset(options={"task": "nope"})
    with pytest.raises(whale_env.UnknownEnvError, match="Did you mean 'chess'"):
        whale_env.make("ches")
    with pytest.raises(whale_env.UnknownEnvError, match="no_such_package"):
        whale_env.make("no_such_package:Env-v0")
    with pytest.raises(ValueError, match="unknown split 'dev'"):
        riddle_env(split="dev")  # type: ignore[arg-type]


BROKEN = """
import gymnasium
from whale_env import DomainSpec, ToolEnv


class Plain:
    spec = {"name": "plain"}


class Tools:
    spec = DomainSpec("tools", ({"name": "act"},))


def divides():
    return 1 / 0


def says():
    raise RuntimeError("two\\nlines")


def argues(size):
    return ToolEnv(Plain())


for name, make in {"Plain": lambda: ToolEnv(Plain()), "Tools": lambda: ToolEnv(Tools())}.items():
    gymnasium.register(f"{name}-v0", entry_point=make)
gymnasium.register("broken_pkg/Divides-v0", entry_point=divides)
gymnasium.register("Says-v1", entry_point=says)
gymnasium.register("Argues-v0", entry_point="broken_pkg:argues")
"""


@pytest.mark.parametrize(
    ("env_id", "kind", "words"),
    [
        ("Nope-v0", LookupError, "'Plain-v0', 'Tools-v0', 'broken_pkg/Divides-v0', 'Says-v1', 'Argues-v0'$"),
        ("Hoper-v0", LookupError, "it registers 'Plain-v0'"),
        ("Says-v0", LookupError, "registers no environment 'Says-v0'; it registers .*'Says-v1'"),
        ("a:b", LookupError, "registers no environment 'a:b'; it registers 'Plain-v0'"),
        ("Plain-v0", ValueError, "'dict' object has no attribute 'tools'"),
        ("Tools-v0", ValueError, "tool {'name': 'act'} is a dict, not a whale_env.ToolSpec"),
        ("broken_pkg/Divides-v0", ValueError, r"ZeroDivisionError: division by zero \(broken_pkg.py, line 15\)"),
        ("Says-v1", ValueError, "RuntimeError: two lines"),
        ("Argues-v0", ValueError, "missing 1 required positional argument: 'size'$"),
    ],
)
def test_what_a_strangers_environment_raises_is_one_line(
    env_id: str, kind: type[Exception], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_pkg.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(gym.registry)
    try:
        for _ in range(2):  # the second time the module is there already
            with pytest.raises(kind, match=words) as caught:
                whale_env.handle(f"broken_pkg:{env_id}")
            told = str(caught.value)
            assert "broken_pkg" in told and "\n" not in told and "Did you mean" not in told
    finally:
        sys.modules.pop("broken_pkg", None)
        for name in set(gym.registry) - before:
            del gym.registry[name]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("1 / 0", r"ZeroDivisionError: division by zero \(body_pkg.py, line 1\)"),
        ("import no_such_dependency", "ModuleNotFoundError: No module named 'no_such_dependency'"),
        ("def", "SyntaxError"),
        ("raise SystemExit('usage: body')", "SystemExit: usage: body"),
        ("x = 1", "module 'body_pkg' registers no environment 'A-v0'; it registers none"),
    ],
)
def test_a_module_that_cannot_be_imported_is_named(
    body: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "body_pkg.py").write_text(body)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "body_pkg", raising=False)
    with pytest.raises(whale_env.UnknownEnvError, match=words) as caught:
        whale_env.make("body_pkg:A-v0")
    assert "'body_pkg'" in str(caught.value) and "\n" not in str(caught.value)
    sys.modules.pop("body_pkg", None)


@pytest.mark.parametrize(
    ("said", "text", "holds"),
    [
        ("42", "The answer is 42.", True),
        ("42", "The answer is 142", False),
        ("New York", "it is  new\nYORK!", True),
        ("York", "Yorkshire", False),
        ("", "anything", False),
        ("x+1", "so x+1=2", True),
    ],
)
def test_said_verbatim(said: str, text: str, holds: bool) -> None:
    assert said_verbatim(ToolCall("answer", {"text": said}), text) is holds


@pytest.mark.parametrize(
    ("value", "text", "holds"),
    [
        (1234, "It is 1,234.", True),
        (1234, "0001234", True),
        (1234.5, "about 1,234.50 metres", True),
        (-8, "it is -8", True),
        (100.0, "1e2", True),
        (8, "8meters", False),
        (8, "-8", False),
        (8, "3/8 or 0.8 or 2^8 or 18", False),
        (12, "1,2", False),
        (float("inf"), "inf", True),
        (float("nan"), "12", False),
        (True, "1", False),
        (True, "true", True),
        (2, "9" * 5000 + "e999", False),
    ],
)
def test_a_number_may_be_said_in_any_way(value: float, text: str, holds: bool) -> None:
    assert said_verbatim(ToolCall("answer", {"n": value}), text) is holds


def test_gymnasium_makes_ours_by_module_and_id() -> None:
    code = (
        "import gymnasium; env = gymnasium.make('whale_env:whale/Chess-v0'); "
        "observation, info = env.reset(seed=0); print(observation.text[:4])"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "Side\n"), done.stderr


HEAVY = ("torch", "vllm", "ray", "jnius", "anthropic", "transformers", "sympy")


@pytest.mark.parametrize("package", ["whale_env", "harness_sdk", "reference_harnesses"])
def test_imports_stay_light(package: str) -> None:
    code = f"import {package}, sys; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
