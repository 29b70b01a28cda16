"""What to do after a fork, on systems that have it. Importing the packages must work on those that have none."""

from __future__ import annotations

import os
from collections.abc import Callable

CAN_FORK = hasattr(os, "fork")
"""Whether this system copies processes, as Linux and macOS do and Windows does not."""


def after_fork(reset: Callable[[], None]) -> None:
    """Has a function called in every process that will be forked from this one."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=reset)
