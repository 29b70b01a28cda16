"""The worker process of the mathematical verifier: one request line in, one reply line out, under hard limits.

Its limits are its own: CPU seconds for one request, which says how many (one that exceeds them gets a reply that tells
so; one stuck in C code is ended by the kernel), address space, no files written, no core dumps. Wall time and
replacement are the parent's business (`whale_env.math.worker_pool`).
"""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import sys
from types import FrameType
from typing import Any, NoReturn

from whale_env.math.equality.compare import equal, problem

_KILL_CPU_SECONDS = 4
_MEMORY = 1_500_000_000  # bytes of address space, of which the interpreter and sympy map about a third
_STACK = 96 * 1024 * 1024
_RECURSION = 12_000


class _OutOfTimeError(BaseException):
    """Not an Exception, so that no broad handler on the way swallows it."""


def _out_of_time(signum: int, frame: FrameType | None) -> NoReturn:
    raise _OutOfTimeError


def _limit() -> None:
    for kind, soft in (
        (resource.RLIMIT_AS, _MEMORY),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_STACK, _STACK),
    ):
        _, hard = resource.getrlimit(kind)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))
    sys.setrecursionlimit(_RECURSION)
    sys.set_int_max_str_digits(0)
    signal.signal(signal.SIGPROF, _out_of_time)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _arm(seconds: float) -> None:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CPU, (int(usage.ru_utime + usage.ru_stime) + _KILL_CPU_SECONDS, hard))
    signal.setitimer(signal.ITIMER_PROF, seconds)


def answer(kind: str, reference: str, given: str, seconds: float) -> Any:
    """The reply to one request: None where no verdict could be reached, ``{"late": true}`` where time was too short."""
    try:
        _arm(seconds)
        try:
            return equal(reference, given) if kind == "equal" else problem(reference)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    except _OutOfTimeError:
        return {"late": True}
    except (Exception, RecursionError, MemoryError):  # a verifier has no verdict but False left
        return None


def main() -> None:
    """Serves requests until the parent closes the pipe."""
    _limit()
    requests, replies = sys.stdin.buffer, sys.stdout.buffer
    replies.write(b"ready\n")
    replies.flush()
    for line in requests:
        replies.write(json.dumps(answer(*json.loads(line))).encode() + b"\n")
        replies.flush()
