"""Append-only logs: one JSON record a line, in a file whose writer may be killed at any moment.

A line that is there whole stays as it is. A torn last line is left out when the log is read, and cut off before more
is appended. Who may write, and what a record means, is the caller's business.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from whale_env.errors import InputError


class DamagedLogError(InputError):
    """A line of a log, and not a torn last one, is no JSON: the file was changed by others."""


def append_lines(path: str | Path, records: Iterable[Any], *, sync: bool = False) -> None:
    """Appends records to a log; its folder is made where it is missing.

    Args:
        path: The file.
        records: JSON data. A lone surrogate, which UTF-8 cannot hold, becomes its JSON escape.
        sync: Whether all is on the disk before this returns.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8", errors="backslashreplace") as file:
        for record in records:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
        if sync:
            file.flush()
            os.fsync(file.fileno())


def read_lines(path: str | Path) -> Iterator[Any]:
    """Reads the records of a log; a last line that is no JSON was torn and is left out, and so are empty ones.

    Raises:
        DamagedLogError: A line before the last one is no JSON.
    """
    return (record for _, record in numbered_lines(path))


def numbered_lines(path: str | Path) -> Iterator[tuple[int, Any]]:
    """Reads as `read_lines` does, and yields with each record the number of its line, from 1.

    Raises:
        DamagedLogError: A line before the last one is no JSON.
    """
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    record = json.loads(line)
                except (ValueError, RecursionError) as error:
                    if not file.peek(1):
                        return
                    raise DamagedLogError(f"{path}:{number} is damaged: {error}") from None
                yield number, record


def cut_torn_line(path: str | Path) -> None:
    """Cuts off what stands behind the last line break of a log: a record whose writing was never finished."""
    with Path(path).open("r+b") as file:
        end = size = file.seek(0, os.SEEK_END)
        while end:  # from the end, by blocks: a log may be long
            start = max(end - (1 << 16), 0)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                end = start + found + 1
                break
            end = start
        if end < size:
            file.truncate(end)
