"""Which tasks a weight step rolls out: the train split in a seeded order, epoch after epoch."""

from __future__ import annotations

import random
from collections.abc import Sequence

from harness_sdk.randomness import derive_seed
from whale_env.types import Task


class PromptSampler:
    """Goes through the train split in a seeded order, epoch after epoch, across phases and cycles.

    A pure function of the step: no task comes twice within an epoch, and a resumed run needs no state.
    """

    def __init__(self, tasks: Sequence[Task], size: int, seed: int) -> None:
        """Prepares the order.

        Args:
            tasks: The train split.
            size: Tasks in a batch; at most all of them.
            seed: The run's seed.
        """
        if not tasks:
            raise ValueError("the train split is empty")
        self._tasks = list(tasks)
        self._size = min(size, len(self._tasks))
        self._seed = seed

    @property
    def steps_per_epoch(self) -> int:
        """Batches in one epoch."""
        return -(-len(self._tasks) // self._size)

    def batch(self, step: int) -> list[Task]:
        """Returns the tasks of a step; an epoch's last batch may be smaller."""
        epoch, index = divmod(step, self.steps_per_epoch)
        order = list(self._tasks)
        random.Random(derive_seed(self._seed, "prompts", epoch)).shuffle(order)
        return order[index * self._size : (index + 1) * self._size]
