"""Doors to others' environments: Gymnasium's own, made-up ones with every kind of space, reasoning-gym, plug-ins."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import whale_env
from harness_sdk import Completion, Harness, ScriptedPolicy, jobs_for, load, rollout
from harness_sdk.types import Episode
from whale_env import ToolCall, UnknownEnvError
from whale_env.adapters import action_forms, gymnasium_env, reasoning_env, space_text
from whale_env.adapters.foreign_env import MAX_STEPS, SEEDS
from whale_env.registry import load_plugins
from whale_env.testing import Subject, check_domain, problems
from whale_env.types import SPLITS, Task

LAKE = {"env": "FrozenLake-v1", "is_slippery": False}
THROUGH = ("down", "down", "right", "right", "down", "right")


class Echo(gym.Env[Any, Any]):
    """Three steps; earns 1 for an action that repeats the observation."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(self, action: spaces.Space[Any], observation: spaces.Space[Any]) -> None:
        self.action_space, self.observation_space = action, observation

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self._steps, self._seen = 0, self.observation_space.sample()
        return self._seen, {"answer": self._seen}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self._steps += 1
        return self._seen, float(action == self._seen), self._steps == 3, False, {"answer": self._seen}


TEXT = spaces.Text(min_length=3, max_length=6, charset="abc")
MIXED = spaces.Dict(
    {"move": spaces.Discrete(3), "say": TEXT, "dials": spaces.MultiDiscrete([2, 5]), "deep": spaces.Dict({"n": TEXT})}
)
for name, space in {
    "Words": TEXT,
    "Mixed": MIXED,
    "Steering": spaces.Box(-1, 1, (2,)),
    "Many": spaces.Discrete(500, start=100),
}.items():
    gym.register(f"adapters/{name}-v0", entry_point=lambda space=space: Echo(space, space))
gym.register("adapters/Pixels-v0", entry_point=lambda: Echo(TEXT, spaces.Box(0, 255, (64, 64, 3), np.uint8)))


def begun(env: str, **kwargs: Any) -> Any:
    made = gymnasium_env(env, **{"threshold": 3.0, **kwargs})
    made.reset(options={"task": "7"})
    return made


def test_a_walk_over_the_lake() -> None:
    env = gymnasium_env("FrozenLake-v1", is_slippery=False)
    first, _ = env.reset(options={"task": "0"})
    assert "[red S]FFF\nFHFH\nFFFH\nHFFG" in first.text and first.text.endswith(
        "Actions: left, down, right, up\nWrite one as <act>…</act>."
    )
    assert first.data["actions"] == [{"action": name} for name in ("left", "down", "right", "up")]
    results = [env.step(ToolCall("act", {"action": name})) for name in THROUGH]
    assert [result[1:3] for result in results] == [(0.0, False)] * 5 + [(1.0, True)]
    assert "HFF[red G]" in results[-1][0].text and "Actions" not in results[-1][0].text
    assert env.score().metrics == {"return": 1.0, "actions": 6.0}


def test_a_hole_is_wrong_and_giving_up_is_budget() -> None:
    env = gymnasium_env("FrozenLake-v1", is_slippery=False)
    env.reset(options={"task": "0"})
    env.step(ToolCall("act", {"action": "down"}))
    assert env.score().failure == "budget"
    _, reward, terminated, _, _ = env.step(ToolCall("act", {"action": "right"}))
    assert (reward, terminated, env.score().failure) == (0.0, True, "wrong")


def test_max_steps_is_the_foreign_environments_limit_too() -> None:
    env = gymnasium_env("FrozenLake-v1", max_steps=2)
    env.reset(seed=0)
    ends = [env.step(ToolCall("act", {"action": "up"}))[2] for _ in range(2)]
    assert ends == [False, True] and env.score().failure == "wrong"
    assert env.domain.spec.max_steps == 2


@pytest.mark.parametrize(
    ("env", "steps"),
    [
        ("FrozenLake-v1", 100),
        ("FrozenLake8x8-v1", 200),
        ("CartPole-v1", 500),
        ("Taxi-v4", 200),
        ("MountainCar-v0", 200),
        ("Blackjack-v1", MAX_STEPS),
        ("CliffWalking-v1", MAX_STEPS),
    ],
)
def test_a_domain_says_how_many_actions_there_are(env: str, steps: int) -> None:
    made = gymnasium_env(env)
    assert made.domain.spec.max_steps == steps
    spec = gym.registry[env]
    assert spec.max_episode_steps in (None, steps)


def test_invalid_calls_take_no_actions_away() -> None:
    env = gymnasium_env("CartPole-v1", max_steps=5)
    env.reset(seed=0, options={"task": "0"})
    ends = []
    for place in range(5):
        assert env.step(ToolCall("act", {"action": "up"}))[4]["error"]
        ends.append(env.step(ToolCall("act", {"action": ("left", "right")[place % 2]}))[2:4])
    assert ends == [(False, False)] * 4 + [(True, False)]
    assert env.score().metrics["actions"] == 5


@pytest.mark.parametrize(
    ("kwargs", "form", "written", "arguments"),
    [
        (LAKE, "<act>…</act>", "<act>left</act>", {"action": "left"}),
        ({"env": "adapters/Words-v0"}, "<act>…</act>", "<act>abc</act>", {"action": "abc"}),
        ({"env": "adapters/Many-v0"}, None, None, None),
        ({"env": "adapters/Mixed-v0", "names": {"move": ["a", "b", "c"]}}, None, None, None),
    ],
)
def test_the_model_is_told_how_to_write_an_action(
    kwargs: dict[str, Any], form: str | None, written: str | None, arguments: dict[str, Any] | None
) -> None:
    env = gymnasium_env(**{"threshold": 1, **kwargs})
    first, _ = env.reset(seed=0)
    tool = env.tools[0]
    call = env.action_space.sample()
    values = arguments or call.arguments
    if written is None:
        value = values if len(values) > 1 else next(iter(values.values()))
        written = f"<act>{value if isinstance(value, str) else json.dumps(value)}</act>"
    assert f"{form or '<act>'}" in first.text and "</act>" in first.text and "<act>" in tool.description
    completion = Completion("Well: " + written)
    episode = Episode(env.task("0"), env.tools, first, first, (), False)
    assert Harness().parse(completion, episode) == [ToolCall("act", values)]
    env.step(ToolCall("act", values))


def test_several_arguments_are_told_as_an_object() -> None:
    first, _ = gymnasium_env("adapters/Mixed-v0", threshold=1, names={"move": ["a", "b", "c"]}).reset(seed=0)
    told = "deep.n: 3 to 6 characters.\ndials: 2 whole numbers; in order: 0 to 1, 0 to 4.\nmove: a, b, c\nsay: 3 to 6"
    assert told in first.text
    assert first.text.endswith('<act>{"deep": {"n": "…"}, "dials": […], "move": "…", "say": "…"}</act>.')


def test_seeds_are_the_tasks_and_splits_share_none() -> None:
    env = gymnasium_env("CartPole-v1")
    assert {task.id for task in env.tasks("train")} == {str(seed) for seed in SEEDS["train"]}
    seen = [env.reset(seed=seed, options={"task": "5"})[0] for seed in (1, 2)]
    assert seen[0] == seen[1] != env.reset(options={"task": "6"})[0]
    assert len({seed for split in SPLITS for seed in SEEDS[split]}) == sum(len(SEEDS[split]) for split in SPLITS)


@pytest.mark.parametrize(
    ("kwargs", "distinct"),
    [
        (LAKE, False),
        ({"env": "Blackjack-v1"}, False),
        ({"env": "MountainCar-v0", "max_steps": 5}, False),
        ({"env": "adapters/Words-v0", "threshold": 3}, False),
        ({"env": "adapters/Mixed-v0", "threshold": 3, "names": {"move": ["a", "b", "c"]}}, True),
        ({"env": "adapters/Many-v0", "threshold": 3}, False),
    ],
)
def test_adapted_environments_keep_the_contract(kwargs: dict[str, Any], distinct: bool) -> None:
    check_domain("gymnasium", kwargs, distinct=distinct)


def test_a_text_action_is_a_string() -> None:
    env = begun("adapters/Words-v0")
    word = env._session._env.unwrapped._seen
    assert env.tools[0].parameters["properties"]["action"]["type"] == "string"
    for bad in ("ab", "abcabcabc", "xyz"):
        assert "3 to 6 characters" in env.step(ToolCall("act", {"action": bad}))[4]["error"]
    rewards = [env.step(ToolCall("act", {"action": word}))[1] for _ in range(3)]
    assert rewards == [0.0, 0.0, 1.0]


def test_a_dict_action_is_an_object_with_all_its_parts_said() -> None:
    env = begun("adapters/Mixed-v0", names={"move": ["left", "stay", "right"]})
    schema = env.tools[0].parameters
    assert schema["properties"]["move"]["enum"] == ["left", "stay", "right"]
    assert schema["properties"]["deep"]["properties"]["n"]["type"] == "string" and set(schema["required"]) == set(
        MIXED.spaces
    )
    good = ToolCall("act", {"move": "stay", "say": "abc", "dials": [1, 4], "deep": {"n": "cba"}})
    assert env.said(good, "I stay, say abc, set 1 and 4, and cba below")
    assert not env.said(good, "I stay, say abc, set 1 and 3, and cba below")
    assert env.step(good)[4]["error"] is None
    for change, words in (
        ({"dials": [1, 5]}, "0 to 4"),
        ({"dials": [1]}, "0 to 4"),
        ({"dials": [1, 10**30]}, "0 to 4"),
        ({"deep": {"n": "x"}}, "3 to 6 characters"),
        ({"deep": {}}, "'n' is missing"),
        ({"move": "up"}, "must be one of"),
    ):
        assert words in env.step(ToolCall("act", {**good.arguments, **change}))[4]["error"]


def test_many_actions_go_by_number() -> None:
    env = begun("adapters/Many-v0")
    assert env.tools[0].parameters["properties"]["action"]["type"] == "integer"
    assert "from 100 to 599" in env.step(ToolCall("act", {"action": 600}))[4]["error"]
    assert "from 100 to 599" in env.step(ToolCall("act", {"action": 10**40}))[4]["error"]
    assert env.step(ToolCall("act", {"action": 599}))[4]["error"] is None


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=6,
    )
)
def test_whatever_is_said_to_an_adapted_environment_is_data(value: Any) -> None:
    env = begun("adapters/Mixed-v0")
    for arguments in ({"move": value}, {"move": "0", "say": "abc", "dials": value, "deep": {"n": value}}):
        assert isinstance(env.step(ToolCall("act", arguments))[4]["error"], str)


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({}, '"env"'),
        ({"env": 3}, "not 3"),
        ({"env": "FrozenLak-v1"}, "FrozenLak"),
        ({"env": "no_such_module:X-v0"}, "no_such_module"),
        ({"env": "FrozenLake-v1", "is_slipery": True}, "is_slipery"),
        ({"env": "FrozenLake-v1", "names": ["a", "b"]}, "4 actions"),
        ({"env": "FrozenLake-v1", "names": "udlr"}, "4 actions"),
        ({"env": "FrozenLake-v1", "max_steps": 0}, "max_steps"),
        ({"env": "FrozenLake-v1", "threshold": "high"}, "not 'high'"),
        ({"env": "adapters/Words-v0"}, "threshold=<number>"),
        ({"env": "adapters/Steering-v0", "threshold": 1}, "Box"),
        ({"env": "adapters/Pixels-v0", "threshold": 1}, "cannot be read as text"),
        ({"env": "adapters/Mixed-v0", "threshold": 1, "names": {"mov": ["a"]}}, "'move'"),
        ({"env": "whale/Chess-v0"}, "tool environment already"),
    ],
)
def test_what_a_user_can_get_wrong_is_one_line(kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as caught:
        whale_env.handle("gymnasium", kwargs)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_observations_read_like_text() -> None:
    value = {"speed": np.float32(0.1), "grid": np.eye(2, dtype=int), "far": float("inf"), "word": "hi", "on": True}
    data = space_text.plain(value)
    assert data == {"speed": 0.1, "grid": [[1, 0], [0, 1]], "far": "inf", "word": "hi", "on": True}
    assert space_text.text(data) == "speed: 0.1\ngrid:\n1, 0\n0, 1\nfar: inf\nword: hi\non: True"
    assert (
        space_text.without_escapes("\x1b[34;1mB\x1b[0m|\x1b[43m \x1b[0m|\x1b[1mX\x1b[0m\x1b[2J")
        == "[blue B]|[yellow  ]|X"
    )
    assert space_text.size(spaces.Tuple([spaces.Discrete(2), spaces.Box(0, 1, (2, 3))])) == 7
    assert space_text.size(spaces.Sequence(spaces.Discrete(2))) is None


def test_unnamed_actions_are_called_by_number_from_the_start() -> None:
    assert action_forms.choices(spaces.Discrete(3, start=-1)) == ["-1", "0", "1"]
    assert action_forms.action_of(spaces.Discrete(3, start=-1), None, {"action": "1"}) == 1


def test_a_scripted_policy_walks_over_the_lake_through_the_rollout_loop() -> None:
    env = whale_env.handle("gymnasium", LAKE)
    replies = [f"I go <act>{name}</act>" for name in THROUGH]
    jobs = jobs_for(load("harness_sdk.harness:Harness"), env.tasks("train")[:3])
    played = asyncio.run(rollout(jobs, env, ScriptedPolicy(replies)))
    assert [trajectory.reward for trajectory in played] == [1.0, 1.0, 1.0]


# Reasoning-gym


def legs(**kwargs: Any) -> Any:
    pytest.importorskip("reasoning_gym")
    return reasoning_env("leg_counting", size=200, **kwargs)


def solution(env: Any, task: Task) -> str:
    return str(env.domain._questions.entries[task.id]["answer"])


def test_reasoning_gym_judges_with_its_own_scorer() -> None:
    env = legs()
    task = env.tasks("search")[0]
    for said, reward, failure in (
        (solution(env, task), 1.0, None),
        (f"Thus <answer> {solution(env, task)} </answer>.", 1.0, None),
        (f"{solution(env, task)} legs", 0.0, "wrong"),
        ("<answer></answer>", 0.0, "format"),
    ):
        env.reset(options={"task": task.id})
        result = env.step(ToolCall("answer", {"text": said}))
        assert (result[1], env.score().failure, result[2]) == (reward, failure, True)


def test_the_threshold_makes_partial_credit_binary() -> None:
    env = legs(threshold=0.2)
    task = env.tasks("train")[0]
    env.reset(options={"task": task.id})
    assert env.step(ToolCall("answer", {"text": f"{solution(env, task)} legs"}))[1] == 1.0
    assert 0.2 <= env.score().metrics["partial_score"] < 1.0


def test_no_answer_of_reasoning_gym_leaves_the_session() -> None:
    pytest.importorskip("reasoning_gym")
    handle = whale_env.handle("reasoning-gym", {"dataset": "spell_backward", "size": 60, "min_word_len": 9})
    tasks = [task for split in SPLITS for task in handle.tasks(split)[:3]]
    secrets = tuple(solution(handle.prototype, task) for task in tasks)
    assert len(set(secrets)) == 9 and problems("custody", Subject(handle, secrets)) == []


def test_questions_are_the_same_in_every_process() -> None:
    pytest.importorskip("reasoning_gym")
    code = (
        "import whale_env; env = whale_env.make('reasoning-gym', dataset='isomorphic_strings', size=20); "
        "print([task.id for split in ('train', 'search', 'test') for task in env.tasks(split)])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(__file__).parents[1])},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1 and b"isomorphic_strings-" in outputs.pop()


EXPLOITS = (
    "__import__('os').getpid()",
    "[exec][0]('1')",
    "[exec #\n('1')]",
    "open ('/etc/passwd')",
    "f'{open(1)}'",
    "().real",
    "\uff45xec('1')",
    "ex\\\nec(1)",
    "(lambda: 1)()",
    "preview(x)",
)


@pytest.mark.parametrize("text", EXPLOITS)
def test_what_would_call_something_is_not_shown_to_a_scorer_that_evaluates(text: str) -> None:
    from whale_env.adapters.scoring import calls_something

    assert calls_something(text)


@pytest.mark.parametrize(
    "text",
    ["82 + 20 + 67 - 50", "-9*x**8/10 + sin(3*x)/2 + C", "(1 + 2)*(3.5 - 4)", "_ Q _\n_ _ Q", "[[0, 1], [1, 0]]", "x!"],
)
def test_answers_as_they_should_be_are_shown(text: str) -> None:
    from whale_env.adapters.scoring import calls_something

    assert not calls_something(text)


@pytest.mark.parametrize("piece", ["a", "a1", "(", "a (", "sin(", " ", "1", "]", "[ ", "\n", "é", "a\n"])
def test_long_answers_are_judged_in_time_that_is_in_proportion(piece: str) -> None:
    from whale_env.adapters.scoring import MAX_ANSWER, calls_something

    began = time.process_time()
    calls_something(piece * (MAX_ANSWER // len(piece)))
    assert time.process_time() - began < 2.0  # 13 s for 40,000 characters when it was quadratic


def test_scorers_that_hang_or_raise_give_no_credit(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("reasoning_gym")
    from whale_env.adapters import scoring
    from whale_env.adapters.generation import generated

    config = {"seed": 3, "size": 3}
    numbers, factors = generated("countdown", config)[0], generated("prime_factorization", config)[0]
    assert scoring.score("countdown", config, numbers, numbers["answer"]) == 1.0
    assert scoring.score("prime_factorization", config, factors, "no factors") == 0.0
    assert scoring.score("prime_factorization", config, factors, "\ud800") == 0.0
    monkeypatch.setattr(scoring, "SECONDS", 0.5)
    assert scoring.score("countdown", config, numbers, "9**9**9**9") == 0.0
    assert scoring.score("countdown", config, numbers, numbers["answer"]) == 1.0


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({}, "not None"),
        ({"dataset": "leg_countin"}, "Did you mean 'leg_counting'?"),
        ({"dataset": "composite"}, "no data set 'composite'"),
        ({"dataset": "leg_counting", "max_animal": 3}, "Did you mean 'max_animals'?"),
        ({"dataset": "leg_counting", "max_animals": 1}, "max_animals must be"),
        ({"dataset": "leg_counting", "size": 0}, "size must be"),
        ({"dataset": "leg_counting", "threshold": 0}, "threshold must be"),
        ({"dataset": "game_of_life_halting", "size": 30}, "verifies nothing"),
    ],
)
def test_what_a_user_can_get_wrong_with_reasoning_gym_is_one_line(kwargs: dict[str, Any], words: str) -> None:
    pytest.importorskip("reasoning_gym")
    with pytest.raises(ValueError) as caught:
        whale_env.handle("reasoning-gym", kwargs)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_without_reasoning_gym_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whale_env.adapters.generation.find_spec", lambda name: None)
    with pytest.raises(UnknownEnvError, match=r"pip install -e '\.\[reasoning\]'"):
        whale_env.handle("reasoning-gym", {"dataset": "leg_counting", "size": 3})


# Plug-ins

PLUGIN = """
import gymnasium
from riddles import riddle_env

def register():
    gymnasium.register("stranger_{n}/Riddles-v0", entry_point=riddle_env)
"""


def installed(folder: Path, n: str, body: str) -> None:
    """Lays out a distribution as pip would have it."""
    (folder / f"stranger_{n}.py").write_text(body)
    info = folder / f"stranger_{n}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: stranger-{n}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[gymnasium.envs]\nstranger_{n} = stranger_{n}:register\n")


def test_an_installed_plugin_is_found_by_its_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, "good", PLUGIN.replace("{n}", "good"))
    installed(tmp_path, "bad", "def register():\n    raise RuntimeError('half installed')\n")
    monkeypatch.syspath_prepend(tmp_path)
    handle = whale_env.handle("stranger_good/Riddles-v0")
    assert handle.tasks("train")[0].env == "riddles"
    with pytest.raises(UnknownEnvError, match="'stranger_bad' failed: RuntimeError: half installed"):
        whale_env.handle("stranger_bad/Riddles-v0")
    assert load_plugins("stranger_good/Riddles-v0") == {}


def test_a_foreign_id_of_a_plugin_can_be_adapted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = (
        "import gymnasium\n\n\ndef register():\n"
        "    from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv\n"
        "    gymnasium.register('stranger_lake/Lake-v0', entry_point=FrozenLakeEnv)\n"
    )
    installed(tmp_path, "lake", body)
    monkeypatch.syspath_prepend(tmp_path)
    env = gymnasium_env("stranger_lake/Lake-v0", threshold=1, max_steps=9)
    assert "Actions: 0, 1, 2, 3" in env.reset(seed=0)[0].text
