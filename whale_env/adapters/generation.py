"""Generates the questions of a reasoning-gym data set, in a process whose hashes are fixed.

Some data sets draw from the order of a set of texts, which differs from process to process; a task must not. The
process reads ``[name, settings]`` as JSON and writes the rows, or one line that says what is wrong. It sees nothing
that a model wrote, so what it writes is believed.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from whale_env.errors import InputError, MissingPackageError
from whale_env.wording import did_you_mean

NONSENSE = "qzxv wkjp"
PROBED = 24
"""Questions whose scorer is tried on `NONSENSE` before a data set is believed to be a verifier."""

SECONDS = 600.0


def generated(name: str, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns a data set's entries: question, answer, metadata.

    Args:
        name: The data set.
        settings: Its configuration, ``seed`` and ``size`` included.

    Raises:
        MissingPackageError: Reasoning-gym is not installed.
        InputError: No such data set, a setting that it refuses, or a scorer that credits nonsense.
    """
    if find_spec("reasoning_gym") is None:
        raise MissingPackageError("reasoning-gym is not installed: pip install -e '.[reasoning]'")
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(
            [sys.executable, "-c", "from whale_env.adapters.generation import main; main()"],
            input=json.dumps([name, dict(settings)]).encode(),
            capture_output=True,
            env=environment,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"{name} takes more than {SECONDS:.0f} s to generate: give a smaller size") from None
    if done.returncode:
        last = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        raise InputError(f"{name} cannot be generated: {last[0] if last else f'exit code {done.returncode}'}")
    rows, problem = pickle.loads(done.stdout)
    if problem:
        raise InputError(problem)
    return list(rows)


def main() -> None:
    """Answers one request on the standard streams."""
    replies, sys.stdout = sys.stdout.buffer, sys.stderr  # generators may print
    name, settings = json.load(sys.stdin)
    try:
        reply: tuple[list[Any], str] = (_rows(name, settings), "")
    except ValueError as error:
        reply = ([], str(error))
    replies.write(pickle.dumps(reply))
    replies.flush()


def _rows(name: str, settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    library = import_module("reasoning_gym.factory")
    known = sorted(set(library.DATASETS) - {"composite"})
    if name not in known:
        hint = did_you_mean(name, known)
        raise InputError(f"reasoning-gym has no data set {name!r:.80} for use here.{hint} Known: {', '.join(known)}")
    fields = [field.name for field in dataclasses.fields(library.DATASETS[name][1])]
    for key in settings:
        if key not in fields:
            raise InputError(
                f"{name} has no setting {key!r:.80}.{did_you_mean(key, fields)} Known: {', '.join(fields)}"
            )
    try:
        data = library.create_dataset(name, **settings)
        rows = [data[place] for place in range(len(data))]
    except Exception as error:  # a data set's own checks are assertions, and what slips through fails as it may
        raise InputError(f"{name} cannot be generated with {settings}: {type(error).__name__}: {error}") from error
    if any(_credited(data, row) for row in rows[:PROBED]):
        raise InputError(f"{name} cannot be used: its scorer gives credit to {NONSENSE!r}, so it verifies nothing")
    return rows


def _credited(data: Any, row: Mapping[str, Any]) -> bool:
    try:
        value = float(data.score_answer(NONSENSE, row))
    except Exception:  # several scorers raise on text that they cannot read
        return False
    return math.isfinite(value) and value >= 0.5
