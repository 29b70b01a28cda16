"""Starting and resuming a run: what is checked before anything is written, and what is opened around it."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from harness_sdk import models
from harness_sdk.loader import LoadedHarness, load
from harness_sdk.sandbox import confinement
from harness_sdk.sync import wait_for
from optimizers.config import ConfigError, RunConfig, checked
from optimizers.proposers.build import build
from optimizers.proposers.fst import FSTProposer
from optimizers.proposers.offline.proposer import OfflineProposer
from optimizers.proposers.offline.rewordings import PromptProposer
from optimizers.proposers.protocol import Proposer
from optimizers.record.inputs import file_digests, require_same, task_digests
from optimizers.record.lock import only_process
from optimizers.record.rundir import RunDir, RunDirError
from optimizers.run import backend
from optimizers.run.display import Display
from optimizers.run.outcomes import Result
from optimizers.run.plan import kinds, planned, require_tasks, too_short
from optimizers.run.whale import Parts, Run
from optimizers.weights.build import build as build_update
from optimizers.weights.build import update_class
from whale_env.core import EnvHandle
from whale_env.registry import arguments_from, handle


def optimise(config: RunConfig, out: str | Path | None = None, *, resume: bool = False) -> Result:
    """Optimises a pair of weights and harness: what ``python -m optimizers.whale`` does, also from a notebook.

    Args:
        config: What to do; `optimizers.preset` gives one to begin with.
        out: The run directory; None makes one below ``runs``.
        resume: Whether to go on with what is there.

    Returns:
        The result; the run directory has it too, with the harnesses and the final weights.

    Raises:
        whale_env.WhaleError: Something is to be put right; the message says what.
    """
    config = checked(config)
    env = handle(config.env, arguments_from(config.env_args))
    return start(config, env, Path(out) if out else default_out(config), resume=resume)


def default_out(config: RunConfig) -> Path:
    """Returns where a run is kept that was given no place."""
    env = re.sub(r"[^A-Za-z0-9]+", "-", config.env).strip("-")
    return Path("runs") / f"{env}-{config.method}-s{config.seed}-{time.strftime('%Y%m%d-%H%M%S')}"


def start(config: RunConfig, env: EnvHandle, out: Path, *, resume: bool) -> Result:
    """Runs or resumes a configuration.

    A new run that fails before it finished a unit of work leaves no directory behind.

    Args:
        config: What to do.
        env: The environment, all splits.
        out: The run directory.
        resume: Whether to go on with what is there.

    Returns:
        The result.

    Raises:
        ConfigError: The environment, the model or the machine is not fit for it; the message says what to change.
        RunDirError: The directory cannot be used.
    """
    h0, proposer = fit(config, env)
    source = backend.resolved(config.backend, config.model)
    with only_process(out):
        run = RunDir.open(out, asdict(config), resume=resume)
        if resume and (out / "result.json").is_file():
            return Result.from_json(json.loads((out / "result.json").read_text("utf-8")))
        try:
            require_same(run, _inputs(config, env, h0, source))
            return _played(config, env, run, h0, proposer, source)
        except BaseException:
            if set(run.done()) <= {"backend"}:
                run.discard()
            raise


def fit(config: RunConfig, env: EnvHandle) -> tuple[LoadedHarness, Proposer]:
    """Checks that a run can begin, as far as that is known without its model; downloads and writes nothing.

    Args:
        config: What to do.
        env: The environment, all splits.

    Returns:
        The starting harness, and who proposes others.

    Raises:
        ConfigError: As `start`.
        harness_sdk.loader.HarnessLoadError: There is no such harness.
        harness_sdk.models.ModelNotFoundError: There is no such model.
    """
    searches = "harness" in kinds(config)
    if searches and not confinement().available and not config.search.allow_uncaged:
        raise ConfigError(
            f"proposed harnesses cannot be caged here: {confinement().why}. "
            "Give --search.allow-uncaged to run them all the same; the run's record will say so"
        )
    require_tasks(config, env)
    if "weights" in kinds(config):
        update_class(config.weights)
    spec = env.prototype.domain.spec
    h0 = load(config.harness or spec.baseline, env=spec.name)
    if config.model not in models.BUILT_IN:  # those may have to be downloaded
        backend.resolved(config.backend, config.model)
    return h0, _proposer(config, h0, env) if searches else OfflineProposer()


def require_writable(out: Path) -> None:
    """Checks that a run directory could be made, without making it.

    Raises:
        RunDirError: It could not.
    """
    there = next(folder for folder in (out, *out.absolute().parents) if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise RunDirError(f"cannot write to {out}: {there} is {'not writable' if there.is_dir() else 'no folder'}")


def _inputs(config: RunConfig, env: EnvHandle, h0: LoadedHarness, source: str) -> dict[str, str]:
    """Returns digests of what would make a run another one if it changed on the way."""
    module = type(env.prototype.domain).__module__
    files = _given(config) if module.startswith("whale_env.") else [*_given(config), *_source(env)]
    return {
        f"the starting harness {config.harness or h0.name}": h0.id,
        **task_digests(env),
        **file_digests(files, "the file"),
        **file_digests([Path(source)] if Path(source).is_dir() else [], "the model"),
    }


def _played(
    config: RunConfig, env: EnvHandle, run: RunDir, h0: LoadedHarness, proposer: Proposer, source: str
) -> Result:
    if "backend" not in run.done():
        run.finish("backend", {"dtype": backend.dtype(config.backend, source)}, 0.0)
    kept = replace(config.backend, dtype=run.result("backend")["dtype"])
    total = sum(count for _, count in planned(config, env))
    with backend.opened(kept, source) as policy, Display(total) as display:
        if note := too_short(config, env, h0):
            display.line(f"note: {note}")
        update = None
        if "weights" in kinds(config):
            backend.require_token_ids(policy)
            update = build_update(config.weights, _trained(config.model, backend.training_device(kept)))
        return wait_for(Run(config, run, env, Parts(h0, proposer, policy, update), display).play())


def _trained(model: str, device: str) -> Any:
    """Loads the model that is trained: master weights in float32."""
    import torch

    from harness_sdk.policies.loading import load as load_model

    return load_model(models.resolve(model), torch.float32).to(device)


def _proposer(config: RunConfig, h0: LoadedHarness, env: EnvHandle) -> Proposer:
    """Returns the proposer that the configuration asks for; prompt-only search is a property of the method."""
    if config.method == "fst" and config.search.proposer.kind == "offline":
        return PromptProposer(h0.source)
    proposer = build(config.search.proposer, hidden=_answers(config, env), allow_uncaged=config.search.allow_uncaged)
    return FSTProposer(proposer, h0.source) if config.method == "fst" else proposer


def _answers(config: RunConfig, env: EnvHandle) -> list[Path]:
    """Returns what a proposer must not read: the files that the environment was given, and its own source."""
    return [*_given(config), *_source(env)]


def _given(config: RunConfig) -> list[Path]:
    """Returns the files and folders that the environment was given."""
    said = list(_texts(json.loads(config.env_args)))
    files = [os.path.expanduser(part) for text in said for part in (text, text.partition(":")[2]) if part]
    return [Path(file) for file in files if os.path.exists(file)]


def _source(env: EnvHandle) -> list[Path]:
    """Returns the file that defines the domain."""
    file = getattr(sys.modules.get(type(env.prototype.domain).__module__), "__file__", None)
    return [Path(file)] if file and os.path.exists(file) else []


def _texts(data: Any) -> Iterator[str]:
    """Yields all strings of JSON data."""
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict | list):
        for part in data.values() if isinstance(data, dict) else data:
            yield from _texts(part)
