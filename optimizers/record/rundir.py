"""A run's directory: atomic files, append-only logs, and the journal that makes every run resumable.

The journal holds one line per finished unit of work and its result, so an optimiser is written as straight code over
units, and a resumed run walks through the same code. Logs written by a
unit that never finished are cut back when the run is opened again; the ledger is not, since what was spent stays spent.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from harness_sdk.sandbox import confinement
from whale_env.errors import WhaleError
from whale_env.http_json import holds_login, without_login
from whale_env.json_lines import append_lines, cut_torn_line, read_lines

JOURNAL = "journal.jsonl"
LEDGER = "ledger.jsonl"
METRICS = "metrics.jsonl"
LOCK = "lock"


class RunDirError(WhaleError):
    """A run directory cannot be made or used; one line that says why and what to do."""


class RunDir:
    """One run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._done: dict[str, dict[str, Any]] = {}
        self._new = False
        self._folders: list[Path] = []

    @classmethod
    def open(cls, path: Path, config: Mapping[str, Any], *, resume: bool) -> RunDir:
        """Makes a new run directory, or opens one again.

        Args:
            path: Where it is.
            config: The complete configuration, JSON data.
            resume: Whether to go on with what is there.

        Raises:
            RunDirError: It exists and ``resume`` was not asked for, it does not exist but was to be resumed, it holds
                another configuration or links, it cannot be written, or the configuration holds a password.
        """
        run = cls(path)
        wanted = json.loads(json.dumps(config))
        for name, value in _leaves(wanted).items():
            if holds_login(str(value)):
                raise RunDirError(
                    f"{name} holds an address with a user name or password ({without_login(str(value))} without it), "
                    "which the run's files would keep; give a key in the environment instead"
                )
        with run.guarded():
            if not resume:
                if path.exists() and any(item.name != LOCK for item in path.iterdir()):
                    raise RunDirError(f"{path} is not empty; give --resume to go on with it, or another --out")
                run._new, run._folders = True, [folder for folder in (path, *path.parents) if not folder.exists()]
                try:
                    path.mkdir(parents=True, exist_ok=True)
                    run.write_json("environment.json", _environment())
                    run.write_json("config.json", wanted)
                    (path / JOURNAL).touch()
                except BaseException:
                    run.discard()
                    raise
                return run
            if not (path / "config.json").is_file():
                raise RunDirError(f"{path} holds no run (no config.json); leave --resume out to begin one")
            require_plain(path)
            stored = json.loads((path / "config.json").read_text("utf-8"))
            here, there = _leaves(wanted), _leaves(stored)
            different = sorted(key for key in here | there if here.get(key) != there.get(key))
            if different:
                key, more = different[0], f" (and {len(different) - 1} more)" if len(different) > 1 else ""
                what = f"{key} is {there.get(key)!r} there, {here.get(key)!r} here{more}"
                raise RunDirError(f"{path} is a run of another config: {what}")
            run._replay()
        return run

    def discard(self) -> None:
        """Removes what `open` made and all that came into it; a folder that was there before stays.

        For a run that failed before it finished anything, so that the next try finds no remains. A run that was opened
        again stays as it is.
        """
        if not self._new:
            return
        for item in self.path.iterdir() if self.path.is_dir() else ():
            if item.name == LOCK:  # of who holds it
                continue
            if item.is_dir() and not item.is_symlink():
                shutil.rmtree(item, ignore_errors=True)
            else:
                item.unlink(missing_ok=True)
        for folder in self._folders:
            with contextlib.suppress(OSError):
                folder.rmdir()

    def result(self, key: str) -> Any:
        """Returns what a finished unit gave.

        Raises:
            KeyError: It is not finished.
        """
        return self._done[key]["result"]

    def finish(self, key: str, result: Any, seconds: float) -> Any:
        """Journals a unit of work as finished.

        Args:
            key: Its name, unique in the run.
            result: JSON data.
            seconds: How long it took.

        Returns:
            The result as JSON gives it back, so that a fresh and a resumed run go on with equal values.
        """
        with self.guarded():
            sizes = {str(p.relative_to(self.path)): p.stat().st_size for p in self.path.rglob("*.jsonl")}
            line = {
                "key": key,
                "time": time.time(),
                "seconds": seconds,
                "peak_mb": peak_mb(),
                "result": result,
                "sizes": sizes,
            }
            record: dict[str, Any] = json.loads(json.dumps(line))
            append_lines(self.path / JOURNAL, [record], sync=True)
        self._done[key] = record
        return record["result"]

    def done(self, prefix: str = "") -> list[str]:
        """Returns the keys of finished units that begin so, in order."""
        return [key for key in self._done if key.startswith(prefix)]

    def seconds(self) -> float:
        """Returns how long all finished units took together."""
        return float(sum(record["seconds"] for record in self._done.values()))

    def append(self, name: str, record: Mapping[str, Any]) -> None:
        """Appends one line to a log."""
        with self.guarded():
            append_lines(self.path / name, [record])

    def write_json(self, name: str, data: Any) -> None:
        """Replaces a JSON file atomically."""
        self.write_text(name, json.dumps(data, indent=2, ensure_ascii=False) + "\n")

    def write_text(self, name: str, text: str) -> None:
        """Replaces a text file atomically."""
        target = self.path / name
        with self.guarded():
            target.parent.mkdir(parents=True, exist_ok=True)
            scratch = target.with_name(f".{target.name}.tmp")
            try:
                scratch.unlink(missing_ok=True)
                with scratch.open("x", encoding="utf-8", errors="backslashreplace") as file:  # follows no link
                    file.write(text)
                scratch.replace(target)
            finally:
                scratch.unlink(missing_ok=True)

    @contextlib.contextmanager
    def folder(self, name: str) -> Iterator[Path]:
        """Yields a scratch folder that becomes ``name`` when all went well, and vanishes otherwise."""
        target = self.path / name
        scratch = target.with_name(f".{target.name}.tmp")
        with self.guarded():
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir(parents=True)
            try:
                yield scratch
                shutil.rmtree(target, ignore_errors=True)
                scratch.replace(target)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Turns what the file system refuses (a full disk, missing rights) into a `RunDirError`."""
        try:
            yield
        except OSError as error:
            what = f" ({error.filename})" if error.filename else ""
            hint = "; what is finished is kept, give --resume when there is room" if error.errno in (28, 122) else ""
            raise RunDirError(f"cannot write to {self.path}: {error.strerror or error}{what}{hint}") from error
        except RuntimeError as error:  # safetensors and torch report a full disk so
            if "No space left" in str(error) or "write" in str(error).lower():
                raise RunDirError(f"cannot write to {self.path}: {str(error).splitlines()[0]}") from error
            raise

    def _replay(self) -> None:
        """Reads the journal and cuts the other logs back to where the last finished unit left them."""
        records = list(read_lines(self.path / JOURNAL))
        self._done = {record["key"]: record for record in records}
        whole = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        if (self.path / JOURNAL).read_bytes() != whole.encode("utf-8", "backslashreplace"):
            self.write_text(JOURNAL, whole)
        sizes = records[-1]["sizes"] if records else {}
        for path in self.path.rglob("*.jsonl"):
            name = str(path.relative_to(self.path))
            if name == JOURNAL:
                continue
            if name == LEDGER:
                cut_torn_line(path)
            elif path.stat().st_size > sizes.get(name, 0):
                with path.open("r+b") as file:
                    file.truncate(sizes.get(name, 0))


def require_plain(path: Path) -> None:
    """Checks that nothing in a run directory leads out of it: others may have written there.

    A log that has another name elsewhere (a hard link) is written anew, so that appending and cutting change this one.

    Args:
        path: The directory. It may itself be a link.

    Raises:
        RunDirError: It holds a symbolic link, or something that is neither a file nor a folder.
    """
    for folder, folders, files in os.walk(path):
        for item in (Path(folder, name) for name in (*folders, *files)):
            found = item.lstat()
            if stat.S_ISLNK(found.st_mode) or not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
                what = "a link" if stat.S_ISLNK(found.st_mode) else "no plain file"
                raise RunDirError(f"{item} is {what}, which no run makes; look where it comes from, and remove it")
            if stat.S_ISREG(found.st_mode) and found.st_nlink > 1 and item.suffix in (".jsonl", ".ndjson"):
                scratch = item.with_name(f".{item.name}.tmp")
                scratch.unlink(missing_ok=True)
                with item.open("rb") as old, scratch.open("xb") as new:
                    shutil.copyfileobj(old, new)
                scratch.replace(item)


def _leaves(data: Any, name: str = "") -> dict[str, Any]:
    """Returns what a nested object holds by dotted name."""
    if not isinstance(data, dict) or (name and not data):
        return {name: data}
    return {key: leaf for part in data for key, leaf in _leaves(data[part], f"{name}.{part}".lstrip(".")).items()}


def peak_mb() -> int:
    """Returns the most memory this process has held so far, in MB (0 where the system does not tell)."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak // 1_000_000 if sys.platform == "darwin" else peak * 1024 // 1_000_000


def _environment() -> dict[str, Any]:
    names = ("torch", "transformers", "gymnasium", "chess", "numpy", "sympy", "vllm", "whale-rl")
    versions = {}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    git = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "versions": versions,
        "commit": git.stdout.strip() or None,
        "confinement": asdict(confinement()),  # where it is not available, candidates ran uncaged or not at all
    }
