"""Optimisers over (weights, harness) pairs: RSFT, Meta-Harness, and WHALE, which alternates the two.

From Python::

    from optimizers import optimise, preset

    result = optimise(preset("smoke", "chess"), out="runs/mine")
    print(result.base, result.final, result.harness)

The same as commands: ``python -m optimizers.whale``, ``rsft``, ``meta_harness``, ``evaluate``. Nothing below is
imported before it is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optimizers.commands.evaluate import EvaluateFlags, evaluate_pair
    from optimizers.config import RunConfig, preset
    from optimizers.run.outcomes import Result
    from optimizers.run.start import optimise

__all__ = ["EvaluateFlags", "Result", "RunConfig", "evaluate_pair", "optimise", "preset"]

_HOMES = {
    "EvaluateFlags": "optimizers.commands.evaluate",
    "Result": "optimizers.run.outcomes",
    "RunConfig": "optimizers.config",
    "evaluate_pair": "optimizers.commands.evaluate",
    "optimise": "optimizers.run.start",
    "preset": "optimizers.config",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
