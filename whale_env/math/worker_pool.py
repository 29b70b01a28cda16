"""A small pool of killable worker processes for questions that may hang.

Workers start on first use, by executing a new interpreter (never a bare fork, which would copy the locks of a threaded
process in whatever state they are in). A worker that does not reply in time is killed, reaped and replaced by the next
request. A question first gets a moment only; one that needs longer queues behind its like, so that answers which take
all the time there is cannot keep a simple one waiting. Any thread may ask; after a fork the child starts workers of its
own. What the workers compute is not known here.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import select
import subprocess
import sys
import threading
import time
import weakref
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from whale_env.errors import WhaleError
from whale_env.forks import after_fork

_PACKAGE = Path(__file__).resolve().parents[1]
# The parent package is put in by hand: its own imports (gymnasium, numpy) would triple the start and the memory.
_BOOTSTRAP = (
    "import sys, types; package = types.ModuleType('whale_env'); package.__path__ = [sys.argv[1]]; "
    "sys.modules['whale_env'] = package; from whale_env.math.equality.worker import main; main()"
)
_SECONDS = 3.8  # wall time of one question
_CPU_SECONDS = 0.8  # processor time of one question; the worker itself sees to it
_QUICK_SECONDS, _QUICK_CPU_SECONDS = 1.0, 0.12  # the same at the first try; nearly all questions take milliseconds
_FAIR_CPU_SECONDS = 0.25  # a question that had less of a processor in that time was held up, not hard
_IDLE_CPU_SECONDS = 0.05  # a worker that ended with less than that had not begun
_PATIENCE = 180.0  # a start takes half a second and a free worker is soon found; longer only on a starved machine
_CAN_RUN = hasattr(select, "poll") and find_spec("resource") is not None
_MAX_WORKERS = 4  # at each of the two tries


LATE = {"late": True}
"""What a worker replies when its processor time is over."""


class WorkerError(WhaleError, RuntimeError):
    """No worker could be had: a fault of the installation or the machine, never of a question."""


class _Worker:
    """One child process and its two pipes."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-B", "-c", _BOOTSTRAP, str(_PACKAGE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            cwd="/",
            env={"PATH": os.defpath, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"},
        )
        if self._line(time.monotonic() + _PATIENCE) is None:
            self.close()
            raise WorkerError(
                f"a verifier process did not start within {_PATIENCE:.0f} s or ended at once "
                f"(exit code {self._process.returncode}). Does `{sys.executable} -c 'import sympy'` work here?"
            )

    def ask(self, request: bytes, seconds: float) -> bytes | None:
        """The reply line, or None when the worker died or ran out of time (it is then of no further use)."""
        stdin = self._process.stdin
        if stdin is None:
            return None
        enough = self.cpu_seconds() + _FAIR_CPU_SECONDS
        try:
            # The worker reads before it computes, so a blocking write ends unless the worker is dead.
            stdin.write(request)
        except OSError:
            return None
        return self._line(time.monotonic() + seconds, enough)

    def cpu_seconds(self) -> float:
        """Processor time used so far, also by a process that has ended and is not reaped; infinite if unknown."""
        try:
            fields = Path(f"/proc/{self._process.pid}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            return math.inf
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _line(self, deadline: float, enough: float = 0.0) -> bytes | None:
        """Reads a line; a worker with less than ``enough`` seconds of CPU time gets more than the deadline."""
        stdout = self._process.stdout
        if stdout is None:
            return None
        reply = b""
        last = deadline + _PATIENCE
        while not reply.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not _readable(stdout.fileno(), left):
                if self.cpu_seconds() < enough and deadline < last:
                    deadline = time.monotonic() + 0.2
                    continue
                return None
            piece = os.read(stdout.fileno(), 65536)
            if not piece:
                return None
            reply += piece
        return reply

    def close(self) -> None:
        """Ends the process, reaps it and closes the pipes."""
        with contextlib.suppress(OSError):
            self._process.kill()
        self._process.wait()
        self.forget()

    def forget(self) -> None:
        """Closes this process's ends of the pipes."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        if self._process.returncode is None:
            self._process.returncode = 0  # another process's child: no waiting for it here


def _readable(descriptor: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN | select.POLLHUP)
    return bool(poll.poll(max(1, int(seconds * 1000))))


class _Lane:
    """The places of one try. Whoever waits for one does so as long as those before are being served."""

    def __init__(self, size: int) -> None:
        self._size, self._places, self._served = size, threading.Semaphore(size), 0

    def __enter__(self) -> None:
        served = self._served
        while not self._places.acquire(timeout=_PATIENCE):
            if served == self._served:
                raise WorkerError(f"all {self._size} verifier processes were busy for {_PATIENCE:.0f} s")
            served = self._served

    def __exit__(self, *_: object) -> None:
        self._served += 1
        self._places.release()


class WorkerPool:
    """Asks workers; at most a few exist, and a worker has less than five seconds for a question.

    The time that it takes to start a worker, or to get one while all are busy, does not count against the question,
    nor does the time in which the machine gave the worker next to no processor: a verdict must not depend on how busy
    the machine is.
    """

    def __init__(self, size: int | None = None) -> None:
        self._size = size or max(2, min(_MAX_WORKERS, os.cpu_count() or 2))
        self._reset()
        _pools.add(self)

    def _reset(self) -> None:
        self._quick, self._slow = _Lane(self._size), _Lane(self._size)
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()

    def ask(self, kind: str, reference: str, answer: str) -> Any:
        """The worker's reply, or None if it could not be had in time.

        Raises:
            WorkerError: If no worker can be started or none comes free.
        """
        if not _CAN_RUN:
            raise WorkerError(
                f"comparing mathematical answers needs Linux or macOS (limits on a process), this is {sys.platform}: "
                "use WSL or a container"
            )
        question = [kind, reference, answer]
        with self._quick:
            reply = self._ask([*question, _QUICK_CPU_SECONDS], min(_QUICK_SECONDS, _SECONDS))
        if reply != LATE:
            return reply
        with self._slow:
            reply = self._ask([*question, _CPU_SECONDS], _SECONDS)
        return None if reply == LATE else reply

    def _ask(self, question: list[Any], seconds: float) -> Any:
        """The reply, or `LATE` where the time was not enough."""
        request = (json.dumps(question) + "\n").encode()
        for _ in range(2):
            fresh, worker = self._worker()
            before, used = worker.cpu_seconds(), 0.0
            reply = None
            try:
                reply = worker.ask(request, seconds)
                used = worker.cpu_seconds() - before
            finally:  # also when the caller is interrupted: a late reply must not meet the next question
                with self._lock:
                    if reply is None:
                        self._all.discard(worker)
                    else:
                        self._idle.append(worker)
                if reply is None:
                    worker.close()
            if reply is not None:
                return json.loads(reply)
            # An idle worker may have died unnoticed, through no fault of this question: that one is asked again.
            if fresh or not used < _IDLE_CPU_SECONDS:
                return LATE
        return LATE

    def _worker(self) -> tuple[bool, _Worker]:
        with self._lock:
            if self._idle:
                return False, self._idle.pop()
        worker = _Worker()
        with self._lock:
            self._all.add(worker)
        return True, worker

    def cpu_seconds(self) -> float:
        """Processor time that the present workers have used, their start included."""
        with self._lock:
            workers = list(self._all)
        return sum(worker.cpu_seconds() for worker in workers)

    def close(self) -> None:
        """Ends all workers; the next question starts new ones."""
        with self._lock:
            workers, self._all, self._idle = list(self._all), set(), []
        for worker in workers:
            worker.close()

    def _after_fork(self) -> None:
        workers = list(self._all)
        self._reset()
        for worker in workers:
            worker.forget()


_pools: weakref.WeakSet[WorkerPool] = weakref.WeakSet()


def _close_all() -> None:
    for pool in list(_pools):
        pool.close()


def _after_fork() -> None:
    for pool in list(_pools):
        pool._after_fork()


atexit.register(_close_all)
after_fork(_after_fork)
