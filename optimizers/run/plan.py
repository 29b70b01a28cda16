"""What a run will do and how many rollouts it takes, without doing anything."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from harness_sdk.loader import LoadedHarness
from harness_sdk.session import HarnessError
from harness_sdk.sync import wait_for
from optimizers.config import ConfigError, RunConfig
from optimizers.run.schedule import Budget
from optimizers.weights.prompts import epoch_steps
from whale_env.core import EnvHandle
from whale_env.types import Split


def kinds(config: RunConfig) -> set[str]:
    """Returns the kinds of phases that a method has: ``weights``, ``harness``."""
    return {"weights", "harness"} - {{"weight-only": "harness", "harness-only": "weights"}.get(config.method, "")}


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


def budget(config: RunConfig, env: EnvHandle) -> Budget:
    """Returns what a run may spend.

    Args:
        config: The configuration.
        env: Has the tasks that `require_tasks` asks for.

    Raises:
        ConfigError: The rollouts do not pay for a single step or iteration.
    """
    weights, search, schedule, given = config.weights, config.search, config.schedule, config.budget
    train = _size(env, "train", config.train_tasks) if "weights" in kinds(config) else 0
    examples = _size(env, "search", search.examples)
    step, scoring = min(weights.prompts, train) * weights.samples, examples * search.samples
    per_epoch = epoch_steps(train, weights.prompts) if train else 0
    adaptive = config.method == "adaptive"
    fixed = max(1, round(weights.epochs * per_epoch))
    if given.rollouts:
        steps, scorings = _shared_out(config, step, scoring, fixed)
    else:
        steps = max(1, round(given.epochs * per_epoch)) if given.epochs else 0
        scorings = given.iterations * search.candidates
    found = Budget(
        method=config.method,
        steps=steps if "weights" in kinds(config) else 0,
        scorings=scorings if "harness" in kinds(config) else 0,
        candidates=search.candidates,
        incoming=int(given.rollouts > 0),
        phase_steps=max(1, round(schedule.max_epochs * per_epoch)) if adaptive else fixed,
        phase_iterations=schedule.max_iterations if adaptive else search.iterations,
        shortest=max(1, round(schedule.min_epochs * per_epoch)) if adaptive else 1,
    )
    if not found.phases():
        raise ConfigError(
            f"the budget pays for nothing: a step takes {step} rollouts, an iteration {search.candidates * scoring} "
            f"besides {scoring} for the incoming harness; raise --budget.epochs, --budget.iterations or "
            "--budget.rollouts"
        )
    return found


def _shared_out(config: RunConfig, step: int, scoring: int, fixed: int) -> tuple[int, int]:
    """Returns the steps and scorings that a total of rollouts pays for, in turn as the fixed schedule has them."""
    left, steps, scorings = config.budget.rollouts, 0, 0
    if config.method == "weight-only":
        return left // step, 0
    if config.method == "harness-only":
        return 0, left // scoring
    candidates = config.search.candidates
    while True:
        taken = min(fixed, left // step)
        left -= taken * step
        iterations = min(config.search.iterations, max(0, left // scoring - 1) // candidates)
        scored = 1 + iterations * candidates if iterations else 0
        left -= scored * scoring
        steps, scorings = steps + taken, scorings + scored
        if not taken and not scored:
            return steps, scorings


def planned(config: RunConfig, env: EnvHandle) -> list[tuple[str, int]]:
    """Returns the rollouts that a run will take, by unit, without doing anything.

    Where it depends on what comes out, as in adaptive phases, the most are given and the name says "at most".

    Args:
        config: The configuration.
        env: Has the tasks that `require_tasks` asks for.
    """
    weights, search, spends = config.weights, config.search, budget(config, env)
    train = _size(env, "train", config.train_tasks) if spends.steps else 0
    examples = _size(env, "search", search.examples)
    evaluation = _size(env, "test", config.evaluation.tasks) * config.evaluation.k
    step, scoring = min(weights.prompts, train) * weights.samples, examples * search.samples
    rows = [("test base", evaluation)]
    if config.method == "adaptive":
        return rows + _adaptive(config, spends, step, scoring, evaluation)
    for phase in spends.phases():
        if phase.kind == "weights":
            rows.append((f"{phase.name}: {phase.most} steps", phase.most * step))
        else:
            scored = 1 + phase.most * search.candidates
            rows.append((f"{phase.name}: {phase.most} iterations", scored * scoring))
            rows += _retests(config, phase.most, examples)
        rows.append((f"test after {phase.name}", evaluation))
        rows.append((f"selection after {phase.name}", scoring))
    return rows


def _size(env: EnvHandle, split: Split, count: int) -> int:
    return min(count or sys.maxsize, len(env.tasks(split)))


def _adaptive(config: RunConfig, spends: Budget, step: int, scoring: int, evaluation: int) -> list[tuple[str, int]]:
    """Returns the plan of phases whose lengths only the run will tell: all of a kind together, to the same totals."""
    # The shortest search that counts for the most phases; a weight phase before each, and one after the last.
    iterations = spends.scorings // spends.candidates
    shortest = min(config.schedule.min_iterations, spends.phase_iterations)
    searches = min(-(-iterations // shortest), max(1, spends.steps // spends.shortest - 1)) if iterations else 0
    scored = spends.scorings if spends.incoming else iterations * spends.candidates
    rows = [(f"all weight phases: {spends.steps} steps", spends.steps * step)] if spends.steps else []
    rows += [(f"all harness phases: {iterations} iterations", scored * scoring)] if iterations else []
    if searches and not spends.incoming:
        rows.append((f"incoming harnesses of at most {searches} phases", searches * scoring))
    rows += _retests(config, iterations, scoring // config.search.samples)
    ends = 2 * searches + 1
    return [
        *rows,
        (f"tests after at most {ends} phases", ends * evaluation),
        (f"selection at most {ends} times", ends * scoring),
    ]


def optimised(rows: Sequence[tuple[str, int]]) -> int:
    """Returns the rollouts of a plan that train and search: what the budget holds, and not what only measures."""
    return sum(count for name, count in rows if not name.startswith(("test", "selection")))


def _retests(config: RunConfig, iterations: int, examples: int) -> list[tuple[str, int]]:
    if config.search.selection != "paired" or not iterations:
        return []
    paired = config.search.paired
    return [("re-tests, at most", iterations * paired.rounds * 2 * paired.samples(examples) * examples)]
