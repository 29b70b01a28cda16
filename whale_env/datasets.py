"""`load`: the public tasks of a data set in any layout that a domain reads.

Lichess CSV for chess, Parquet, JSON lines, JSON and hub names for the others. Returns public tasks only: answers stay
in the environment, which takes the same data set as ``make(domain, source=…)`` and knows the tasks by the same ids.
"""

from __future__ import annotations

from pathlib import Path

from whale_env.registry import declared, handle
from whale_env.types import SPLITS, Json, Task


def load(path_or_name: str | Path, domain: str, **filters: Json) -> tuple[Task, ...]:
    """Loads a data set's tasks.

    Args:
        path_or_name: A file, a directory, or a name on the hub (``"gsm8k"``, ``"owner/name:configuration@split"``).
        domain: An environment's name (``"math"``).
        **filters: Further arguments of the environment (``tiers``, ``limit``, …).

    Returns:
        All tasks: those of ``train``, ``search``, then ``test``; each task says its split.

    Raises:
        whale_env.registry.UnknownEnvError: No such domain; the message suggests the nearest.
        InputError: The data set cannot be read, or a row of it makes no sense.
    """
    env = handle(domain, {**declared(domain).listing, **filters, "source": str(path_or_name)})
    return tuple(task for split in SPLITS for task in env.tasks(split))
