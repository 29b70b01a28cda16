"""How OpenMP's threads wait for each other: a short spin, so that two busy processes do not stop one another.

libgomp, which PyTorch computes with on Linux, lets a thread that waits at a barrier spin for a long while before it
sleeps. With another busy process on the same cores the thread that everybody waits for is not running, and the others
burn the time it needs: a decoding step then takes up to sixty times as long. A spin of a thousand rounds costs little
on a calm machine and ends this (``python -m benchmarks.neighbours`` measures both). libgomp reads its settings once,
when PyTorch is loaded, so importing this project first is enough; one that was set by the user stays.
"""

from __future__ import annotations

import os
import sys

SPIN = "1000"
"""Rounds that a waiting thread spins."""

SETTINGS = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
"""Environment variables by which a user decides otherwise."""


def wait_briefly() -> bool:
    """Sets libgomp's spin count for this process and those that it starts, unless the user has set how threads wait.

    Returns:
        Whether it took effect here: False where the user's setting stands, or PyTorch was loaded before.
    """
    if any(name in os.environ for name in SETTINGS):
        return False
    os.environ["GOMP_SPINCOUNT"] = SPIN
    return "torch" not in sys.modules
