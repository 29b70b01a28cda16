"""What a proposer may read of a run: the archive's folder, a page at a time.

Nothing else of the run directory is shown: trajectories of evaluations lie beside it. Links are not followed.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

PAGE = 20_000
"""Characters of a file in one page."""
ENTRIES = 200
"""Names in one page."""
HITS = 100
"""Lines found in one page."""
WIDTH = 300
"""Characters of a found line."""
SEARCH_SECONDS = 20.0


class FileError(ValueError):
    """What was asked for cannot be shown; the message says why."""


class ArchiveFiles:
    """The files of an archive, read-only."""

    def __init__(self, root: Path) -> None:
        """Takes the archive's folder."""
        self._root = root.resolve()

    def list_files(self, path: str = "", offset: int = 0) -> str:
        """Lists a folder, with sizes.

        Args:
            path: The folder, relative to the archive.
            offset: Names to skip.

        Raises:
            FileError: There is no such folder.
        """
        folder = self._resolve(path)
        if not folder.is_dir():
            raise FileError(f"{path!r} is a file; use read_file")
        names = [p for p in sorted(folder.iterdir()) if self._shown(p)]
        shown = names[offset : offset + ENTRIES]
        lines = [f"{p.name}/" if p.is_dir() else f"{p.name}  {p.stat().st_size:,} bytes" for p in shown]
        rest = len(names) - offset - len(shown)
        return "\n".join(lines or ["(empty)"]) + (f"\n… {rest} more; offset={offset + ENTRIES}" if rest > 0 else "")

    def read_file(self, path: str, offset: int = 0) -> str:
        """Returns a page of a file.

        Args:
            path: The file, relative to the archive.
            offset: Bytes to skip.

        Raises:
            FileError: There is no such file.
        """
        target = self._resolve(path)
        if target.is_dir():
            raise FileError(f"{path!r} is a folder; use list_files")
        size = target.stat().st_size
        with target.open("rb") as file:
            file.seek(offset)
            text = file.read(PAGE).decode("utf-8", "replace")
        end = min(size, offset + PAGE)
        return text + (f"\n… {size - end:,} bytes more; offset={end}" if end < size else "")

    async def grep(self, pattern: str, path: str = "", offset: int = 0) -> str:
        """Searches a file, or all files below a folder, line by line.

        Args:
            pattern: A regular expression.
            path: Where to search, relative to the archive.
            offset: Found lines to skip.

        Raises:
            FileError: There is no such path, the pattern is not valid, or the search takes too long.
        """
        try:
            re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise FileError(f"{pattern!r:.200} is not a regular expression: {error}") from None
        paths = [str(p) for p in self._below(self._resolve(path))]
        request = {"pattern": pattern, "paths": paths, "most": offset + HITS + 1, "width": WIDTH}
        program = str(Path(__file__).with_name("grep.py"))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", program),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(SEARCH_SECONDS):
                answer, _ = await process.communicate(json.dumps(request).encode())
        except TimeoutError:
            raise FileError(f"the search took over {SEARCH_SECONDS:g} s; simplify the pattern or name a file") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        found = json.loads(answer or b"[]")
        shown = found[offset : offset + HITS]
        lines = [f"{Path(paths[i]).relative_to(self._root)}:{number}: {line}" for i, number, line in shown]
        more = f"\n… more; offset={offset + HITS}" if len(found) > offset + HITS else ""
        return "\n".join(lines or ["(nothing found)"]) + more

    def files(self) -> Iterator[tuple[str, Path]]:
        """Yields all files by their paths in the archive."""
        for path in self._below(self._root):
            yield str(path.relative_to(self._root)), path

    def _below(self, start: Path) -> Iterator[Path]:
        if start.is_file():
            yield start
            return
        for path in sorted(start.iterdir()):
            if self._shown(path):
                yield from self._below(path)

    def _shown(self, path: Path) -> bool:
        return not path.name.startswith(".") and not path.is_symlink() and (path.is_dir() or path.is_file())

    def _resolve(self, path: str) -> Path:
        current = self._root
        for part in Path(path.strip().lstrip("/") or ".").parts:
            following = current / part
            if part == ".." or "\0" in part or len(part) > 255 or not self._shown(following):
                names = [p.name for p in current.iterdir() if self._shown(p)] if current.is_dir() else []
                near = difflib.get_close_matches(part, names, n=1)
                hint = f" Did you mean {str((current / near[0]).relative_to(self._root))!r}?" if near else ""
                raise FileError(f"the archive holds no {path!r:.200}.{hint} list_files shows what there is")
            current = following
        return current
