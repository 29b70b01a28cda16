"""Starts a program that may use the network and read the system, but writes only where it is told.

Landlock alone: a program that talks to a model needs sockets, threads and children of its own, so neither the network
nor system calls are restricted. What is hidden cannot be read: it is cut out of the readable trees.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from whale_env.sandbox import kernel

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/opt", "/proc", "/sys", "/run", "/nix")
"""Trees that programs need."""
DEVICES = tuple(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm"))
EXECUTE, EVERYTHING = 1 << 0, (1 << 15) - 1  # all rights on files and folders up to truncation
LARGEST_FILE = 1 << 30

BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from optimizers.proposers.llm.confined import main; main()"


def command(program: Sequence[str], read: Sequence[Path], write: Sequence[Path], hidden: Sequence[Path]) -> list[str]:
    """Returns the command line that starts a program so.

    Args:
        program: Its own command line.
        read: Trees that it may read and start programs from, besides the system's.
        write: Trees that it may change.
        hidden: Trees that it must not read, wherever they lie.
    """
    trees = [[str(path.resolve()) for path in paths] for paths in (read, write, hidden)]
    root = str(Path(__file__).resolve().parents[2])
    return [sys.executable, "-c", BOOT, root, json.dumps([*trees, os.getpid()]), *program]


def main() -> None:
    """Confines this process and becomes the program."""
    specification, *program = sys.argv[1:]
    read, write, hidden, parent = json.loads(specification)
    kernel.die_with(parent)
    kernel.forbid_new_privileges()
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _restrict([*SYSTEM, *read], [*write, *DEVICES], [Path(path) for path in hidden])
    try:
        os.execvp(program[0], program)
    except OSError as error:
        sys.exit(f"cannot start {program[0]!r}: {error.strerror}; is it in a tree that may be read?")


def _restrict(read: Sequence[str], write: Sequence[str], hidden: Sequence[Path]) -> None:
    rights = EVERYTHING & kernel.file_rights()
    rules: list[tuple[str, int]] = []
    for path in read:
        rules.append((path, kernel.READ_DIR))  # names may be listed everywhere
        rules += [(str(part), kernel.READ | EXECUTE) for part in _without(Path(path).resolve(), hidden)]
    rules += [(path, rights) for path in write]
    kernel.enforce(rights, rules)


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
