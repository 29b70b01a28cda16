"""What a run will do and how many rollouts it takes, without doing anything."""

from __future__ import annotations

import sys

from harness_sdk.loader import LoadedHarness
from harness_sdk.session import HarnessError
from harness_sdk.sync import wait_for
from optimizers.config import ConfigError, RunConfig
from optimizers.run.schedule import phases
from optimizers.weights.prompts import epoch_steps
from whale_env.core import EnvHandle
from whale_env.types import Split


def kinds(config: RunConfig) -> set[str]:
    """Returns the kinds of phases that a method has: ``weights``, ``harness``."""
    return {phase.kind for phase in phases(config.method, config.schedule.cycles)}


def require_tasks(config: RunConfig, env: EnvHandle) -> None:
    """Checks that an environment has tasks in all splits that a method uses.

    Args:
        config: Names the method. All evaluate on the test split and select on the search split.
        env: A handle on all splits.

    Raises:
        ConfigError: A split is empty.
    """
    needed: tuple[Split, ...] = ("train", "search", "test") if "weights" in kinds(config) else ("search", "test")
    for split in needed:
        if not env.tasks(split):
            raise ConfigError(
                f"{config.env} has no task in its {split} split; --method {config.method} needs tasks in "
                f"{', '.join(needed[:-1])} and {needed[-1]}"
            )


def too_short(config: RunConfig, env: EnvHandle, h0: LoadedHarness) -> str:
    """Returns a line where an episode may take more actions than a run allows model calls, else ``""``.

    Args:
        config: The limits.
        env: The environment.
        h0: The starting harness, with limits of its own.
    """
    spec = env.prototype.domain.spec
    needed = spec.easy.calls or spec.max_steps
    try:
        own = wait_for(_max_turns(h0))
    except HarnessError:  # the first rollouts tell
        return ""
    limit = config.agent.limits.max_turns or sys.maxsize
    allowed, who = min((own, f"{h0.name}.max_turns"), (limit, "--agent.max-turns"))
    if allowed >= needed:
        return ""
    return f"an episode of {spec.name} may take {needed} actions, but {who} allows {allowed} model calls"


async def _max_turns(harness: LoadedHarness) -> int:
    session = await harness.open(0)
    try:
        return session.limits.max_turns
    finally:
        await session.close()


def planned(config: RunConfig, env: EnvHandle) -> list[tuple[str, int]]:
    """Returns the rollouts that a run will take, by unit, without doing anything.

    Where it depends on what comes out, as in adaptive phases, the most are given and the name says "at most".

    Args:
        config: The configuration.
        env: Has the tasks that `require_tasks` asks for.
    """
    weights, search, adaptive = config.weights, config.search, config.method == "adaptive"
    most = "at most " if adaptive else ""
    train = _size(env, "train", config.train_tasks)
    examples = _size(env, "search", search.examples)
    evaluation = _size(env, "test", config.evaluation.tasks) * config.evaluation.k
    rows = [("test base", evaluation)]
    for phase in phases(config.method, config.schedule.cycles):
        if phase.kind == "weights":
            prompts = min(weights.prompts, train)
            epochs = config.schedule.max_epochs if adaptive else weights.epochs
            steps = max(1, round(epochs * epoch_steps(train, prompts)))
            rows.append((f"{phase.name}: {most}{steps} steps", steps * prompts * weights.samples))
        else:
            iterations = config.schedule.max_iterations if adaptive else search.iterations
            scored = 1 + iterations * search.candidates
            rows.append((f"{phase.name}: {most}{iterations} iterations", scored * examples * search.samples))
            if search.selection == "paired":
                paired = search.paired
                tests = iterations * paired.rounds * 2 * paired.samples(examples) * examples
                rows.append((f"{phase.name}: re-tests, at most", tests))
        rows.append((f"test after {phase.name}", evaluation))
        rows.append((f"selection after {phase.name}", examples * search.samples))
    return rows


def _size(env: EnvHandle, split: Split, count: int) -> int:
    return min(count or sys.maxsize, len(env.tasks(split)))
