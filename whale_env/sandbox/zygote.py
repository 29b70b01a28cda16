"""The process that forks confined workers: started clean, warmed up by imports, confined itself, then idle.

It runs in a process of its own (started by `whale_env.sandbox.spawn`), has one thread, and handles only requests of
the trusted process. It never touches what a worker sends. Each request brings a *status* socket: the worker lives no
longer than the other end stays open, and its exit is reported there. What a worker does is the business of its
``main`` (`whale_env.sandbox.python_worker`, `harness_sdk.sandbox.worker`).
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import selectors
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from whale_env.sandbox import kernel, syscalls

try:
    import resource
except ModuleNotFoundError:  # Windows, where no zygote runs, but its setup is imported
    resource = None  # type: ignore[assignment]

MAX_REQUEST = 65536
WIRE = 3
"""The descriptor of a worker's wire."""

NOT_CONFINED = 97
"""Exit status of a worker that could not be confined, and therefore ran nothing."""


@dataclass(frozen=True, slots=True)
class Setup:
    """How a zygote and its workers are set up; the first message it gets, as JSON.

    Attributes:
        worker: ``module:function`` that a worker runs, called with the wire's descriptor and the request's ``job``.
            The module's ``warm()``, if there is one, is called once in the zygote.
        warm: Modules imported once, before any confinement.
        faces: What packages show: package → name → the module that has it. Of these packages no ``__init__`` runs, so
            that what only the trusted side needs is never loaded.
        path: ``sys.path`` during warm-up.
        keep: The part of ``sys.path`` that workers keep.
        read: Files and trees that may be read.
        roots: The few directories that hold all of `read`; their names may be listed.
        scratch: Directory whose subdirectories workers may write to, or empty.
        cage: Whether to confine. If not, only resource limits hold.
    """

    worker: str
    warm: tuple[str, ...]
    faces: dict[str, dict[str, str]]
    path: tuple[str, ...]
    keep: tuple[str, ...]
    read: tuple[str, ...]
    roots: tuple[str, ...]
    scratch: str = ""
    cage: bool = True


def main(descriptor: int) -> None:
    """Serves requests from a control socket until the trusted process closes it or ends."""
    control = socket.socket(fileno=descriptor)
    parent = os.pidfd_open(os.getppid())
    try:
        setup = Setup(**json.loads(control.recv(1 << 20)))
        zygote = _Zygote(setup, control, parent)
    except BaseException as error:
        control.send(json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
        raise
    control.send(b'{"ready": true}')
    zygote.serve()


class _Zygote:
    def __init__(self, setup: Setup, control: socket.socket, parent: int) -> None:
        self._setup = setup
        self._control = control
        self._parent = parent
        self._pid = os.getpid()
        self._wake, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._status: dict[int, int] = {}
        self._selector = selectors.EpollSelector()
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self._warm_up()
        if setup.cage:
            self._confine()
            self._prove()
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _noted)

    def _warm_up(self) -> None:
        sys.path[:] = self._setup.path
        for name in self._setup.warm:
            importlib.import_module(name)
        for package, names in self._setup.faces.items():
            for name, module in names.items():
                setattr(sys.modules[package], name, getattr(sys.modules[module], name))
        module, function = self._setup.worker.split(":")
        worker = importlib.import_module(module)
        self._work = getattr(worker, function)
        if hasattr(worker, "warm"):
            worker.warm()
        sys.path[:] = self._setup.keep
        sys.argv[:] = [""]
        os.environ.clear()
        self._base = kernel.address_space()
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")  # short of memory, the kernel is to end a worker and not its trusted parent
        gc.collect()
        gc.freeze()  # a collection in a worker would otherwise copy every shared page

    def _confine(self) -> None:
        scratch = self._setup.scratch
        kernel.hide_memory()
        kernel.forbid_new_privileges()
        kernel.restrict_files(self._setup.read, [scratch] if scratch else [], self._setup.roots, prune=True)
        kernel.drop_capabilities()
        self._program = syscalls.program("writer" if scratch else "reader")
        kernel.restrict_calls(syscalls.program("zygote"))

    def _prove(self) -> None:
        """Forks one worker that tries what must fail, so that a filter that does not bite is found at once."""
        pid = os.fork()
        if not pid:
            try:
                self._seal("")
                os._exit(_escapes())
            finally:
                os._exit(NOT_CONFINED)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code:
            raise PermissionError(f"the confinement does not hold on this kernel (check {code} failed)")

    def serve(self) -> None:
        register = self._selector.register
        register(self._control, selectors.EVENT_READ, "request")
        register(self._parent, selectors.EVENT_READ, "end")
        register(self._wake, selectors.EVENT_READ, "child")
        while True:
            for key, _ in self._selector.select():
                if key.data == "end" or (key.data == "request" and not self._request()):
                    return self._end()
                if key.data == "child":
                    self._reap()
                elif key.data in self._status:  # not if it was reaped a moment ago
                    os.kill(key.data, signal.SIGKILL)
                    self._selector.unregister(key.fileobj)

    def _request(self) -> bool:
        data, descriptors, _, _ = socket.recv_fds(self._control, MAX_REQUEST, 8)
        if not data:
            return False
        if not descriptors:  # none were free
            return True
        status, *rest = descriptors
        try:
            pid = os.fork()
        except OSError as error:
            _tell(status, {"error": f"cannot fork: {error.strerror}"})
        else:
            if not pid:
                self._become_worker(data, rest)
            self._status[pid] = status
            self._selector.register(status, selectors.EVENT_READ, pid)
        for descriptor in rest:
            os.close(descriptor)
        return True

    def _end(self) -> None:
        """Kills the workers (the kernel would do so too) and removes their files, in case nobody else can any more."""
        for pid in self._status:
            os.kill(pid, signal.SIGKILL)
        for pid in self._status:
            os.waitpid(pid, 0)
        if self._setup.scratch:
            shutil.rmtree(self._setup.scratch, ignore_errors=True)

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            descriptor = self._status.pop(pid)
            with contextlib.suppress(KeyError):  # killed on request: no longer watched
                self._selector.unregister(descriptor)
            _tell(descriptor, {"exit": os.waitstatus_to_exitcode(status)})

    def _become_worker(self, request: bytes, descriptors: list[int]) -> None:
        code = NOT_CONFINED
        try:
            job: dict[str, Any] = json.loads(request)
            self._take(descriptors)
            if job.get("cwd"):
                os.chdir(job["cwd"])
            kernel.limit(kernel.Quota(**job["quota"]), self._base)
            self._seal(job.get("cwd", ""))
            code = 1
            self._work(WIRE, job)
            code = 0
        finally:
            os._exit(code)

    def _take(self, descriptors: list[int]) -> None:
        """Keeps the wire, and stdout and stderr where given; closes all else."""
        kernel.die_with(self._pid)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        self._control.detach()
        wire, *outputs = descriptors
        for target, descriptor in enumerate(outputs, start=1):
            os.dup2(descriptor, target, inheritable=False)
        os.dup2(wire, WIRE, inheritable=False)
        os.closerange(WIRE + 1, os.sysconf("SC_OPEN_MAX"))

    def _seal(self, cwd: str) -> None:
        if not self._setup.cage:
            return
        if cwd:  # without a directory of its own, a worker has nothing that the zygote's own layer does not refuse
            kernel.restrict_files(self._setup.roots, [cwd])
        kernel.restrict_calls(self._program)


def _noted(number: int, frame: object) -> None:
    """Does nothing; a handler must be there for the wake-up descriptor to be written."""


def _tell(status: int, report: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # nobody is waiting any more
        os.write(status, json.dumps(report).encode())
    os.close(status)


def _escapes() -> int:
    """Returns the number of the first forbidden thing that is possible, 0 if none is."""
    attempts: tuple[Callable[[], object], ...] = (
        partial(os.listdir, "/"),
        partial(os.open, "/proc/self/status", os.O_RDONLY),
        partial(os.open, "/whale-canary", os.O_WRONLY | os.O_CREAT),
        partial(socket.socket, socket.AF_INET, socket.SOCK_STREAM),
        socket.socketpair,
        os.fork,
        partial(os.kill, os.getppid(), 0),
        partial(os.execv, sys.executable, [sys.executable]),
        partial(os.memfd_create, "x"),
        partial(os.setpriority, os.PRIO_PROCESS, 0, 19),
    )
    for number, attempt in enumerate(attempts, start=1):
        try:
            attempt()
        except OSError:
            continue
        return number
    return 0
