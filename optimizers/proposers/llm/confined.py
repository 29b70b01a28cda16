"""Starts a program that may use the network and read the system, but writes only where it is told.

A program that talks to a model needs sockets, threads and children of its own, so system calls are not restricted as
in the cage. Instead it loses every privilege, its terminal, and, by Landlock, every file that it was not granted; what
is hidden is cut out of the trees that it may read. Where the system allows namespaces, it also sees no other process,
has ``/dev/shm`` to itself, finds no service listening below ``/run`` and ``/tmp``, and all that it started ends with
it. Where neither these nor Landlock's scopes (ABI 6) are to be had, it can signal other processes of this user; it is
told so on its standard error.

Not covered: what it sends over the network; modes and dates of files of this user (``docs/threat_model.md``).
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from whale_env.sandbox import kernel

SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/opt", "/proc", "/sys", "/nix"),
    *("/run/systemd/resolve", "/run/resolvconf", "/run/nscd", "/run/current-system"),
)
"""Trees that programs need. Of ``/run`` only how to look names up: sockets of services and secrets lie beside it."""
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom")
"""No terminal, no pseudo-terminal, no disk."""
SHARED_MEMORY = "/dev/shm"
"""Granted only where it is this program's own. ``/tmp`` is never: what is kept of it lies below, hidden trees too."""
SOCKETS = ("/run", "/tmp")
"""Where services and terminals listen at paths, which Landlock does not limit."""
EXECUTE = 1 << 0
DEVICE_NODES = 1 << 6 | 1 << 11  # making character and block devices
WRITING = ((1 << 16) - 1) & ~DEVICE_NODES
LARGEST_FILE = 1 << 30

BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from optimizers.proposers.llm.confined import main; main()"


def command(program: Sequence[str], read: Sequence[Path], write: Sequence[Path], hidden: Sequence[Path]) -> list[str]:
    """Returns the command line that starts a program so.

    Args:
        program: Its own command line.
        read: Trees that it may read and start programs from, besides the system's.
        write: Trees that it may change; none may hold a hidden one.
        hidden: Trees that it must not read, wherever they lie.
    """
    trees = [[str(path.resolve()) for path in paths] for paths in (read, write, hidden)]
    root = str(Path(__file__).resolve().parents[3])
    return [sys.executable, "-c", BOOT, root, json.dumps([*trees, os.getpid()]), *program]


def main() -> None:
    """Confines this process and becomes the program."""
    specification, *program = sys.argv[1:]
    read, write, hidden, parent = json.loads(specification)
    kernel.die_with(parent)
    kernel.forbid_new_privileges()
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    here = os.getcwd()
    private = _alone([*SYSTEM, *read, *write, here])
    kernel.drop_capabilities()
    if not private and kernel.confinement().landlock < 6:
        print("whale: this kernel confines neither signals nor abstract sockets of this program", file=sys.stderr)
        sys.stderr.flush()
    _restrict(
        [*SYSTEM, *read], [*write, *DEVICES, *([SHARED_MEMORY] if private else [])], [Path(path) for path in hidden]
    )
    os.chdir(here)  # as a path again: the folder may have been covered
    try:
        os.execvp(program[0], program)
    except OSError as error:
        sys.exit(f"cannot start {program[0]!r}: {error.strerror}; is it in a tree that may be read?")


def _alone(keep: Sequence[str]) -> bool:
    """Goes on in a child with processes, shared memory and temporary files of its own, where the system lets it.

    Two processes stay behind: this one, which passes the child's status on, and the first of the new namespace, with
    whose end the kernel kills all others in it.

    Args:
        keep: What must stay where it is.

    Returns:
        Whether it is so.
    """
    try:
        kernel.new_namespaces()
    except OSError:
        return False
    if first := os.fork():
        _pass_on(first)
    with contextlib.suppress(ProcessLookupError):
        kernel.die_with(0)  # which is what a parent outside looks like
    private = True
    try:
        kernel.private_mounts()
        kernel.mount_fresh("tmpfs", SHARED_MEMORY)
        for folder in SOCKETS:
            kernel.cover(folder, keep)
        with contextlib.suppress(OSError):  # refused where the container covers parts of its own
            kernel.mount_fresh("proc", "/proc")
    except OSError:
        private = False
    if program := os.fork():
        kernel.drop_capabilities()
        _pass_on(program)
    return private


def _pass_on(child: int) -> NoReturn:
    """Waits for all children, and ends as this one did."""
    while True:
        ended, status = os.wait()
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def _restrict(read: Sequence[str], write: Sequence[str], hidden: Sequence[Path]) -> None:
    abi, rights = kernel.confinement().landlock, kernel.file_rights()
    rules: list[tuple[str, int]] = []
    for path in read:
        rules.append((path, kernel.READ_DIR))  # names may be listed everywhere
        rules += [(str(part), kernel.READ | EXECUTE) for part in _without(Path(path).resolve(), hidden)]
    rules += [(path, rights & WRITING) for path in write]
    kernel.enforce(rights, rules, scoped=3 if abi >= 6 else 0)


def _without(tree: Path, hidden: Sequence[Path]) -> Iterator[Path]:
    """Yields what is left of a tree without the hidden ones: itself, or the parts around them."""
    if any(tree.is_relative_to(path) for path in hidden):
        return
    if not any(path.is_relative_to(tree) for path in hidden):
        yield tree
        return
    for part in sorted(tree.iterdir()):
        if not part.is_symlink():
            yield from _without(part, hidden)
