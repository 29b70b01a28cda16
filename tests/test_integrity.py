"""Harnesses that win without a model are refused, honest ones are not; what the rollouts count and store of it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from harness_sdk.check import behaviour
from harness_sdk.floor import Floor, floor
from harness_sdk.loader import load, load_source
from harness_sdk.sandbox import confinement
from reference_harnesses import BASELINES, STRONG
from whale_env import handle
from whale_env.core import EnvHandle

HOSTILE = Path(__file__).parent / "hostile_harnesses"
GOOD = Path(__file__).parent / "good_harnesses"
ARGUMENTS: dict[str, dict[str, Any]] = {"chess": {"tiers": ["1"]}, "math": {"tiers": ["1"]}, "searchqa": {"hops": 1}}

caged = pytest.mark.skipif(not confinement().available, reason="needs a kernel that can confine")


def env_of(name: str) -> EnvHandle:
    return handle(name, ARGUMENTS[name]).sealed()


def source_of(path: Path, env: EnvHandle) -> str:
    domain: Any = env.prototype.domain
    source = path.read_text("utf-8")
    if "TABLE = {}" in source:
        table = {domain._problems[task.id].text: domain._problems[task.id].answer for task in env.tasks("search")}
        source = source.replace("TABLE = {}", f"TABLE = {json.dumps(table)}")
    return source


@caged
@pytest.mark.parametrize("name", sorted(path.name.split(".")[0] for path in HOSTILE.iterdir()))
def test_a_harness_that_wins_without_a_model_is_refused(name: str) -> None:
    domain = name.split("_")[0]
    env = env_of(domain)
    harness = load_source(source_of(HOSTILE / f"{name}.py.txt", env), env=domain)
    result = asyncio.run(behaviour(harness, env, env.tasks("search")[:2], load(BASELINES[domain])))
    assert {finding.kind for finding in result.findings} & {"answers-itself", "violation"}, result


def measured(name: str, reference: str) -> Floor:
    env = env_of(name)
    return asyncio.run(floor(load(reference), env, env.tasks("search"), h0=load(BASELINES[name])))


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("kind", [BASELINES, STRONG], ids=["h0", "strong"])
def test_the_reference_harnesses_win_nothing_without_a_model(name: str, kind: dict[str, str]) -> None:
    found = measured(name, kind[name])
    assert not found.answers_itself and not found.violations, found
