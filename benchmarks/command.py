"""What the command lines of all benchmarks share: their name in the help, and a quiet end when nobody reads on."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import NoReturn

from optimizers.run.display import outliving_readers

READER_GONE = 141
"""Exit status of a command whose reader is gone: 128 and SIGPIPE's 13, as a shell gives it."""


def parser(module: str, about: str) -> argparse.ArgumentParser:
    """Returns a parser whose help shows how the benchmark is called.

    Args:
        module: What stands after ``python -m benchmarks.``.
        about: One line on what is measured.
    """
    return argparse.ArgumentParser(prog=f"python -m benchmarks.{module}", description=about)


def finish(main: Callable[[], int]) -> NoReturn:
    """Runs a benchmark and exits with its status; quietly where the reader of its output is gone (``| head``).

    Args:
        main: Runs it.

    Raises:
        SystemExit: Always.
    """
    with outliving_readers(READER_GONE):
        sys.exit(main())
