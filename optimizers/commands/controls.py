"""The command ``python -m optimizers.controls``: best-of-N without a proposer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence

from harness_sdk.loader import LoadedHarness, load
from harness_sdk.trajectory import Trajectory
from optimizers.commands.cli import one_line_errors, read_config
from optimizers.config import ConfigError, RunConfig
from optimizers.search.best_of import BestOf, best_of
from whale_env.core import EnvHandle
from whale_env.slices import task_slice
from whale_env.types import Task


def main() -> None:
    """``python -m optimizers.controls``: best-of-N without a proposer, as often as a search would score candidates."""
    with one_line_errors():
        config = read_config("optimizers.controls", planned)
        print(json.dumps(asyncio.run(_best_of(config)).to_json(), indent=2))


def planned(config: RunConfig) -> list[tuple[str, int]]:
    """Returns the rollouts that best-of-N will take, without doing anything.

    Raises:
        ConfigError: The environment has no search task.
    """
    env, tasks = _searched(config)
    harness, count = _harness(config, env), _scorings(config)
    name = f"best of {count}: {harness.name} on {len(tasks)} search tasks, {config.search.samples} times each"
    return [(name, count * len(tasks) * config.search.samples)]


def _scorings(config: RunConfig) -> int:
    """Returns how many harnesses a search of the same budget scores."""
    return 1 + config.search.iterations * config.search.candidates


def _searched(config: RunConfig) -> tuple[EnvHandle, Sequence[Task]]:
    from whale_env.registry import arguments_from, handle

    env = handle(config.env, arguments_from(config.env_args)).sealed()
    tasks = task_slice(env.tasks("search"), config.search.examples, config.seed)
    if not tasks:
        raise ConfigError(f"{config.env} has no task in its search split, which best-of-N is played on")
    return env, tasks


def _harness(config: RunConfig, env: EnvHandle) -> LoadedHarness:
    spec = env.prototype.domain.spec
    return load(config.harness or spec.baseline, env=spec.name)


async def _best_of(config: RunConfig) -> BestOf:
    from optimizers.run.backend import opened, resolved
    from optimizers.search.scoring import score

    env, tasks = _searched(config)
    harness = _harness(config, env)
    with opened(config.backend, resolved(config.backend, config.model)) as policy:

        async def play(
            ids: Sequence[str], tasks: Sequence[Task], samples: int, label: str
        ) -> Mapping[str, Sequence[Trajectory]]:
            how = config.agent.rollouts(config.seed, label)
            return (await score([harness], env, policy, (tasks, samples), how))[0]

        return await best_of(harness.id, tasks, config.search.samples, _scorings(config), play)
