"""What a run is made of besides its settings: harness, data and model, by their content.

A run that goes on with another starting harness, other data or another model would end as two experiments in one
record. What is loaded by name from a model hub is known by its name alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import get_args

from optimizers.record.rundir import RunDir, RunDirError
from whale_env.core import EnvHandle
from whale_env.errors import InputError
from whale_env.types import Split, canonical_json

INPUTS = "inputs.json"

_BLOCK, _BLOCKS = 1 << 16, 256


def task_digests(env: EnvHandle) -> dict[str, str]:
    """Returns a digest of the tasks of each split: what a domain brings along, generates or reads shows in them."""
    found = {}
    for split in get_args(Split):
        digest = hashlib.sha256()
        for task in env.tasks(split):
            digest.update(canonical_json(task.to_json()).encode("utf-8", "backslashreplace") + b"\n")
        found[f"the {split} tasks"] = digest.hexdigest()
    return found


def file_digests(paths: Iterable[Path], what: str) -> dict[str, str]:
    """Returns a digest of each file, or of all files below a folder.

    Args:
        paths: Files and folders.
        what: What to call them in messages.

    Raises:
        InputError: One cannot be read.
    """
    try:
        return {f"{what} {path}": _digest(path) for path in paths}
    except OSError as error:
        raise InputError(f"cannot read {error.filename}: {error.strerror}") from error


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    files = sorted(item for item in path.rglob("*") if item.is_file()) if path.is_dir() else [path]
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.relative_to(path)} {size}\n".encode("utf-8", "backslashreplace"))
        with file.open("rb") as opened:
            # Blocks spread evenly are enough: other weights differ everywhere, and gigabytes need not be read.
            for start in range(0, size, max(_BLOCK, size // _BLOCKS)):
                opened.seek(start)
                digest.update(opened.read(_BLOCK))
    return digest.hexdigest()


def require_same(run: RunDir, found: Mapping[str, str]) -> None:
    """Keeps what a run begins with, or checks that a run that goes on has the same.

    Args:
        run: The run.
        found: Digests by what they are of.

    Raises:
        RunDirError: Something was changed since the run began; the message names it.
    """
    path = run.path / INPUTS
    if not path.is_file():
        run.write_json(INPUTS, dict(found))
        return
    stored = json.loads(path.read_text("utf-8"))
    changed = [name for name in {**stored, **found} if stored.get(name) != found.get(name)]
    if changed:
        more = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
        raise RunDirError(
            f"{changed[0]}{more} changed since {run.path} began; put it back to go on, or begin another run"
        )
