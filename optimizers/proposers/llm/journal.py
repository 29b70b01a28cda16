"""The journal of one conversation: append-only lines, so that a killed run goes on where it was.

A call that is in it is never paid again. The file ends in ``.ndjson``: a resumed run cuts ``.jsonl`` logs back to its
last finished unit of work, and what was said to a model in an unfinished one must stay.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Journal:
    """Reads and appends the records of one conversation."""

    def __init__(self, path: Path) -> None:
        """Opens a journal, or begins one; a torn last line is cut off.

        Args:
            path: The file.

        Raises:
            ValueError: A line in the middle is damaged.
        """
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        data = path.read_bytes() if path.is_file() else b""
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            with path.open("r+b") as file:
                file.truncate(len(whole))
        self.records: list[dict[str, Any]] = []
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                self.records.append(json.loads(line))
            except ValueError as error:
                raise ValueError(f"{path}:{number} is damaged: {error}; remove the file to begin anew") from None

    def append(self, record: Mapping[str, Any]) -> None:
        """Adds a record, and has it on disk before anything else happens."""
        line = json.dumps(record) + "\n"
        with self._path.open("a", encoding="ascii") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self.records.append(dict(record))
