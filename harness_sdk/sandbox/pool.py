"""`CagePool`: where sessions with untrusted harnesses come from, and what their workers may see of this installation.

It holds one warm process; each session is a fork of it, and a few stand ready. What a session does with its worker is
in `harness_sdk.sandbox.session`.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import sys
from collections import deque
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import whale_env
from harness_sdk.sandbox.session import CagedSession, CageLimits
from harness_sdk.sandbox.wire import Wire
from harness_sdk.session import HarnessError
from harness_sdk.validator.allowed import SDK_NAMES
from whale_env.forks import after_fork
from whale_env.sandbox import kernel, spawn
from whale_env.sandbox.zygote import Setup

MAX_SOURCE = 1_000_000
SLOTS = 4 * (os.cpu_count() or 1)
"""Hooks that run at once in a pool; others wait, and the wait does not count as their time."""

SPARES = 4
"""Confined workers kept waiting for a harness, so that an episode need not wait for its process."""

SHOWN = ("harness_sdk.harness", "harness_sdk.types", "harness_sdk.randomness", "whale_env.types")
"""The modules that harnesses are written against; of the packages' public names, a harness sees those of these."""

WARM = (
    *SHOWN,
    *("harness_sdk.session", "harness_sdk.toolcalls"),
    *("abc", "bisect", "collections.abc", "copy", "dataclasses", "datetime", "decimal", "difflib", "enum", "fractions"),
    *("functools", "hashlib", "heapq", "itertools", "json", "linecache", "math", "operator", "random", "re"),
    *("statistics", "string", "textwrap", "traceback", "typing", "unicodedata"),
)


class CagePool:
    """Opens sessions with untrusted harnesses: a warm process from which each episode's worker is forked.

    One pool serves any number of sessions at once, of any sources, in any event loop.
    """

    def __init__(self, *, allow_uncaged: bool = False, limits: CageLimits | None = None) -> None:
        """Prepares a pool; nothing is started yet.

        Args:
            allow_uncaged: Where this kernel cannot confine, run harnesses under resource limits alone.
            limits: What each harness may use.
        """
        self.limits = limits or CageLimits()
        self.caged = kernel.confinement().available or not allow_uncaged
        sdk = str(Path(__file__).resolve().parents[1])
        self._zygote = spawn.Zygote(
            Setup(
                worker="harness_sdk.sandbox.worker:main",
                warm=WARM,
                faces={
                    "whale_env": _face(whale_env.__all__),
                    "whale_env.sandbox": {},
                    "harness_sdk": _face(SDK_NAMES),
                    "harness_sdk.sandbox": {},
                },
                path=spawn.stdlib_path(),
                keep=spawn.stdlib_path(),
                read=(*spawn.stdlib_trees(), sdk),
                roots=(*spawn.stdlib_roots(), sdk),
                cage=self.caged,
            )
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._slots = asyncio.Semaphore(SLOTS)
        self._spares: deque[spawn.Worker] = deque()

    async def start(self) -> None:
        """Warms the pool up; `open` does it otherwise.

        Raises:
            ConfinementError: Harnesses cannot be confined here and `allow_uncaged` is not set.
            ZygoteError: The warm process could not be started.
        """
        await asyncio.to_thread(self._zygote.start)
        self._stock()

    async def open(self, source: str, class_name: str | None = None, *, seed: int = 0) -> CagedSession:
        """Opens a session: a fresh process, a fresh module, a fresh instance.

        Args:
            source: The harness's source.
            class_name: Its class, where the source defines several.
            seed: Seeds `random` in the worker.

        Returns:
            The session; close it when the episode is over.

        Raises:
            HarnessError: The harness could not be loaded, or declares senseless limits.
            ConfinementError: As `start`.
            ZygoteError: As `start`.
        """
        if len(source) > MAX_SOURCE:
            raise HarnessError("load", f"the source has {len(source)} characters; the bound is {MAX_SOURCE}")
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._slots = loop, asyncio.Semaphore(SLOTS)
        if not self._zygote.alive():
            await self.start()
        for last in (False, True):
            session = await self._session(loop)
            try:
                await session.load({"source": source, "class": class_name, "seed": seed})
                self._stock()
                return session
            except spawn.ZygoteError:
                self._drop_spares()
                if last:
                    raise
        raise AssertionError("unreachable")

    async def _session(self, loop: asyncio.AbstractEventLoop) -> CagedSession:
        limits = self.limits
        async with self._slots:
            worker = self._spares.popleft() if self._spares else self._fork()
            wired = partial(Wire, limits.message_bytes, limits.episode_bytes)
            _, wire = await loop.create_unix_connection(wired, sock=worker.wire)
        return CagedSession(worker, wire, self._slots, limits, self.caged)

    def _fork(self) -> spawn.Worker:
        return self._zygote.fork({"quota": {"memory": self.limits.memory_mb << 20, "cpu": self.limits.cpu_seconds}})

    def _stock(self) -> None:
        with contextlib.suppress(spawn.ZygoteError):  # the next session will find out
            while len(self._spares) < SPARES:
                self._spares.append(self._fork())

    def _drop_spares(self) -> None:
        while self._spares:
            self._spares.popleft().close()

    def forget(self) -> None:
        """Drops the warm process without ending it, in a child that this process forked."""
        while self._spares:
            self._spares.popleft().forget()
        self._zygote.forget()

    async def close(self) -> None:
        """Ends the pool and every session in it; safe to call twice. A later `open` starts it anew."""
        await asyncio.to_thread(self.end)

    def end(self) -> None:
        """Does what `close` does, blocking."""
        self._drop_spares()
        self._zygote.close()

    async def __aenter__(self) -> CagePool:
        """Warms up."""
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Closes."""
        await self.close()


def _face(names: Iterable[str]) -> dict[str, str]:
    """Returns which of a package's names a harness sees, and the module that has each."""
    return {name: module for name in sorted(names) for module in SHOWN if hasattr(sys.modules[module], name)}


_shared: dict[bool, CagePool] = {}


def shared_pool(*, allow_uncaged: bool = False) -> CagePool:
    """Returns this process's pool with the default limits, which lives as long as the process.

    Args:
        allow_uncaged: Whether harnesses may run under resource limits alone where this kernel cannot confine.
    """
    if allow_uncaged not in _shared:
        _shared[allow_uncaged] = CagePool(allow_uncaged=allow_uncaged)
    return _shared[allow_uncaged]


def _forget() -> None:
    """After a fork of the trusted process, the child starts pools of its own."""
    for pool in _shared.values():
        pool.forget()
    _shared.clear()


@atexit.register
def _end() -> None:
    for pool in _shared.values():
        pool.end()


after_fork(_forget)
