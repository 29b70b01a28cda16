"""Whether tasks are the same in every instance and in every process."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator

from gymnasium import registry

from whale_env.core import EnvHandle
from whale_env.types import SPLITS, Json, canonical_json

REOPENED = 20
"""Tasks of a split whose first observations are compared between instances."""

SAME = "use no set order, no clock and no unseeded draw"
_CHILD = "WHALE_CONTRACT_CHILD"
_FRESH = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from whale_env.registry import handle
from whale_env.testing.listing import list_tasks
listing = list_tasks(handle(sys.argv[2], json.loads(sys.argv[3])))
print()
print(json.dumps(listing))
"""

Listing = dict[str, list[list[str]]]
"""Split → for each task its id, and digests of the whole task and of its first observation (some tasks only)."""


def list_tasks(env: EnvHandle) -> Listing:
    """Returns the listing of an environment."""
    listing: Listing = {}
    for split in SPLITS:
        tasks = env.tasks(split)
        opened = [_digest(env.open(task, 0)[1].to_json()) for task in tasks[:REOPENED]]
        opened += [""] * (len(tasks) - len(opened))
        listing[split] = [[task.id, _digest(task.to_json()), first] for task, first in zip(tasks, opened, strict=True)]
    return listing


def _digest(value: Json) -> str:
    try:
        text = canonical_json(value)
    except (TypeError, ValueError):  # no JSON: other rules say so
        return ""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def differences(here: Listing, there: Listing, where: str) -> Iterator[str]:
    """Says how two listings of one environment differ."""
    for split in SPLITS:
        if [row[0] for row in here[split]] != [row[0] for row in there[split]]:
            yield f"{where} {split!r} has other tasks, or another order: {SAME}"
            continue
        for (task_id, data, first), (_, other_data, other_first) in zip(here[split], there[split], strict=True):
            if data != other_data:
                yield f"{where} task {task_id!r} has other data: {SAME}"
            if first != other_first:
                yield f"{where} task {task_id!r} begins otherwise with the same seed: {SAME}"


def list_in_fresh_process(env: EnvHandle) -> Listing | None:
    """Returns the listing that a new interpreter with other hashes makes, or None where it does not know the name."""
    spec = registry.get(env.name)
    if _CHILD in os.environ or (":" not in env.name and not (spec and isinstance(spec.entry_point, str))):
        return None  # a module that checks itself when it is imported would start interpreters for ever
    hashes = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    try:
        done = subprocess.run(
            [sys.executable, "-c", _FRESH, json.dumps(sys.path), env.name, json.dumps(dict(env.kwargs))],
            env={**os.environ, "PYTHONHASHSEED": hashes, _CHILD: "1"},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        listing: Listing = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, OSError, TypeError, ValueError):
        return None
    return listing
