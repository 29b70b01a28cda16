"""Settings: one declaration each, which reaches the flags, the bounds, the file of a run and the room that takes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Annotated, Any

import pytest
import tyro
from annotated_types import Ge
from tiny import tiny_llama

import optimizers
from harness_sdk import ScriptedPolicy
from harness_sdk.policies import Sampling
from harness_sdk.rollout import EpisodeLimits
from optimizers.commands.cli import one_line_errors, parse
from optimizers.config import ConfigError, Inline, PairedConfig, RunConfig, TrainerConfig, checked, from_json, preset
from optimizers.config.flags import require_bounds, settings
from optimizers.weights.trainer import Trainer


@dataclass(frozen=True, slots=True)
class MoreSampling(Sampling):
    penalty: Annotated[float, Ge(0)] = 0.0
    """A setting that there is not yet."""


@dataclass(frozen=True)
class MoreAgent:
    sampling: Annotated[MoreSampling, Inline] = field(default_factory=MoreSampling)


@dataclass(frozen=True)
class MoreConfig:
    agent: MoreAgent = field(default_factory=MoreAgent)


def test_a_new_field_is_a_flag_with_bounds_and_a_place_in_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    config = parse(MoreConfig, "x", "", MoreConfig(), ["--agent.penalty", "0.5", "--agent.top-p", "0.9"])
    assert config.agent.sampling == MoreSampling(penalty=0.5, top_p=0.9)
    assert from_json(MoreConfig, json.loads(json.dumps(asdict(config)))) == config
    with pytest.raises(ConfigError, match=r"^--agent\.penalty is -1\.0; give at least 0$"):
        require_bounds(replace(config, agent=MoreAgent(MoreSampling(penalty=-1.0))), "--")


def changed(value: Any) -> Any:
    """Another value of the same kind that no rule forbids, or None where one has to know."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value * 0.5 or 0.25
    return None


def flagged(config: RunConfig) -> Iterator[tuple[str, Any]]:
    for flag, value, _ in settings(config, "--"):
        if changed(value) is not None:
            yield flag, changed(value)


def test_every_number_is_a_flag_and_its_value_arrives() -> None:
    default = preset("laptop", "chess")
    asked = dict(flagged(default))
    arguments = []
    for flag, value in asked.items():
        group, _, name = flag.rpartition(".")
        no = f"{group}.no-{name}" if group else f"--no-{name[2:]}"
        arguments += [flag if value else no] if isinstance(value, bool) else [flag, repr(value)]
    config = checked(tyro.cli(RunConfig, args=arguments, default=default))
    assert {flag: value for flag, value, _ in settings(config, "--") if flag in asked} == asked
    for each in (*fields(Sampling), *fields(EpisodeLimits)):
        assert f"--agent.{each.name.replace('_', '-')}" in asked
    for each in fields(TrainerConfig):
        assert f"--weights.{each.name.replace('_', '-')}" in asked
    for each in fields(PairedConfig):
        assert f"--search.paired.{each.name}" in asked


def test_settings_reach_the_rooms_that_take_them() -> None:
    config = preset("laptop", "chess")
    sampling, limits = Sampling(0.5, 7, 0.9, 0.1), EpisodeLimits(3, 4, 5, 6)
    how = replace(config.agent, sampling=sampling, limits=limits).rollouts(3, "test")
    assert (how.seed, how.phase, how.sampling) == (3, "test", sampling)
    assert all(getattr(how, each.name) == getattr(limits, each.name) for each in fields(EpisodeLimits))
    trainer = Trainer(tiny_llama()[0], TrainerConfig(lr=0.1, weight_decay=0.2, beta1=0.3, beta2=0.4))
    group = trainer.optimizer.param_groups[0]
    assert (group["lr"], group["weight_decay"], group["betas"]) == (0.1, 0.2, (0.3, 0.4))


def test_what_a_file_names_that_there_is_not_is_said() -> None:
    with pytest.raises(ConfigError, match=r"agent: there is no setting 'samplings'\. Did you mean 'sampling'\?"):
        from_json(RunConfig, {"agent": {"samplings": {}}})


@pytest.mark.parametrize("name", ["smoke", "laptop", "paper"])
@pytest.mark.parametrize("env", ["chess", "whale/Math-v0", "searchqa", "riddles/Riddles-v0", "nowhere"])
def test_presets_make_sense_for_any_environment(name: Any, env: str) -> None:
    config = checked(preset(name, env))
    assert from_json(RunConfig, json.loads(json.dumps(asdict(config)))) == config


def test_a_fault_of_the_code_keeps_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="a bug"), one_line_errors():
        raise ValueError("a bug")
    with pytest.raises(SystemExit), one_line_errors():
        raise ConfigError("a wrong flag")
    assert capsys.readouterr().err == "error: a wrong flag\n"


def scripted(model: str) -> ScriptedPolicy:
    return ScriptedPolicy([f"<move>{model}</move>"])


def test_the_optimisers_are_functions(tmp_path: Any) -> None:
    config = replace(preset("smoke", "chess"), method="harness-only", model="e2e4")
    config = replace(
        config,
        backend=replace(config.backend, kind=f"{__name__}:scripted"),
        search=replace(config.search, iterations=1, examples=2, samples=1),
        evaluation=replace(config.evaluation, tasks=2, k=1),
    )
    result = optimizers.optimise(config, tmp_path / "run")
    assert isinstance(result, optimizers.Result) and result.final.rollouts == 2
    written = json.loads((tmp_path / "run" / "result.json").read_text())
    assert optimizers.Result.from_json(written) == result
    assert optimizers.optimise(config, tmp_path / "run", resume=True) == result
    with pytest.raises(AttributeError, match="nothing"):
        optimizers.nothing  # noqa: B018
