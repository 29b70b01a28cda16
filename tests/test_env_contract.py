"""The contract that every registered environment keeps. A new domain is tested by being registered."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

import whale_env
from whale_env.core import EnvHandle, SealedSplitError, ToolEnv, UnknownTaskError
from whale_env.registry import ADAPTERS, ENVS
from whale_env.testing import RULES, Subject, commit, problems, verdict_problems
from whale_env.types import SPLITS, Observation, Task, ToolCall

whale_env.register()
NAMES = tuple(ENVS)
ARGUMENTS: dict[str, dict[str, Any]] = {
    **{name: {} for name in ENVS},
    "gymnasium": {"env": "CartPole-v1"},
    "reasoning-gym": {"dataset": "leg_counting", "size": 700},
}
"""Every registered name, with the arguments of those that need some."""


@lru_cache(maxsize=8)
def subject(name: str) -> Subject:
    if name == "reasoning-gym":
        pytest.importorskip("reasoning_gym")
    return Subject(whale_env.handle(name, ARGUMENTS[name]))


@pytest.fixture(scope="module", params=ARGUMENTS)
def env(request: pytest.FixtureRequest) -> ToolEnv:
    return subject(request.param).env.prototype


def test_every_registered_environment_is_checked() -> None:
    assert set(ARGUMENTS) == {*ENVS, *ADAPTERS}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ARGUMENTS)
def test_the_contract_is_kept(name: str, rule: str) -> None:
    assert problems(rule, subject(name)) == []


@pytest.mark.parametrize("name", NAMES)
def test_check_env_has_nothing_to_say_of_rendering(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gym.make(ENVS[name][0], disable_env_checker=True).unwrapped, skip_render_check=False)


@pytest.mark.parametrize("name", ARGUMENTS)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(text=st.text(st.characters(exclude_categories=()), max_size=200))
def test_the_verifier_takes_any_text(name: str, text: str) -> None:
    for said in (text, "\\boxed{" + text + "}", f"<answer>{text}</answer>"):
        assert verdict_problems(subject(name).env, said) == []


def test_splits_are_large_enough_to_measure_with(env: ToolEnv) -> None:
    assert all(len(env.tasks(split)) >= 100 for split in SPLITS)


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


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_async_vector_env_plays(name: str) -> None:
    single = subject(name).env
    kwargs = dict(single.kwargs)
    make: Any = gym.make
    made = AsyncVectorEnv([lambda: make(single.name, disable_env_checker=True, **kwargs)] * 2, shared_memory=False)
    try:
        observations, infos = made.reset(seed=[1, 2])
        assert len(observations) == 2 and all(isinstance(item, Observation) for item in observations)
        assert infos["task"][0] != infos["task"][1]
        bad = ToolCall(single.prototype.tools[-1].name, {})
        _, rewards, terminated, _, infos = made.step((bad, bad))
        assert not terminated.any() and not np.asarray(rewards).any()
        assert all(isinstance(error, str) for error in infos["error"])
        noise = commit(single.prototype, "qzxv")
        _, rewards, *_ = made.step((noise, noise))
        assert not np.asarray(rewards).any()
    finally:
        made.close()


@pytest.mark.parametrize("name", NAMES)
def test_gymnasium_makes_the_env_by_its_module(name: str) -> None:
    code = f"import gymnasium; print(gymnasium.make('whale_env:{ENVS[name][0]}'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert ENVS[name][0] in done.stdout


def test_importing_the_registry_brings_in_nothing_heavy() -> None:
    heavy = ("torch", "vllm", "ray", "jnius", "anthropic", "pyserini", "sympy", "transformers", "reasoning_gym")
    modules = "whale_env, whale_env.math, whale_env.searchqa, whale_env.adapters, whale_env.testing"
    code = f"import sys, {modules}; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"


CHESS = (
    "00sHx,q3k1nr/1pp1nQpp/3p4/1P2p3/4P3/B1PP1b2/B5PP/5K2 b k - 0 17,e8d7 a2e6 d7d8 f7f8,1760,80,83,72,mate mateIn2\n"
)


@pytest.fixture(params=NAMES)
def secret(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[EnvHandle, str]:
    """An environment with one task, and an answer that occurs nowhere by chance."""
    match request.param:
        case "chess":
            path = tmp_path / "one.csv"
            path.write_text(CHESS, encoding="utf-8")
            return whale_env.handle("chess", {"source": str(path)}), "a2e6 d7d8"
        case "math":
            path = tmp_path / "one.jsonl"
            path.write_text(json.dumps({"problem": "How many?", "answer": 918273645546, "solution": "918273645546"}))
            return whale_env.handle("math", {"source": str(path)}), "918273645546"
        case "searchqa":
            path = tmp_path / "one.jsonl"
            row = {"question": "Who?", "golden_answers": ["Zyzzyva Quux"], "metadata": {"note": "Zyzzyva Quux"}}
            path.write_text(json.dumps(row))
            return whale_env.handle("searchqa", {"source": str(path), "retriever": "none"}), "Zyzzyva Quux"
    raise AssertionError(f"give {request.param!r} a task with a secret here")


def test_nothing_public_leads_to_the_answer(secret: tuple[EnvHandle, str]) -> None:
    assert problems("custody", Subject(secret[0], (secret[1],))) == []
