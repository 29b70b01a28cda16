"""The trusted side of a zygote: starting it, asking it for workers, ending them.

A worker is reached by its *wire* (a socket whose other end it holds) and owned by its *status* socket: closing that
kills it. Nothing here reads what a worker writes to its wire; see `whale_env.sandbox.python_tool` and
`harness_sdk.sandbox.session`.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from whale_env.errors import WhaleError
from whale_env.forks import CAN_FORK
from whale_env.sandbox import kernel
from whale_env.sandbox.zygote import NOT_CONFINED, Setup

CAN_RUN = CAN_FORK and hasattr(os, "pidfd_open") and hasattr(socket, "AF_UNIX")
"""Whether this system has what a zygote is made of."""

START_SECONDS = 60.0
END_SECONDS = 5.0

_BOOT = """
import json, sys, types
for name, path in json.loads(sys.argv[1]).items():
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
from whale_env.sandbox.zygote import main
main(int(sys.argv[2]))
"""


class ConfinementError(WhaleError, RuntimeError):
    """Untrusted code was refused, because it cannot be confined here."""

    def __init__(self, why: str) -> None:
        risk = (
            ", or accept the risk with --allow-uncaged (optimisers: --search.allow-uncaged; in Python "
            "allow_uncaged=True)"
        )
        super().__init__(
            f"untrusted code is refused: {why}. Use a Linux kernel with Landlock (5.13 or newer) and seccomp (on "
            f"Windows in WSL, on macOS in a container or virtual machine){risk if CAN_RUN else ''}"
        )


class ZygoteError(WhaleError, RuntimeError):
    """The process that forks workers could not be started, or died."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A forked worker.

    Attributes:
        wire: This side of the worker's socket.
        status: Socket that owns the worker.
    """

    wire: socket.socket
    status: socket.socket

    def kill(self) -> None:
        """Has the worker killed, without waiting for it."""
        with contextlib.suppress(OSError):
            self.status.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Has the worker killed and closes this side."""
        self.kill()
        self.forget()

    def forget(self) -> None:
        """Closes this process's descriptors; the worker lives on while another process has copies of them."""
        self.wire.close()
        self.status.close()


@dataclass(frozen=True, slots=True)
class Exit:
    """How a worker ended.

    Attributes:
        code: Its exit status, or the signal that killed it as a negative number. None if it never ran, or its zygote
            died: no fault of what it ran.
        why: The same in words.
    """

    code: int | None
    why: str

    @classmethod
    def of(cls, report: bytes) -> Exit:
        """Reads a status message; empty if the zygote died before it could tell."""
        if not report:
            return cls(None, "its zygote died")
        data = json.loads(report)
        if "error" in data:
            return cls(None, str(data["error"]))
        code = int(data["exit"])
        if code == NOT_CONFINED:
            return cls(code, "it could not be confined")
        return cls(code, f"killed by signal {-code}" if code < 0 else f"the process exited with status {code}")


class Zygote:
    """Starts, and restarts when it died, one zygote. Safe to use from many threads."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def start(self) -> None:
        """Starts the process if it is not running, and waits until it is warm.

        Raises:
            ConfinementError: It should confine its workers and cannot.
            ZygoteError: It could not be started.
        """
        with self._lock:
            self._ensure()

    def alive(self) -> bool:
        """Whether the process runs."""
        return self._control is not None and self._process is not None and self._process.poll() is None

    def fork(self, job: Mapping[str, Any], descriptors: Sequence[int] = ()) -> Worker:
        """Asks for one worker; a failure to fork shows as the end of the worker.

        Args:
            job: What the worker is told: ``quota``, ``cwd``, and what its ``main`` needs. At most 64 KiB as JSON.
            descriptors: Its stdout and stderr; the caller keeps its own copies.

        Returns:
            The worker.

        Raises:
            ConfinementError: As `start`.
            ZygoteError: The zygote could not be (re)started.
        """
        wire, theirs = socket.socketpair()
        status, reporter = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            message = json.dumps(job).encode()
            with self._lock:
                for attempt in (1, 2):
                    control = self._ensure()
                    try:
                        socket.send_fds(control, [message], [reporter.fileno(), theirs.fileno(), *descriptors])
                        return Worker(wire, status)
                    except (BrokenPipeError, ConnectionResetError, TimeoutError) as error:
                        self._end()
                        if attempt == 2:
                            raise ZygoteError("the zygote died twice in a row") from error
            raise AssertionError("unreachable")
        except BaseException:
            wire.close()
            status.close()
            raise
        finally:
            theirs.close()
            reporter.close()

    def close(self) -> None:
        """Ends the process and thereby every worker."""
        with self._lock:
            self._end()

    def forget(self) -> None:
        """Drops the process without ending it: it belongs to the process that this one was forked from."""
        self._lock = threading.Lock()
        if self._control is not None:
            self._control.close()
        self._control = self._process = None

    def _ensure(self) -> socket.socket:
        if self._control is not None and self.alive():
            return self._control
        self._end()
        if self._setup.cage and not kernel.confinement().available:
            raise ConfinementError(kernel.confinement().why)
        if not CAN_RUN:
            raise ZygoteError(
                f"running programs in processes of their own, confined or not, needs Linux, this is {sys.platform}: "
                "use WSL, a container or a virtual machine"
            )
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        packages = {name: str(sys.modules[name].__path__[0]) for name in self._setup.faces}
        command = [sys.executable, "-s", "-S", "-P", "-B", "-X", "utf8", "-c", _BOOT]
        try:
            self._process = subprocess.Popen(
                [*command, json.dumps(packages), str(theirs.fileno())],
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                cwd="/",
            )
            theirs.close()
            ours.settimeout(START_SECONDS)
            ours.send(json.dumps(asdict(self._setup)).encode())
            answer = ours.recv(65536)
        except OSError as error:
            ours.close()
            self._end()
            raise ZygoteError(f"the zygote could not be started: {error}") from error
        finally:
            theirs.close()
        report = json.loads(answer) if answer else {"error": "it ended at once"}
        if "error" in report:
            ours.close()
            self._end()
            if str(report["error"]).startswith("PermissionError: the confinement"):
                raise ConfinementError(str(report["error"]).partition(": ")[2])
            raise ZygoteError(f"the zygote could not be started: {report['error']}")
        ours.settimeout(END_SECONDS)
        self._control = ours
        return ours

    def _end(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            try:
                self._process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None


def stdlib_trees() -> tuple[str, ...]:
    """Returns the standard library's files and directories, third-party packages beside them left out.

    An installation may keep ``site-packages``, with the environments' data, inside the library's own directory.
    """
    trees: list[str] = []
    for directory in stdlib_roots():
        entries = sorted(os.listdir(directory)) if os.path.isdir(directory) else []
        trees += [os.path.join(directory, name) for name in entries if not name.endswith("-packages")]
    return tuple(trees)


def stdlib_roots() -> tuple[str, ...]:
    """Returns the standard library's directories."""
    return tuple(dict.fromkeys(sysconfig.get_path(name) for name in ("stdlib", "platstdlib")))


def stdlib_path() -> tuple[str, ...]:
    """Returns the part of ``sys.path`` that holds the standard library."""
    directories = stdlib_roots()
    return (*directories, *(os.path.join(path, "lib-dynload") for path in directories))


def import_path() -> tuple[str, ...]:
    """Returns this process's ``sys.path``, directories only."""
    return tuple(path for path in sys.path if path and os.path.isdir(path))


def _environment() -> dict[str, str]:
    """Returns the whole environment of a zygote, which it clears once warm. Fixed hashes make it deterministic."""
    threads = {f"{name}_NUM_THREADS": "1" for name in ("OPENBLAS", "OMP", "MKL")}
    loader = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    return {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", **threads, **loader}
