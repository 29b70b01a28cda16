"""`CommandProposer`: any agent command line as the proposer. It works in a copy of the archive and leaves files.

The copy holds ``TASK.md``, ``SKILL.md``, ``archive/``, the SDK's sources, and an empty ``candidates`` folder. The
command writes ``candidates/<name>.py`` and ``candidates.json``, a list of objects with ``name``, ``hypothesis``,
``axis``, ``changes`` and perhaps ``parent`` and ``file``. If it leaves a ``usage.json`` (``input_tokens``,
``cached_tokens``, ``output_tokens``, ``usd``), that is booked.

Confinement (Linux with Landlock): the command may change the copy only, has no privileges and no terminal, and cannot
read this run, this package or the environment's data. The network stays open and the environment is passed on, since
an agent has to reach its model with its key. Its settings under the home directory can be read or written only where
the constructor says so. What it leaves is untrusted data: bounded, links not followed, free of the keys, validated and
checked as any other candidate. How far confinement goes is told in ``docs/threat_model.md``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import re
import shlex
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import whale_env
from optimizers.proposers.llm import briefing, confined
from optimizers.proposers.llm.files import ArchiveFiles
from optimizers.proposers.llm.secrets import redacted
from optimizers.proposers.llm.tools import MAX_SOURCE, ToolError, Workbench
from optimizers.proposers.protocol import Brief, Proposal, Proposed, ProposerSetupError
from optimizers.record.ledger import ProposerCost
from whale_env.sandbox import confinement

MAX_LISTED = 16
"""Candidates that are looked at."""
MAX_LIST = 256 * 1024
"""Bytes of ``candidates.json`` and ``usage.json``."""
LARGEST_COPIED = 16 * 1024 * 1024
"""Bytes of an archive file beyond which it is left out of the copy."""
LOG = 64 * 1024
"""Bytes kept of what the command prints, from its end."""

DELIVERY = """
Deliver like this. Write each candidate to candidates/<name>.py. Then write candidates.json, a list with one object for
each: {"name": "<name>", "hypothesis": "...", "axis": "...", "changes": "...", "parent": "<id>"}. There are no tools
run_check and submit_candidate here: read validator_rules.md, the sources under sdk/, and your file once more. What does
not pass the check is dropped. SKILL.md says what a good candidate is; the archive is the folder archive/.
"""
PACKAGES = ("whale_env", "harness_sdk", "reference_harnesses", "optimizers", "benchmarks", "tools")
COPIES = (".git", "build", "dist")
"""What else of a checkout holds them."""


class CommandProposer:
    """An agent command line writes the candidates."""

    def __init__(
        self,
        command: str,
        *,
        timeout: float = 1800.0,
        read: Sequence[Path] = (),
        write: Sequence[Path] = (),
        hidden: Sequence[Path] = (),
        allow_unconfined: bool = False,
    ) -> None:
        """Takes the command; nothing is started yet.

        Args:
            command: A command line, split as a shell would; it runs in the copy, for instance
                ``my-agent --print "Do what TASK.md says"``.
            timeout: Seconds after which it is killed. What it has written by then counts.
            read: Trees that it may read and run besides the system's, such as where it is installed.
            write: Trees that it may change besides the copy, such as its settings.
            hidden: What holds answers, such as the environment's data. This package does, too.
            allow_unconfined: Whether it may run where the kernel offers no Landlock.

        Raises:
            ProposerSetupError: The command is empty or cannot be found, cannot be confined here, or would be given
                what is hidden.
        """
        try:
            self._command = shlex.split(command)
        except ValueError as error:
            raise ProposerSetupError(f"the proposer's command {command!r} cannot be split: {error}") from None
        program = shutil.which(self._command[0]) if self._command else None
        if program is None:
            raise ProposerSetupError(f"the proposer's command {command!r} names no program that can be found")
        if not timeout > 0:
            raise ProposerSetupError(f"the timeout must be more than 0 seconds, not {timeout}")
        self._confine = confinement().landlock > 0
        if not self._confine and not allow_unconfined:
            raise ProposerSetupError(f"the proposer's command cannot be confined: {confinement().why}")
        self._timeout, self._read, self._write = timeout, tuple(read), tuple(write)
        answers = [*_packages(), *(path.resolve() for path in hidden)]
        _keep_apart("read", self._read, answers)
        self._hidden = [*answers, *_caches()]
        _keep_apart("write", self._write, self._hidden)

    async def propose(self, brief: Brief) -> Proposed:
        """Runs the command once, and takes in what it leaves.

        Returns:
            The candidates that pass; the time, and the cost if the command told it. A round that has ended is not
            repeated when a run is resumed.
        """
        if brief.check is None or brief.folder is None:
            raise ValueError("a proposer that asks a model needs brief.check and brief.folder")
        brief.folder.mkdir(parents=True, exist_ok=True)
        record = brief.folder / "command.json"
        if record.is_file():
            return _restored(json.loads(record.read_text("utf-8")))
        run = brief.archive.folder.parent.resolve()
        _keep_apart("write", self._write, [run])
        bench = Workbench(brief, brief.check)
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="whale-proposer-", ignore_cleanup_errors=True) as name:
            copy = Path(name).resolve() / "work"
            _prepare(copy, brief)
            status, log = await self._run(copy, brief)
            dropped = await _collect(copy, bench, brief.count)
            cost = _cost(copy, time.monotonic() - began)
        (brief.folder / "command.log").write_text(redacted(log), "utf-8")
        ended = "; ".join([status, f"{len(bench.candidates)} candidates handed in", *dropped])
        proposed = Proposed(tuple(bench.candidates), cost, redacted(ended))
        scratch = record.with_suffix(".tmp")
        scratch.write_text(json.dumps(asdict(proposed)), "utf-8")
        scratch.replace(record)
        return proposed

    async def _run(self, copy: Path, brief: Brief) -> tuple[str, str]:
        """Runs the command to its end or its timeout; returns how it ended and the end of what it printed."""
        program = self._command
        if self._confine:
            hidden = [*self._hidden, brief.archive.folder.parent.resolve()]
            program = confined.command(program, self._read, [copy, *self._write], hidden)
        environment = {**os.environ, "TMPDIR": str(copy / "tmp")}
        with open(copy.parent / "log", "w+b") as log:
            process = await asyncio.create_subprocess_exec(
                *program,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=copy,
                env=environment,
                start_new_session=True,
            )
            try:
                async with asyncio.timeout(self._timeout):
                    code = await process.wait()
                status = f"the command exited with status {code}"
            except TimeoutError:
                status = f"the command was killed after {self._timeout:g} s"
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
            log.seek(max(0, log.seek(0, os.SEEK_END) - LOG))
            return status, log.read(LOG).decode("utf-8", "replace")


def _prepare(copy: Path, brief: Brief) -> None:
    texts = {f"sdk/{name}": text for name, text in briefing.sdk().items()}
    texts["validator_rules.md"] = texts.pop("sdk/validator_rules.md")
    texts["SKILL.md"], texts["TASK.md"] = briefing.skill(), briefing.opening(brief, 1) + "\n" + DELIVERY
    for name, text in texts.items():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_text(text, "utf-8")
    for name, path in ArchiveFiles(brief.archive.folder).files():
        if path.stat().st_size > LARGEST_COPIED:
            continue
        (copy / "archive" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy / "archive" / name)
    (copy / "candidates").mkdir()
    (copy / "tmp").mkdir()


async def _collect(copy: Path, bench: Workbench, count: int) -> list[str]:
    """Hands the listed candidates in; returns why others were dropped."""
    try:
        listed = json.loads(_content(copy, "candidates.json", MAX_LIST))
        if not isinstance(listed, list):
            return ["candidates.json is not a list"]
    except (OSError, ValueError, RecursionError) as error:
        return [f"candidates.json cannot be read: {error}"]
    dropped = [f"{len(listed) - MAX_LISTED} more are not looked at"] if len(listed) > MAX_LISTED else []
    for item in listed[:MAX_LISTED]:
        if bench.full:
            break
        said: dict[str, Any] = item if isinstance(item, dict) else {}
        file = said.get("file") or f"{said.get('name')}.py"
        try:
            if not isinstance(file, str) or not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,80}\.py", file):
                raise ToolError("its file name is not a plain one that ends in .py")
            source = _content(copy, f"candidates/{file}", MAX_SOURCE).decode("utf-8")
            if redacted(source) != source:
                raise ToolError("its source holds a secret of the environment")
            parent = {"parent": said["parent"]} if said.get("parent") else {}
            kept = {name: _without_secrets(said.get(name)) for name in ("name", "hypothesis", "axis", "changes")}
            bench.take(await bench.submit({**kept, **parent, "source": source}))
        except (ToolError, OSError, UnicodeDecodeError) as error:
            dropped.append(f"dropped {file!r:.80}: {str(error)[:2000]}")
    return dropped


def _content(copy: Path, name: str, limit: int) -> bytes:
    """Reads a plain file of the copy, following no link on the way.

    Raises:
        OSError: It is missing, no plain file, or larger than the limit.
    """
    *folders, last = name.split("/")
    folder = os.open(copy, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    for part in folders:
        try:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
        finally:
            os.close(folder)
        folder = inner
    try:
        descriptor = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    finally:
        os.close(folder)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size > limit:
            raise OSError(f"{name} is no plain file of at most {limit} bytes")
        return file.read(limit)


def _without_secrets(said: Any) -> Any:
    return redacted(said) if isinstance(said, str) else said


def _packages() -> list[Path]:
    """Returns where this package lies: it generates problems with their answers, and embeds others."""
    root = Path(whale_env.__file__).resolve().parent.parent
    return [path for name in (*PACKAGES, *COPIES) if (path := root / name).exists() and _ours(path)]


def _ours(path: Path) -> bool:
    """Tells this project's folders from others of such names, which an installed package lies beside."""
    return path.name in PACKAGES[:5] or (path.parent / "pyproject.toml").is_file()


def _caches() -> list[Path]:
    """Returns where downloaded data sets are kept."""
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    return [Path(home).expanduser().resolve()]


def _keep_apart(what: str, granted: Sequence[Path], hidden: Sequence[Path]) -> None:
    """Checks that nothing hidden lies in what is granted, nor around it.

    Raises:
        ProposerSetupError: It does.
    """
    for grant in granted:
        tree = grant.resolve()
        for path in hidden:
            if path.is_relative_to(tree) or tree.is_relative_to(path):
                raise ProposerSetupError(
                    f"the proposer's command may not {what} {grant}: {path} is there, which holds answers or scores; "
                    f"grant (--search.proposer.{what}) only where the command itself is installed, in a folder "
                    "or virtual environment of its own"
                )


def _cost(copy: Path, seconds: float) -> ProposerCost:
    try:
        told = json.loads(_content(copy, "usage.json", MAX_LIST))
    except (OSError, ValueError, RecursionError):
        told = {}
    told = told if isinstance(told, dict) else {}

    def number(name: str) -> float:
        value = told.get(name, 0)
        plain = isinstance(value, (int, float)) and not isinstance(value, bool)
        return float(value) if plain and math.isfinite(value) and 0 <= value < 1e12 else 0.0

    tokens = [int(number(name)) for name in ("input_tokens", "cached_tokens", "output_tokens")]
    return ProposerCost(1, tokens[0], tokens[1], tokens[2], number("usd"), seconds)


def _restored(data: dict[str, Any]) -> Proposed:
    candidates = tuple(Proposal(**candidate) for candidate in data["candidates"])
    return Proposed(candidates, ProposerCost(**data["cost"]), data["ended"])
