"""One process a run directory: a lock that the system lets go when its process ends, however it ends."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from optimizers.record.rundir import LOCK, RunDirError
from whale_env.forks import after_fork

_held: set[int] = set()


def _let_go() -> None:
    """Closes the locks in a forked process: it may outlive the run, which alone holds them."""
    for descriptor in _held:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _held.clear()


after_fork(_let_go)


@contextlib.contextmanager
def only_process(path: Path) -> Iterator[None]:
    """Keeps every other process out of a run directory; where no run came to be, nothing is left behind.

    Where a system has no advisory locks (Windows) nothing is kept out.

    Args:
        path: The directory; it is made where it is missing.

    Raises:
        RunDirError: Another process works in it, or it cannot be written.
    """
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    file = path / LOCK
    try:
        path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
    except OSError as error:
        raise RunDirError(f"cannot write to {path}: {error.strerror}") from error
    try:
        _lock(descriptor, path)
        _held.add(descriptor)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        yield
    finally:
        if descriptor in _held:
            _held.discard(descriptor)
            if not (path / "config.json").is_file():
                file.unlink(missing_ok=True)
        os.close(descriptor)
        for folder in made:
            with contextlib.suppress(OSError):
                folder.rmdir()


def _lock(descriptor: int, path: Path) -> None:
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip()
        who = f"process {holder}" if holder else "another process"
        raise RunDirError(f"{path} is in use by {who}; wait until it ends, or give another --out") from None
    except OSError as error:
        raise RunDirError(f"cannot lock {path / LOCK}: {error.strerror}; give an --out on another disk") from error
