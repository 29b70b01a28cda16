"""`run_python`: run a program that a model wrote, and give back what it printed.

Each call is a fresh confined process with sympy and numpy imported, forked from a warm one, in an empty directory of
its own. It has no network, no other files, no threads, no processes, and no way to signal any. Programs share nothing,
whether they run one after another or at once. Not covered: state across calls, packages beyond `PACKAGES`.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import secrets
import selectors
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Literal

from whale_env.forks import after_fork
from whale_env.sandbox import kernel, spawn
from whale_env.sandbox.python_worker import OUTPUT_BYTES
from whale_env.sandbox.zygote import Setup

Status = Literal["ok", "error", "timeout", "memory", "killed"]

PACKAGES = ("numpy", "sympy", "mpmath", "gmpy2", "scipy")
"""Third-party packages that a program can import, where installed."""

MAX_SOURCE = 1_000_000
MAX_SECONDS = 86_400
MAX_FILE_BYTES = 8 << 20
MAX_FILES = 256
MAX_DISK_BYTES = 64 << 20
MAX_DRAINED = 16 << 20
CUT = f"\n[cut after {OUTPUT_BYTES} bytes]\n"
SLOTS = 4 * (os.cpu_count() or 1)
"""Programs that run at once in this process; others wait, and the wait does not count as their time."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a program did.

    Attributes:
        stdout: What it printed, and the value of its last expression; bounded, with a mark where it was cut.
        stderr: Warnings and the traceback of its own frames; bounded likewise.
        status: ``ok``; ``error`` (it raised, or exited with a status other than 0); ``timeout``; ``memory`` (it ran
            into its memory bound); ``killed`` (it died otherwise, or was stopped for flooding its output or directory).
        seconds: How long it ran, without the wait for a free slot.
    """

    stdout: str
    stderr: str
    status: Status
    seconds: float = field(default=0.0, compare=False)


def run_python(code: str, *, timeout: float = 10.0, memory_mb: int = 512, allow_uncaged: bool = False) -> Result:
    """Runs a program in a confined process of its own. Safe from any thread.

    Args:
        code: The program. The value of a last expression is shown as in a notebook.
        timeout: Seconds it may run.
        memory_mb: Mebibytes it may allocate.
        allow_uncaged: Run it under resource limits alone where this kernel cannot confine it.

    Returns:
        Its output and status. Whatever the program does is a status, never an exception.

    Raises:
        ConfinementError: It cannot be confined here and `allow_uncaged` is not set.
        ZygoteError: The process that forks workers could not be started, or died twice.
        ValueError: A limit is not a positive number, or out of all proportion.
        TypeError: The program is not a string.
    """
    if not isinstance(code, str):
        raise TypeError(f"code must be a string, not {type(code).__name__}")
    if not (isinstance(timeout, (int, float)) and 0 < timeout <= MAX_SECONDS):
        raise ValueError(f"timeout must be a number of seconds from 0 to {MAX_SECONDS}, not {timeout!r}")
    if isinstance(memory_mb, bool) or not isinstance(memory_mb, int) or not 1 <= memory_mb <= 1 << 20:
        raise ValueError(f"memory_mb must be a whole number of mebibytes from 1 to {1 << 20}, not {memory_mb!r}")
    source = code.encode("utf-8", "surrogatepass")
    if len(source) > MAX_SOURCE:
        return Result("", f"the program has {len(source)} bytes; the bound is {MAX_SOURCE}\n", "error")
    for last in (False, True):
        runner = _runner(allow_uncaged)
        try:
            with _slots:
                return runner.run(source, float(timeout), memory_mb)
        except spawn.ZygoteError:  # not the program's doing
            if last:
                raise
    raise AssertionError("unreachable")


class _Runner:
    """A zygote and the directory under which its workers' directories are made."""

    def __init__(self, cage: bool) -> None:
        self.scratch = tempfile.mkdtemp(prefix="whale-python-")
        self.owner = os.getpid()
        origins = [spec.origin for name in PACKAGES if (spec := find_spec(name)) and spec.origin]
        packages = [str(Path(origin).parent) for origin in origins if origin.endswith("__init__.py")]
        libraries = [path for package in packages if os.path.isdir(path := f"{package}.libs")]
        warm = [name for name in (*PACKAGES, "numpy.random", "statistics", "decimal") if find_spec(name)]
        self.zygote = spawn.Zygote(
            Setup(
                worker="whale_env.sandbox.python_worker:main",
                warm=tuple(warm),
                faces={"whale_env": {}, "whale_env.sandbox": {}},
                path=spawn.import_path(),
                keep=spawn.stdlib_path(),
                read=(*spawn.stdlib_trees(), *packages, *libraries),
                roots=(*spawn.stdlib_roots(), *packages, *libraries),
                scratch=self.scratch,
                cage=cage,
            )
        )

    def run(self, source: bytes, timeout: float, memory_mb: int) -> Result:
        with self._directory() as directory, contextlib.ExitStack() as stack:
            outputs, ends = zip(os.pipe(), os.pipe(), strict=True)
            try:
                quota = {
                    "memory": memory_mb << 20,
                    "cpu": math.ceil(timeout) + 1,
                    "file_size": MAX_FILE_BYTES,
                }
                job = {"size": len(source), "cwd": directory, "quota": quota}
                worker = self.zygote.fork(job, ends)
            except BaseException:
                for descriptor in outputs:
                    os.close(descriptor)
                raise
            finally:
                for descriptor in ends:
                    os.close(descriptor)
            stack.callback(worker.close)
            for descriptor in outputs:
                stack.callback(os.close, descriptor)
            watch = _Watch(worker, outputs, source, directory, time.monotonic() + timeout)
            return watch.result()

    def close(self) -> None:
        """Ends the zygote and removes the directory."""
        self.zygote.close()
        shutil.rmtree(self.scratch, ignore_errors=True)

    @contextlib.contextmanager
    def _directory(self) -> Iterator[str]:
        path = os.path.join(self.scratch, secrets.token_hex(16))  # siblings cannot list names, nor guess them
        os.mkdir(path, 0o700)
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


class _Watch:
    """Feeds one worker and gathers what it gives, within bounds, until it ends or must be ended."""

    def __init__(
        self, worker: spawn.Worker, outputs: tuple[int, ...], source: bytes, directory: str, deadline: float
    ) -> None:
        self._worker = worker
        self._outputs = outputs
        self._source = memoryview(source)
        self._directory = directory
        self._deadline = deadline
        self._began = time.monotonic()
        self._kept = {descriptor: bytearray() for descriptor in outputs}
        self._drained = 0
        self._word = bytearray()
        self._exit = b""
        self._verdict: Status | None = None

    def result(self) -> Result:
        with selectors.DefaultSelector() as selector:
            for descriptor in self._outputs:
                os.set_blocking(descriptor, False)
                selector.register(descriptor, selectors.EVENT_READ)
            self._worker.wire.setblocking(False)
            selector.register(self._worker.wire, selectors.EVENT_READ | selectors.EVENT_WRITE)
            selector.register(self._worker.status, selectors.EVENT_READ)
            self._loop(selector)
        out, err = (_text(self._kept[descriptor]) for descriptor in self._outputs)
        return Result(out, err, self._status(), time.monotonic() - self._began)

    def _loop(self, selector: selectors.BaseSelector) -> None:
        """Ends when the worker has ended, or, if it was killed, when it has not within `spawn.END_SECONDS`."""
        look = time.monotonic() + 0.05
        while selector.get_map():
            now = time.monotonic()
            if now >= self._deadline:
                if self._verdict is not None:
                    return
                self._stop("timeout")
            if now >= look:
                look = now + 0.05
                if self._verdict is None and self._overfull():
                    self._stop("killed")
            for key, events in selector.select(max(0.0, min(self._deadline, look) - now)):
                if not self._serve(key.fd, events, selector):
                    selector.unregister(key.fileobj)
            if self._drained > MAX_DRAINED and self._verdict is None:
                self._stop("killed")

    def _serve(self, descriptor: int, events: int, selector: selectors.BaseSelector) -> bool:
        """Handles one ready descriptor; returns whether to go on watching it."""
        if descriptor in self._kept:
            data = _read(descriptor)
            room = OUTPUT_BYTES + 1 - len(self._kept[descriptor])
            self._kept[descriptor] += (data or b"")[: max(0, room)]
            self._drained += len(data or b"")
            return data != b""
        if descriptor == self._worker.status.fileno():
            self._exit = _read(descriptor) or b""
            return False
        wire = self._worker.wire
        if events & selectors.EVENT_WRITE and self._source:
            with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
                self._source = self._source[wire.send(self._source) :]
        if not self._source and selector.get_key(wire).events != selectors.EVENT_READ:
            selector.modify(wire, selectors.EVENT_READ)
        if events & selectors.EVENT_READ:
            data = _read(descriptor)
            self._word += (data or b"")[:16]
            return data != b"" and len(self._word) < 64
        return True

    def _stop(self, verdict: Status) -> None:
        self._verdict = verdict
        self._worker.kill()
        self._deadline = time.monotonic() + spawn.END_SECONDS

    def _overfull(self) -> bool:
        try:
            with os.scandir(self._directory) as entries:
                sizes = [entry.stat(follow_symlinks=False).st_size for entry in islice(entries, MAX_FILES + 1)]
            return len(sizes) > MAX_FILES or sum(sizes) > MAX_DISK_BYTES
        except OSError:
            return False

    def _status(self) -> Status:
        if self._verdict is not None:
            return self._verdict
        words: tuple[Status, ...] = ("ok", "error", "memory")
        for word in words:  # the program can forge its own status, and nothing else
            if self._word == word.encode():
                return word
        end = spawn.Exit.of(self._exit)
        if end.code is None:
            raise spawn.ZygoteError(end.why)
        return "timeout" if end.code == -signal.SIGXCPU else "killed"


def _read(descriptor: int) -> bytes | None:
    """Reads what is there: None if nothing is yet, empty at the end."""
    try:
        return os.read(descriptor, 1 << 16)
    except BlockingIOError:
        return None
    except ConnectionResetError:
        return b""


def _text(data: bytearray) -> str:
    text = data[:OUTPUT_BYTES].decode("utf-8", "replace")
    return text + CUT if len(data) > OUTPUT_BYTES else text


_slots = threading.BoundedSemaphore(SLOTS)
_lock = threading.Lock()
_runners: dict[bool, _Runner] = {}


def _runner(allow_uncaged: bool) -> _Runner:
    cage = kernel.confinement().available or not allow_uncaged
    with _lock:
        if cage not in _runners:
            runner = _Runner(cage)
            try:
                runner.zygote.start()
            except BaseException:
                runner.close()
                raise
            _runners[cage] = runner
        return _runners[cage]


def _close() -> None:
    for runner in _runners.values():
        if runner.owner == os.getpid():
            runner.close()


def _forget() -> None:
    """After a fork of the trusted process, the child starts runners of its own."""
    global _slots, _lock
    for runner in _runners.values():
        runner.zygote.forget()
    _runners.clear()
    _slots, _lock = threading.BoundedSemaphore(SLOTS), threading.Lock()


atexit.register(_close)
after_fork(_forget)
