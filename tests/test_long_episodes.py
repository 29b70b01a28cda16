"""Episodes take as many model calls as their domain has steps; where a limit is shorter, that is said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import pytest
from riddles import Riddles

import whale_env
from harness_sdk import Harness, ScriptedPolicy, load
from harness_sdk.rollout import EpisodeLimits
from optimizers.config import AgentConfig, Preset, RunConfig, preset
from optimizers.run import start
from optimizers.run.plan import too_short
from whale_env import ToolEnv

LAKE = ("down", "down", "right", "right", "down", "right")
CLIFF = ("up", *["right"] * 11, "down")
WALKS = {"FrozenLake-v1": ({"is_slippery": False}, LAKE), "CliffWalking-v1": ({"threshold": -13}, CLIFF)}


class Hasty(Harness):
    max_turns = 4


gym.register("long/Slow-v0", entry_point=lambda **_: ToolEnv(Riddles(10)))


def lake(model: str) -> ScriptedPolicy:
    return ScriptedPolicy([f"I go <act>{move}</act>" for move in WALKS[model][1]])


def walking(name: Preset, env: str) -> RunConfig:
    config = preset(name, "gymnasium")
    return replace(
        config,
        env_args=json.dumps({"env": env, **WALKS[env][0]}),
        model=env,
        method="harness-only",
        backend=replace(config.backend, kind=f"{__name__}:lake"),
        budget=replace(config.budget, iterations=1, rollouts=0),
        search=replace(config.search, iterations=1, examples=1, samples=1),
        evaluation=replace(config.evaluation, tasks=2, k=1),
    )


@pytest.mark.parametrize("env", WALKS)
@pytest.mark.parametrize("name", ["smoke", "laptop"])
def test_a_perfect_player_wins_within_the_limits_of_a_preset(
    name: Preset, env: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = walking(name, env)
    result = start.start(
        config, whale_env.handle("gymnasium", json.loads(config.env_args)), tmp_path / "run", resume=False
    )
    assert result.base.mean == 1.0 and result.base.turns == len(WALKS[env][1])
    assert "note:" not in capsys.readouterr().err


def test_a_limit_below_the_domains_is_told_with_whose_it_is() -> None:
    slow, plain = whale_env.handle("long/Slow-v0"), load("harness_sdk.harness:Harness")

    def told(limit: int, h0: type[Harness] = Harness, env: whale_env.EnvHandle = slow) -> str:
        config = replace(RunConfig(), agent=AgentConfig(limits=EpisodeLimits(max_turns=limit)))
        return too_short(config, env, plain if h0 is Harness else load(h0))

    assert told(0) == told(10) == ""
    assert told(9) == "an episode of riddles may take 10 actions, but --agent.max-turns allows 9 model calls"
    assert told(0, Hasty) == "an episode of riddles may take 10 actions, but Hasty.max_turns allows 4 model calls"
    assert told(8, env=whale_env.handle("chess")) == ""  # it says that a small model needs no more


@pytest.mark.parametrize("limit", ["max_tokens", "max_prompt_tokens", "concurrency"])
def test_limits_under_which_nothing_could_run_are_refused(limit: str) -> None:
    with pytest.raises(whale_env.InputError, match=f"{limit} must be at least 1, not 0"):
        EpisodeLimits(**{limit: 0})
