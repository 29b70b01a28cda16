"""The command ``python -m optimizers.report``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from optimizers.commands.cli import one_line_errors, parse
from optimizers.report.page import write_report


@dataclass(frozen=True)
class ReportFlags:
    """Writes report.html into a run directory."""

    run: Annotated[Path, tyro.conf.Positional]
    """The run directory; the run may be unfinished."""


def main() -> None:
    """``python -m optimizers.report``."""
    flags = parse(ReportFlags, "optimizers.report", "examples:\n  python -m optimizers.report runs/mine\n")
    with one_line_errors():
        print(write_report(flags.run))
