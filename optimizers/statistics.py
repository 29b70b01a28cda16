"""Exact tests on whole numbers: one p-value for one comparison, and what many of them are worth together.

Pure functions of numbers. What is compared, harnesses on common rollouts, is `optimizers.search.comparison`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np


def sign_flip(differences: Sequence[int]) -> float:
    """Returns the exact one-sided p-value of the sign-flip test: is the sum of differences larger than chance makes it?

    If nothing but chance tells the two sides apart, each difference is as likely to have the other sign. The p-value is
    the share of all sign patterns whose sum is at least the observed one (Fisher 1935), counted by convolution. Where
    all differences are -1, 0 or 1 this is McNemar's exact test (McNemar 1947).

    Args:
        differences: One whole number per independent unit, such as a task.
    """
    counts: dict[int, int] = defaultdict(int)
    for value in differences:
        if value:
            counts[abs(value)] += 1
    span = sum(size * count for size, count in counts.items())
    chances = np.ones(1)
    for size, count in counts.items():
        flips = np.zeros(2 * size * count + 1)
        flips[:: 2 * size] = [math.comb(count, k) / 2**count for k in range(count + 1)]
        chances = np.convolve(chances, flips)
    return float(min(1.0, chances[span + sum(differences) :].sum()))


def sign_test(gained: int, lost: int) -> float:
    """Returns the exact two-sided p-value that gains and losses are equally likely: twice the smaller tail."""
    more, fewer = max(gained, lost), min(gained, lost)
    return min(1.0, 2 * sign_flip([1] * more + [-1] * fewer))


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns p-values adjusted for being many, so that the family-wise error holds (Holm 1979)."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, running = [1.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        running = max(running, min(1.0, p_values[i] * (len(p_values) - rank)))
        adjusted[i] = running
    return adjusted
