"""The contract that every registered environment keeps. A new domain is tested by being registered."""

from __future__ import annotations

import gc
import json
import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import whale_env
from whale_env.core import EnvHandle, SealedSplitError, ToolEnv, UnknownTaskError
from whale_env.registry import ENVS
from whale_env.spaces import is_json
from whale_env.types import FAILURES, SPLITS, Observation, Task, ToolCall

whale_env.register()
NAMES = tuple(ENVS)


@pytest.fixture(scope="module", params=NAMES)
def env(request: pytest.FixtureRequest) -> ToolEnv:
    return whale_env.make(request.param)


def commit(env: ToolEnv, text: str) -> ToolCall:
    """The committing call that carries a text."""
    tool = next(tool for tool in env.tools if tool.commits)
    required: Any = tool.parameters["required"]
    return ToolCall(tool.name, {required[0]: text})


@pytest.mark.parametrize("name", NAMES)
def test_check_env_has_nothing_to_say(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = gym.make(ENVS[name][0], disable_env_checker=True)
        check_env(made.unwrapped, skip_render_check=False)


def test_spaces_sample_contain_and_round_trip(env: ToolEnv) -> None:
    spaces: tuple[Any, ...] = (env.action_space, env.observation_space)
    for space in spaces:
        space.seed(7)
        first = [space.sample() for _ in range(20)]
        space.seed(7)
        assert first == [space.sample() for _ in range(20)]
        assert all(space.contains(item) for item in first)
        data = json.loads(json.dumps(space.to_jsonable(first)))
        assert space.from_jsonable(data) == first
        assert not space.contains("text")
        assert pickle.loads(pickle.dumps(space)) == space


def test_observations_are_json_and_in_the_space(env: ToolEnv) -> None:
    observation, info = env.reset(seed=3)
    assert env.observation_space.contains(observation) and observation.text
    assert info["error"] is None and env.task(info["task"]).id == info["task"]
    assert Observation.from_json(json.loads(json.dumps(observation.to_json()))) == observation


def test_same_seed_same_episode(env: ToolEnv) -> None:
    def play() -> list[Any]:
        seen: list[Any] = [env.reset(seed=11)]
        env.action_space.seed(11)
        calls = [env.action_space.sample() for _ in range(3)]
        return [*seen, *(env.step(call) for call in calls)]

    assert play() == play()
    assert len({env.reset(seed=seed)[1]["task"] for seed in range(12)}) > 3


def test_splits_are_disjoint_and_filled(env: ToolEnv) -> None:
    tasks = {split: env.tasks(split) for split in SPLITS}
    ids = [task.id for split in SPLITS for task in tasks[split]]
    assert len(ids) == len(set(ids))
    for split in SPLITS:
        assert len(tasks[split]) >= 100
        assert all(task.split == split and is_json(task.data) for task in tasks[split])
    observations = {
        split: {env.reset(options={"task": task.id})[0].text for task in tasks[split][:300]} for split in SPLITS
    }
    assert not observations["train"] & observations["search"]
    assert not observations["train"] & observations["test"]
    assert not observations["search"] & observations["test"]


def test_a_task_can_be_asked_for_by_id(env: ToolEnv) -> None:
    task = env.tasks("test")[5]
    assert env.reset(options={"task": task.id})[1]["task"] == task.id
    with pytest.raises(UnknownTaskError, match="nobody"):
        env.reset(options={"task": "nobody"})


@pytest.mark.parametrize("name", NAMES)
def test_a_sealed_handle_does_not_open_the_test_split(name: str) -> None:
    sealed = EnvHandle(ENVS[name][0], {}, ("train", "search"))
    task = sealed.prototype.tasks("test")[0]
    with pytest.raises(SealedSplitError):
        sealed.tasks("test")
    with pytest.raises(SealedSplitError):
        sealed.open(Task(task.id, task.env, "train"), 0)


def test_an_invalid_call_is_data(env: ToolEnv) -> None:
    before, _ = env.reset(seed=5)
    for call in (ToolCall("no such tool"), ToolCall(env.tools[0].name, {"bogus": 1}), ToolCall(env.tools[0].name, {})):
        observation, reward, terminated, truncated, info = env.step(call)
        assert (observation, reward, terminated, truncated) == (before, 0.0, False, False)
        assert isinstance(info["error"], str) and "\n" not in info["error"]
    for _ in range(env.domain.spec.max_invalid):
        terminated = env.step(ToolCall("no such tool"))[2]
    assert terminated and env.score().failure == "illegal"


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(exclude_categories=()), max_size=200))
def test_the_verifier_takes_any_text(env: ToolEnv, text: str) -> None:
    env.reset(seed=1)
    for said in (text, "\\boxed{" + text + "}", f"<answer>{text}</answer>"):
        env.reset(seed=1)
        _, reward, _, _, info = env.step(commit(env, said))
        assert reward in (0.0, 1.0) and set(info) == {"error"}
        assert env.score().failure in (*FAILURES, None)
        assert env.said(commit(env, said), "") is False
        json.dumps(env.score().to_json())


@pytest.mark.parametrize("name", NAMES)
def test_an_async_vector_env_plays(name: str) -> None:
    made = AsyncVectorEnv([lambda: gym.make(ENVS[name][0], disable_env_checker=True)] * 2, shared_memory=False)
    try:
        observations, infos = made.reset(seed=[1, 2])
        assert len(observations) == 2 and all(isinstance(item, Observation) for item in observations)
        assert infos["task"][0] != infos["task"][1]
        bad = ToolCall(whale_env.make(name).tools[-1].name, {})
        _, rewards, terminated, _, infos = made.step((bad, bad))
        assert not terminated.any() and not np.asarray(rewards).any()
        assert all(isinstance(error, str) for error in infos["error"])
    finally:
        made.close()


@pytest.mark.parametrize("name", NAMES)
def test_gymnasium_makes_the_env_by_its_module(name: str) -> None:
    code = f"import gymnasium; print(gymnasium.make('whale_env:{ENVS[name][0]}'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert ENVS[name][0] in done.stdout


def test_importing_the_registry_brings_in_nothing_heavy() -> None:
    heavy = ("torch", "vllm", "ray", "jnius", "anthropic", "pyserini", "sympy", "transformers")
    code = (
        f"import sys, whale_env, whale_env.math, whale_env.searchqa; print([m for m in {heavy!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"


CHESS = (
    "00sHx,q3k1nr/1pp1nQpp/3p4/1P2p3/4P3/B1PP1b2/B5PP/5K2 b k - 0 17,e8d7 a2e6 d7d8 f7f8,1760,80,83,72,mate mateIn2\n"
)


@pytest.fixture(params=NAMES)
def secret(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[ToolEnv, str]:
    """An environment with one task, and an answer that occurs nowhere by chance."""
    match request.param:
        case "chess":
            path = tmp_path / "one.csv"
            path.write_text(CHESS, encoding="utf-8")
            return whale_env.make("chess", source=str(path)), "a2e6 d7d8"
        case "math":
            path = tmp_path / "one.jsonl"
            path.write_text(json.dumps({"problem": "How many?", "answer": 918273645546, "solution": "918273645546"}))
            return whale_env.make("math", source=str(path)), "918273645546"
        case "searchqa":
            path = tmp_path / "one.jsonl"
            row = {"question": "Who?", "golden_answers": ["Zyzzyva Quux"], "metadata": {"note": "Zyzzyva Quux"}}
            path.write_text(json.dumps(row))
            return whale_env.make("searchqa", source=str(path), retriever="none"), "Zyzzyva Quux"
    raise AssertionError(f"give {request.param!r} a task with a secret here")


def test_nothing_public_leads_to_the_answer(secret: tuple[ToolEnv, str]) -> None:
    env, answer = secret
    task = next(task for split in SPLITS for task in env.tasks(split))
    observation, info = env.reset(options={"task": task.id})
    wrong, *_, step_info = env.step(commit(env, "nonsense"))
    public = [
        task,
        observation,
        info,
        wrong,
        step_info,
        env.tools,
        env.action_space,
        env.observation_space,
        env.score(),
    ]
    assert answer.encode() not in pickle.dumps(public)
    assert all(answer not in text for text in (repr(public), repr(env), str(env), repr(env.domain), repr(env._session)))
    reached = reachable(public)
    assert not any(answer in item for item in reached if isinstance(item, str))
    assert not any(item is env or item is env.domain or item is env._session for item in reached)
    for item in reached:
        assert not type(item).__module__.startswith("whale_env") or type(item).__module__ in (
            "whale_env.types",
            "whale_env.spaces",
        )


def reachable(start: Any) -> list[Any]:
    """All objects that can be got at from one, code and modules aside."""
    code = (type, ModuleType, FunctionType, MethodType, BuiltinFunctionType)
    found: dict[int, Any] = {}
    todo = [start]
    while todo:
        item = todo.pop()
        if id(item) not in found and not isinstance(item, code):
            found[id(item)] = item
            todo += gc.get_referents(item)
    return list(found.values())
