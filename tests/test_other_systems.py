"""Systems without fork, resource limits or Landlock: everything imports, and what cannot run says what it needs."""

from __future__ import annotations

import subprocess
import sys

import pytest

BARE = """
import asyncio, logging, multiprocessing, subprocess, tempfile, concurrent.futures.thread
import chess, gymnasium, numpy, zstandard  # others' packages find what they look for
import os, select, signal, socket, sys

MISSING = {"resource", "fcntl", "termios", "pty", "pwd", "grp"}


class Without:
    def find_spec(self, name, path=None, target=None):
        if name in MISSING:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Without())
for name in MISSING:
    sys.modules.pop(name, None)
for holder, names in (
    (os, "fork register_at_fork pidfd_open memfd_create sched_getaffinity setsid killpg getuid geteuid sysconf pipe2"),
    (signal, "SIGKILL SIGPROF SIGALRM SIGHUP SIGQUIT SIGPIPE SIGXCPU SIGUSR1 SIGCHLD setitimer ITIMER_PROF"),
    (select, "poll epoll"),
    (socket, "SCM_RIGHTS"),
):
    for name in names.split():
        if hasattr(holder, name):
            delattr(holder, name)
"""


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", BARE + program], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "modules",
    [
        "whale_env, whale_env.testing, whale_env.verifiers, whale_env.adapters, whale_env.retrieval",
        "whale_env.chess.env, whale_env.math.env, whale_env.searchqa.env, whale_env.sandbox, whale_env.sandbox.zygote",
        "harness_sdk, harness_sdk.sandbox, harness_sdk.policies, harness_sdk.check, harness_sdk.loader",
        "reference_harnesses.chess.h0, reference_harnesses.math.h0, reference_harnesses.searchqa.h0",
    ],
)
def test_the_packages_import(modules: str) -> None:
    run(f"import {modules}")


def test_chess_is_played_and_short_answers_are_judged() -> None:
    run(
        "import whale_env, whale_env.verifiers\n"
        "env = whale_env.make('chess')\n"
        "env.reset(seed=0)\n"
        "assert env.step('e2e4')[4]['error']\n"
        "assert whale_env.verifiers.answer_matches(['Paris'], 'paris')\n"
        "assert whale_env.verifiers.math_equal('90', '90.0')  # plain numbers are compared here\n"
    )


def test_what_cannot_run_says_what_it_needs() -> None:
    told = run(
        "import asyncio\n"
        "from harness_sdk.loader import load\n"
        "from harness_sdk.sandbox import shared_pool\n"
        "from whale_env.sandbox import confinement, run_python\n"
        "from whale_env.verifiers import math_equal\n"
        "print(confinement().available, confinement().why)\n"
        "for act in (\n"
        "    lambda: run_python('1'), lambda: run_python('1', allow_uncaged=True), lambda: math_equal('x+1', '1+x'),\n"
        "    lambda: asyncio.run(shared_pool().start()),\n"
        "):\n"
        "    try:\n"
        "        act()\n"
        "    except RuntimeError as error:\n"
        "        print(type(error).__name__, error)\n"
    ).splitlines()
    assert told[0].startswith("False confinement needs Linux")
    assert [line.partition(" ")[0] for line in told[1:]] == [
        "ConfinementError", "ZygoteError", "WorkerError", "ConfinementError"
    ]  # fmt: skip
    assert all("needs Linux" in line and "WSL" in line for line in told[1:])
    assert not any("allow-uncaged" in line for line in told)  # it would not help
