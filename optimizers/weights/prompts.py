"""Which tasks a weight step rolls out: one endless stream of seeded permutations of the train split."""

from __future__ import annotations

import random
from collections.abc import Sequence

from harness_sdk.randomness import derive_seed
from whale_env.types import Task


def epoch_steps(tasks: int, prompts: int) -> int:
    """Returns the steps of one epoch: as many full batches as come nearest to all tasks, at least one."""
    return max(1, round(tasks / min(prompts, tasks)))


class PromptSampler:
    """Cuts an endless stream of seeded permutations into full batches, across phases and cycles.

    A pure function of the step: no task comes twice within a permutation, nor within a batch, and a resumed run needs
    no state.
    """

    def __init__(self, tasks: Sequence[Task], size: int, seed: int) -> None:
        """Prepares the stream.

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
        self._orders: list[list[Task]] = []

    @property
    def steps_per_epoch(self) -> int:
        """Batches in one epoch."""
        return epoch_steps(len(self._tasks), self._size)

    def batch(self, step: int) -> list[Task]:
        """Returns the tasks of a step, counted from 0."""
        epoch, begin = divmod(step * self._size, len(self._tasks))
        batch = self._order(epoch)[begin : begin + self._size]
        return batch + self._order(epoch + 1)[: self._size - len(batch)]

    def _order(self, epoch: int) -> list[Task]:
        """Returns a permutation. Where it completes a batch that the last one began, it brings none of its tasks."""
        while len(self._orders) <= epoch:
            number, count = len(self._orders), len(self._tasks)
            order = list(self._tasks)
            random.Random(derive_seed(self._seed, "prompts", number)).shuffle(order)
            if begun := number * count % self._size:
                had = {task.id for task in self._orders[-1][-begun:]}
                first = {task.id for task in [t for t in order if t.id not in had][: self._size - begun]}
                order.sort(key=lambda task: task.id not in first)  # stable: the rest stays as it was drawn
            self._orders.append(order)
        return self._orders[epoch]
