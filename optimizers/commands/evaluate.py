"""The command ``python -m optimizers.evaluate``: a pair of a run, or a pair of one's own, on any split."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated

from harness_sdk.sync import wait_for
from harness_sdk.trajectory import Trajectory
from optimizers.commands.cli import one_line_errors, parse, peek
from optimizers.config import (
    AgentConfig,
    BackendConfig,
    ConfigError,
    EvaluationConfig,
    Inline,
    RunConfig,
    checked_backend,
    from_json,
    require_bounds,
)
from optimizers.run.evaluation import Evaluation, evaluate, warning
from whale_env.types import Split

EXAMPLES = """examples:
  python -m optimizers.evaluate --run runs/mine --tasks 128
  python -m optimizers.evaluate --env chess --harness reference_harnesses.chess:ChessStrong --k 4

Without --run nothing is taken from a preset: all tasks of the environment, and long episodes. The JSON that is printed
names the env_args and the agent's settings that were used.
"""


@dataclass(frozen=True)
class EvaluateFlags:
    """What to evaluate: the final pair of a run, or a pair of your own."""

    run: Path | None = None
    """A run directory: its final weights and harness, its environment, model and backend. The defaults of the other
    flags are then the run's own settings."""
    env: str = "chess"
    """Environment."""
    env_args: str = "{}"
    """Keyword arguments of the environment, as JSON: all that it has, not the easy tasks of the presets."""
    harness: str = ""
    """module:Class or file.py:Class. Empty takes the run's final harness, or the domain's h0."""
    model: str = "smollm2-135m"
    """A local directory, smollm2-135m, or a hub name."""
    split: Split = "test"
    """Which split."""
    evaluation: Annotated[EvaluationConfig, Inline] = field(default_factory=lambda: EvaluationConfig(tasks=128))
    """How many rollouts."""
    seed: int = 0
    """Seed of the rollouts, and of which tasks are taken where not all are."""
    agent: Annotated[AgentConfig, Inline] = field(default_factory=AgentConfig)
    """How the model samples, and limits."""
    backend: BackendConfig = field(default_factory=BackendConfig)
    """What the model samples with."""
    allow_uncaged: bool = False
    """Run a proposed harness without a cage where the kernel offers none."""


@dataclass(frozen=True)
class _Pair:
    """What a run ended with: the source of a harness that was found, if any, and a file of weights, if any."""

    harness: str
    source: str = ""
    weights: Path | None = None


def _of_run(run: Path) -> tuple[RunConfig, _Pair]:
    """Reads a finished run: what it was given, and the pair it ended with."""
    try:
        config = from_json(RunConfig, json.loads((run / "config.json").read_text("utf-8")))
        result = json.loads((run / "result.json").read_text("utf-8"))
        source = (run / "harnesses" / result["harness"] / "harness.py").read_text("utf-8")
    except OSError as error:
        raise ConfigError(f"{run} holds no finished run: {error.strerror} ({error.filename})") from None
    version = result["weights_version"]
    weights = run / "checkpoints" / f"step-{version:06d}" / "model.safetensors" if version else None
    if result["harness"] == result["base"]["harness"]:
        return config, _Pair(config.harness, "", weights)
    return config, _Pair("", source, weights)


def _defaults(run: Path | None) -> EvaluateFlags:
    """Returns the flags that stand where none are given: those of a run if there is one."""
    if run is None:
        return EvaluateFlags()
    config, _ = _of_run(run)
    own = {name: getattr(config, name) for name in ("env", "env_args", "model", "seed", "agent", "backend")}
    return EvaluateFlags(run, **own)


def _pair(flags: EvaluateFlags) -> _Pair:
    found = _Pair("") if flags.run is None else _of_run(flags.run)[1]
    return replace(found, harness=flags.harness, source="") if flags.harness else found


def _refuse_what_a_run_decides(arguments: list[str]) -> None:
    for argument in arguments:
        flag = argument.partition("=")[0].replace("_", "-")
        if flag.startswith("--backend."):
            raise ConfigError("--run takes the run's own backend; leave the --backend flags out, or --run")
        if what := {"--env": "environment", "--env-args": "environment", "--model": "model"}.get(flag):
            raise ConfigError(f"--run takes the run's own {what}; leave {flag} out, or --run")


@dataclass(frozen=True, slots=True)
class Measured:
    """An evaluation and the name of the harness that it is of."""

    harness: str
    evaluation: Evaluation


def evaluate_pair(flags: EvaluateFlags) -> Measured:
    """Evaluates the final pair of a run, or a pair of one's own: what ``python -m optimizers.evaluate`` does.

    Raises:
        whale_env.WhaleError: Something is to be put right; the message says what.
    """
    from harness_sdk.loader import load, load_source
    from optimizers.run.backend import opened, resolved
    from whale_env.registry import arguments_from, handle
    from whale_env.slices import task_slice

    require_bounds(flags, "--")
    checked_backend(flags.backend)
    pair, size = _pair(flags), flags.evaluation
    env = handle(flags.env, arguments_from(flags.env_args))
    spec = env.prototype.domain.spec
    if pair.source:
        harness = load_source(pair.source, env=spec.name, allow_uncaged=flags.allow_uncaged)
    else:
        harness = load(pair.harness or spec.baseline, env=spec.name)
    tasks = task_slice(env.tasks(flags.split), size.tasks, flags.seed)
    if not tasks:
        raise ConfigError(f"{flags.env} has no task in its {flags.split} split; choose another with --split")
    done = 0

    def progress(trajectory: Trajectory) -> None:
        nonlocal done
        done += 1
        if sys.stderr.isatty():
            print(f"\r{done}/{len(tasks) * size.k} rollouts", end="", file=sys.stderr)

    with opened(flags.backend, resolved(flags.backend, flags.model)) as policy:
        if pair.weights is not None:
            from safetensors.torch import load_file

            policy.load_weights(load_file(pair.weights), 1)
        config = flags.agent.rollouts(flags.seed, "evaluate")
        row, played = wait_for(evaluate(env, harness, policy, tasks, size.k, config, progress))
    if trouble := warning(played.trajectories):
        print(f"warning: {trouble}", file=sys.stderr)
    return Measured(harness.name, row)


def parse_flags(arguments: list[str]) -> EvaluateFlags:
    """Parses a command line; with ``--run`` the run's own settings are the defaults."""
    run = peek(arguments, "--run", "")
    if run:
        _refuse_what_a_run_decides(arguments)
    return parse(EvaluateFlags, "optimizers.evaluate", EXAMPLES, _defaults(Path(run) if run else None), arguments)


def show(flags: EvaluateFlags) -> None:
    """Prints an evaluation as JSON, with what it is of."""
    from whale_env.registry import arguments_from

    done = evaluate_pair(flags)
    about = {"env": flags.env, "env_args": arguments_from(flags.env_args), "harness": done.harness}
    agent = {**asdict(flags.agent.sampling), **asdict(flags.agent.limits)}
    print(json.dumps({**about, "model": flags.model, "agent": agent, **done.evaluation.to_json()}, indent=2))


def main() -> None:
    """``python -m optimizers.evaluate``."""
    with one_line_errors():
        show(parse_flags(sys.argv[1:]))
