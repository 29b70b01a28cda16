"""`task_slice`: so many of a split's tasks, seeded and in proportion to where they come from.

A split may stand in the order of difficulty or of its files, so its first tasks would not speak for it. Whoever uses
only some tasks takes them from here: training, harness search and evaluation alike.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TypeVar

from whale_env.types import Task

T = TypeVar("T")


def task_slice(tasks: Sequence[Task], count: int, seed: int) -> Sequence[Task]:
    """Returns so many tasks of a split.

    The same for all methods of a seed. A larger slice begins with the smaller one.

    Args:
        tasks: All of the split.
        count: How many; 0, and as many as there are or more, gives all in their own order.
        seed: The run's seed.
    """
    if not 0 < count < len(tasks):
        return tasks
    return drawn(tasks, count, seed, lambda task: task.id, lambda task: task.source)


def drawn(
    items: Sequence[T], count: int, seed: int, key: Callable[[T], str], source: Callable[[T], str]
) -> Sequence[T]:
    """Draws without replacement, stratified by source: Webster's method, by which each source comes as soon as due.

    Args:
        items: What to draw from, in any order: the draw depends on keys and the seed alone.
        count: How many at most.
        seed: Seed of the draw.
        key: Says what an item is, unlike every other.
        source: Says where an item comes from.
    """
    strata: dict[str, list[tuple[str, T]]] = defaultdict(list)
    for item in items:
        strata[source(item)].append((hashlib.sha256(f"{seed}:{key(item)}".encode()).hexdigest(), item))
    due: list[tuple[float, str, T]] = []
    for stratum in strata.values():
        stratum.sort(key=lambda pair: pair[0])
        due += [((rank + 0.5) / len(stratum), lot, item) for rank, (lot, item) in enumerate(stratum)]
    due.sort(key=lambda entry: entry[:2])
    return [item for _, _, item in due[:count]]
