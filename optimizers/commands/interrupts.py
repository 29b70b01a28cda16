"""Ctrl-C in a command: silent while it still imports, `KeyboardInterrupt` once it runs, and never lost."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator


def silent() -> None:
    """Lets Ctrl-C end the process without a traceback, for a command whose imports take a while; see `caught`."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextlib.contextmanager
def caught() -> Iterator[None]:
    """Makes Ctrl-C a `KeyboardInterrupt` again after `silent`.

    Interrupts once more where it fell into a ``__del__``, which would swallow it (imports call many).
    """
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    usual = sys.unraisablehook

    def hook(lost: sys.UnraisableHookArgs) -> None:
        if lost.exc_type is KeyboardInterrupt:
            threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT)).start()  # a little later, outside of it
        else:
            usual(lost)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = usual


def enter(module: str, command: str) -> None:
    """Runs a command of ``optimizers.commands`` from its door; Ctrl-C is silent while it imports.

    Args:
        module: The module that holds the command.
        command: The function that is the command.
    """
    silent()
    getattr(importlib.import_module(f"optimizers.commands.{module}"), command)()
