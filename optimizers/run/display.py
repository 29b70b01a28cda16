"""Live progress on a terminal, one plain line per event elsewhere, and the closing table.

Whoever reads it may leave (``| head``): that loses lines, never a run.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO, cast

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from harness_sdk.trajectory import Trajectory

if TYPE_CHECKING:  # a command's help and errors need not wait for it
    from optimizers.run.outcomes import Result


WIDE = 120
"""Columns of a terminal that has room for a bar."""


class _Stream:
    """A text stream that drops what is written once nobody reads it any more, or ends the process then."""

    def __init__(self, stream: TextIO, status: int | None) -> None:
        self._stream, self._status = stream, status

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._drop()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._drop()

    def _drop(self) -> None:
        # What the stream still holds goes the same way; else the interpreter would complain at its end.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)
        if self._status is not None:
            raise SystemExit(self._status)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def outliving_readers(status: int | None = None) -> Iterator[None]:
    """Lets what runs within go on without output when the reader of standard output or error is gone.

    Args:
        status: End the process with it instead, as quietly.
    """
    out, err = cast(TextIO, _Stream(sys.stdout, status)), cast(TextIO, _Stream(sys.stderr, status))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            yield
        finally:
            out.flush()
            err.flush()


class _Left(ProgressColumn):
    """The time that is left, by what a rollout took in the units that are finished, their training included.

    Rollouts come in bursts, and none comes while weights are trained: their own speed tells little.
    """

    def render(self, task: Task) -> Text:
        pace = task.fields["pace"]
        if pace is None:
            return Text("")
        seconds = int(max(pace * (task.remaining or 0), 0))
        return Text(f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d} left")


class Display:
    """What a user sees of a run. Writes to standard error; the closing table goes to standard output."""

    def __init__(self, total: int, console: Console | None = None) -> None:
        """Prepares.

        Args:
            total: Rollouts that the whole run will take, as far as is known.
            console: Where to draw.
        """
        self._console = console or Console(stderr=True)
        self._began = time.monotonic()
        self._live = self._console.is_terminal
        self._phase = ""
        self._done = self._tokens = 0
        self._seconds = time.monotonic()
        self._progress = Progress(
            TextColumn("{task.fields[phase]}"),
            *([BarColumn()] if self._console.width >= WIDE else []),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.fields[rate]}"),
            TextColumn("reward {task.fields[reward]}"),
            TimeElapsedColumn(),
            _Left(),
            console=self._console,
            disable=not self._live,
        )
        self._output = contextlib.ExitStack()
        self._task: TaskID = self._progress.add_task(
            "run", total=total, phase="", rate="", reward="-", skipped=0, pace=None
        )

    def __enter__(self) -> Display:
        self._output.enter_context(outliving_readers())
        self._output.enter_context(self._progress)
        return self

    def __exit__(self, *_: object) -> None:
        self._output.close()

    def unit(self, phase: str) -> None:
        """Begins a unit of work; what came before is finished."""
        task = self._progress.tasks[0]
        if (played := task.completed - task.fields["skipped"]) > 0:
            self._progress.update(self._task, pace=(task.elapsed or 0.0) / played)
        self._phase = phase
        self._done = self._tokens = 0
        self._rewards = 0.0
        self._seconds = time.monotonic()
        self._progress.update(self._task, phase=phase)

    def rollout(self, trajectory: Trajectory) -> None:
        """Counts a finished rollout."""
        self._done += 1
        self._tokens += trajectory.tokens + trajectory.prompt_tokens
        self._rewards += trajectory.reward or 0.0
        rate = self._tokens / max(time.monotonic() - self._seconds, 1e-3)
        self._progress.update(
            self._task, advance=1, rate=f"{rate:.0f} tok/s", reward=f"{self._rewards / self._done:.3f}"
        )

    def skip(self, rollouts: int) -> None:
        """Counts rollouts that a resumed run has behind it."""
        skipped = self._progress.tasks[0].fields["skipped"] + rollouts
        self._progress.update(self._task, advance=rollouts, skipped=skipped)

    def line(self, text: str) -> None:
        """Prints one line."""
        minutes, seconds = divmod(int(time.monotonic() - self._began), 60)
        self._console.print(f"[{minutes:02d}:{seconds:02d}] {text}", markup=False, highlight=False, soft_wrap=True)


def print_result(result: Result, path: str, follow_up: Sequence[str]) -> None:
    """Prints the closing table, the run's path and what to do next."""
    table = Table(title=f"{result.env} · {result.method} · seed {result.seed}", title_justify="left")
    for name in (
        "pair",
        "mean@k",
        "95 % interval",
        "floor",
        "copied",
        "unknown",
        "format",
        "legality",
        "rollouts",
        "seconds",
    ):
        table.add_column(name, justify="left" if name == "pair" else "right")
    rows = [(row.phase, row) for row in (result.base, *result.phases)]
    rows += [("final", result.final), ("selected on search", result.selected)]
    for name, row in rows:
        legality = "-" if row.legality is None else f"{row.legality:.1%}"
        table.add_row(
            name,
            f"{row.mean:.1%}",
            f"{row.low:.1%} to {row.high:.1%}",
            "-" if row.floor is None else f"{row.floor:.1%}",
            "-" if row.copied is None else f"{row.copied:.1%}",
            str(row.unknown),
            f"{row.format:.1%}",
            legality,
            str(row.rollouts),
            f"{row.seconds:.0f}",
        )
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 120)
    console.print(table)
    k, tasks, gain = result.base.k, result.base.tasks, result.gain
    console.print(
        f"final against base on the same tasks: {gain.gain:+.1%}, p = {gain.p:.2g} (exact paired sign-flip test)",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    console.print(
        f"mean@{k} over {tasks} test tasks; {result.seconds:.0f} s of work. Run directory: {path}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    for command in follow_up:
        console.print(f"  {command}", markup=False, highlight=False, soft_wrap=True)
