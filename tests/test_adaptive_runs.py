"""Adaptive runs through the real loop: all methods spend their totals, and a killed phase ends where it would have."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
import riddles  # noqa: F401  # registers riddles/Riddles-v0

from harness_sdk import Harness, ScriptedPolicy, load
from harness_sdk.policies.base import Generation, Request
from optimizers.config import (
    BudgetConfig,
    EvaluationConfig,
    Method,
    RunConfig,
    ScheduleConfig,
    SearchConfig,
    WeightsConfig,
)
from optimizers.proposers.protocol import ScriptedProposer
from optimizers.record.rundir import METRICS, RunDir
from optimizers.run.display import Display
from optimizers.run.whale import Parts, Run
from optimizers.weights.protocol import IdleUpdate
from whale_env.core import EnvHandle
from whale_env.json_lines import read_lines

SKILLS = (2, 4, 6, 6, 8, 8, 8, 8, 3, 9, 9, 9, 9, 9, 9, 9)
"""Riddles of ten that are solved, by version of the weights."""


class Idle(IdleUpdate):
    """Learns nothing."""

    def __init__(self) -> None:
        super().__init__(None, WeightsConfig())

    def weights(self) -> Mapping[str, Any]:
        return {}


class Killed(Exception):
    """Ends a run within a step."""


class Learning:
    """A policy that is as good as its version; it may kill the run that would give it one."""

    def __init__(self, killed_at: int = -1) -> None:
        self._version, self._killed_at = 0, killed_at

    def load_weights(self, weights: Mapping[str, Any], version: int) -> None:
        if version == self._killed_at:
            raise Killed
        self._version = version

    def forget(self) -> None:
        """Nothing is cached."""

    async def generate(self, request: Request) -> Generation:
        number = int(request.messages[-1]["content"].split()[2])
        reply = 2 * number if number < SKILLS[min(self._version, len(SKILLS) - 1)] else -1
        return await ScriptedPolicy([f"<answer>{reply}</answer>"]).generate(request)


class Plain(Harness):
    max_turns = 1


def config(method: Method) -> RunConfig:
    return RunConfig(
        env="riddles/Riddles-v0",
        method=method,
        weights=WeightsConfig(epochs=1.0, prompts=2, samples=1),
        search=SearchConfig(iterations=2, candidates=1, examples=2),
        schedule=ScheduleConfig(window=0.4, min_epochs=0.4, patience=0.4, min_iterations=1, iteration_patience=1),
        budget=BudgetConfig(epochs=3.0, iterations=4),
        evaluation=EvaluationConfig(tasks=2, k=1),
    )


def phases(path: Path, method: Method = "adaptive", killed_at: int = -1, *, resume: bool = False) -> dict[str, int]:
    """Runs; returns the steps or iterations of each phase."""
    directory = RunDir.open(path, {}, resume=resume)
    parts = Parts(load("test_adaptive_runs:Plain"), ScriptedProposer([]), Learning(killed_at), Idle())
    with Display(0) as display:
        asyncio.run(Run(config(method), directory, EnvHandle("riddles/Riddles-v0", {}), parts, display).play())
    units = [key.split("/") for key in directory.done() if key.startswith(("weights/", "harness/"))]
    names = [
        f"{unit[0]}-{unit[1]}" for unit in units if unit[0] == "weights" or (unit[-1] == "score" and unit[2] != "0")
    ]
    return {name: names.count(name) for name in names}


@pytest.mark.parametrize("method", get_args(Method))
def test_all_methods_spend_the_same_totals(tmp_path: Path, method: Method) -> None:
    spent = phases(tmp_path / "run", method)
    steps = sum(count for name, count in spent.items() if name.startswith("weights"))
    assert steps == (0 if method == "harness-only" else 15)
    assert sum(spent.values()) - steps == (0 if method == "weight-only" else 4)


@pytest.mark.parametrize("killed_at", [1, 3, 6])
def test_a_killed_phase_ends_where_it_would_have(tmp_path: Path, killed_at: int) -> None:
    whole = phases(tmp_path / "whole")
    assert len(whole) > 3 and len(set(whole.values())) > 1
    with pytest.raises(Killed):
        phases(tmp_path / "killed", killed_at=killed_at)
    assert phases(tmp_path / "killed", resume=True) == whole
    for run in ("whole", "killed"):
        assert [x["step"] for x in read_lines(tmp_path / run / METRICS) if "step" in x] == list(range(1, 16))
