"""The command ``python -m optimizers.evaluate``: a pair of a run, or a pair of one's own, on any split."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from harness_sdk.trajectory import Trajectory
from optimizers.commands.cli import one_line_errors, parse
from optimizers.config import AgentConfig, BackendConfig, EvaluationConfig, RunConfig, baseline, checked
from optimizers.run.evaluation import evaluate, rollouts, warning
from whale_env.types import Split


@dataclass(frozen=True)
class EvaluateFlags:
    """What to evaluate: the final pair of a run, or a pair of your own."""

    run: Path | None = None
    """A run directory: its final weights and harness, its environment, model, backend and limits."""
    env: str | None = None
    """Environment (default: chess; not with --run)."""
    env_args: str | None = None
    """Keyword arguments of the environment, as JSON (default: {}, all that it has, not the easy tasks of the presets
    smoke and laptop; not with --run)."""
    harness: str = ""
    """module:Class or file.py:Class. Empty takes the run's final harness, or the domain's h0."""
    model: str | None = None
    """A local directory, smollm2-135m, or a hub name (default: smollm2-135m; not with --run)."""
    split: Split = "test"
    """Which split."""
    tasks: int = 128
    """Tasks; 0 takes all."""
    k: int = 8
    """Rollouts per task."""
    seed: int = 0
    """Seed of the rollouts."""
    temperature: float | None = None
    """Sampling temperature (default: the run's, else 1.0)."""
    top_k: int | None = None
    """Keep the k likeliest tokens; 0 keeps all (default: the run's, else 20)."""
    max_turns: int | None = None
    """Model calls in an episode (default: the run's, else 32; the presets smoke and laptop have 2 or 3)."""
    max_tokens: int | None = None
    """Sampled tokens in an episode (default: the run's, else 8192; the presets smoke and laptop have 64 to 256)."""
    backend: BackendConfig = field(default_factory=BackendConfig)
    """What the model samples with (without --run)."""
    allow_uncaged: bool = False
    """Run a proposed harness without a cage where the kernel offers none."""


@dataclass(frozen=True)
class _Pair:
    """What flags come to: ``source`` is the source of a harness that a run found, ``weights`` a file, if any."""

    env: str
    env_args: str
    model: str
    agent: AgentConfig
    backend: BackendConfig
    harness: str
    source: str = ""
    weights: Path | None = None


def _pair(flags: EvaluateFlags) -> _Pair:
    run = flags.run
    if run is None:
        return _Pair(
            env="chess" if flags.env is None else flags.env,
            env_args="{}" if flags.env_args is None else flags.env_args,
            model="smollm2-135m" if flags.model is None else flags.model,
            agent=AgentConfig(),
            backend=flags.backend,
            harness=flags.harness,
        )
    for name, what in (("env", "environment"), ("env_args", "environment"), ("model", "model")):
        if getattr(flags, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(f"--run takes the run's own {what}; leave {flag} out, or --run")
    if flags.backend != BackendConfig():
        raise ValueError("--run takes the run's own backend; leave the --backend flags out, or --run")
    try:
        config = json.loads((run / "config.json").read_text("utf-8"))
        result = json.loads((run / "result.json").read_text("utf-8"))
        source = (run / "harnesses" / result["harness"] / "harness.py").read_text("utf-8")
    except OSError as error:
        raise ValueError(f"{run} holds no finished run: {error.strerror} ({error.filename})") from None
    harness, version = flags.harness, result["weights_version"]
    if not harness and result["harness"] == result["base"]["harness"]:
        harness, source = config["harness"], ""
    return _Pair(
        env=config["env"],
        env_args=config["env_args"],
        model=config["model"],
        agent=AgentConfig(**config["agent"]),
        backend=BackendConfig(**config["backend"]),
        harness=harness,
        source=source,
        weights=run / "checkpoints" / f"step-{version:06d}" / "model.safetensors" if version else None,
    )


def _checked(flags: EvaluateFlags, agent: AgentConfig, backend: BackendConfig) -> None:
    """Holds flags to the bounds of a run's configuration, under their names here."""
    size = EvaluationConfig(tasks=flags.tasks, k=flags.k)
    try:
        checked(RunConfig(method="harness-only", evaluation=size, agent=agent, backend=backend))
    except ValueError as error:
        raise ValueError(re.sub(r"^--(evaluation|agent)\.", "--", str(error))) from None


def _evaluate_command(flags: EvaluateFlags) -> None:
    from harness_sdk.loader import load, load_source
    from optimizers.run.backend import opened, resolved
    from whale_env.registry import arguments_from, handle

    pair = _pair(flags)
    given = {name: getattr(flags, name) for name in ("temperature", "top_k", "max_turns", "max_tokens")}
    agent = replace(pair.agent, **{name: value for name, value in given.items() if value is not None})
    _checked(flags, agent, pair.backend)
    env_args = arguments_from(pair.env_args)
    env = handle(pair.env, env_args)
    name = env.prototype.domain.spec.name
    if pair.harness or not pair.source:
        harness = load(pair.harness or baseline(name), env=name)
    else:
        harness = load_source(pair.source, env=name, allow_uncaged=flags.allow_uncaged)
    tasks = env.tasks(flags.split)[: flags.tasks or None]
    if not tasks:
        raise ValueError(f"{pair.env} has no task in its {flags.split} split; choose another with --split")
    done = 0

    def progress(trajectory: Trajectory) -> None:
        nonlocal done
        done += 1
        if sys.stderr.isatty():
            print(f"\r{done}/{len(tasks) * flags.k} rollouts", end="", file=sys.stderr)

    with opened(pair.backend, resolved(pair.backend, pair.model)) as policy:
        if pair.weights is not None:
            from safetensors.torch import load_file

            policy.load_weights(load_file(pair.weights), 1)
        config = rollouts(agent, flags.seed, "evaluate")
        row, trajectories = asyncio.run(evaluate(env, harness, policy, tasks, flags.k, config, progress))
    if trouble := warning(trajectories):
        print(f"warning: {trouble}", file=sys.stderr)
    about = {"env": pair.env, "env_args": env_args, "harness": harness.name, "model": pair.model}
    print(json.dumps({**about, "agent": asdict(agent), **row.to_json()}, indent=2))


def main() -> None:
    """``python -m optimizers.evaluate``."""
    with one_line_errors():
        flags = parse(
            EvaluateFlags,
            "optimizers.evaluate",
            "examples:\n"
            "  python -m optimizers.evaluate --run runs/mine --tasks 128\n"
            "  python -m optimizers.evaluate --env chess --harness reference_harnesses.chess:ChessStrong --k 4\n"
            "\n"
            "Without --run nothing is taken from a preset: all tasks of the environment, and long episodes. The JSON\n"
            "that is printed names the env_args and the agent's limits that were used.\n",
        )
        _evaluate_command(flags)
