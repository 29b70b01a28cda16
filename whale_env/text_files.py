"""Data files as lines of text, whole or not at all: plain, gzip and Zstandard, in UTF-8.

A file that is cut off or damaged is an error that names the file and the line, never a shorter data set. `stamp` tells
whether files have changed, for whoever keeps what was made of them. What the lines mean is not known here.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import time
import zlib
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import zstandard

from whale_env.errors import InputError

_BLOCK = 1 << 17
_GZIP = b"\x1f\x8b"
_SETTLED = 2.0  # seconds; a younger file may change again without its time stamp telling
_HASHED = 1 << 28  # bytes; writing more takes longer than the clock of any file system needs for a tick


def read_lines(path: Path, error: type[InputError]) -> Generator[str, None, None]:
    """Reads a file line by line.

    Args:
        path: The file. It is decompressed if its first bytes or its ending say so.
        error: What to raise.

    Yields:
        The lines with their ends (LF, CR LF or CR; no other character ends a line), without a byte order mark.

    Raises:
        error: It ends inside its compressed data, is damaged, or is not UTF-8 text. One line.
        OSError: It cannot be opened or read.
    """
    number = 0
    with path.open("rb") as raw:
        head = raw.read(4)
        raw.seek(0)
        kind = _kind(path, head)
        try:
            for number, line in enumerate(_split(_blocks(raw, kind)), 1):
                yield from _text(path, number, line, error)
        except EOFError:
            why = f"it ends in the middle of its data, after {number} lines"
        except (zstandard.ZstdError, zlib.error, gzip.BadGzipFile) as damage:
            why = " ".join(str(damage).split())
        else:
            return
    raise error(f"{path} is a damaged {kind} file: {why}. Is the download complete? Fetch or write it again.")


def _kind(path: Path, head: bytes) -> str:
    if head.startswith(_GZIP) or path.suffix == ".gz":
        return "gzip"
    # a frame, or one of the frames without content that some writers put first
    if head in (zstandard.FRAME_HEADER, *(bytes((n, 0x2A, 0x4D, 0x18)) for n in range(0x50, 0x60))):
        return "Zstandard"
    return "Zstandard" if path.suffix == ".zst" else "text"


def _blocks(raw: BinaryIO, kind: str) -> Iterator[bytes]:
    match kind:
        case "gzip":
            with gzip.GzipFile(fileobj=raw) as file:
                while block := file.read(_BLOCK):
                    yield block
            if not raw.tell():
                raise EOFError
        case "Zstandard":
            yield from _frames(raw)
        case _:
            while block := raw.read(_BLOCK):
                yield block


def _frames(raw: BinaryIO) -> Iterator[bytes]:
    """Decompresses one or more Zstandard frames.

    Raises:
        EOFError: The file ends inside a frame. (The library's own reader would pass that as the end of the text.)
    """
    frame = zstandard.ZstdDecompressor().decompressobj()
    open_frame = True
    while chunk := raw.read(_BLOCK):
        while chunk:
            yield frame.decompress(chunk)
            open_frame, chunk = not frame.eof, b""
            if frame.eof:
                chunk = frame.unused_data
                frame = zstandard.ZstdDecompressor().decompressobj()
    if open_frame:
        raise EOFError


def _split(blocks: Iterable[bytes]) -> Iterator[bytes]:
    rest: list[bytes] = []
    for block in blocks:
        *whole, last = block.split(b"\n")
        for line in whole:
            yield b"".join((*rest, line, b"\n"))
            rest.clear()
        rest.append(last)
    if line := b"".join(rest):
        yield line


def _text(path: Path, number: int, line: bytes, error: type[InputError]) -> Iterable[str]:
    try:
        text = line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as refused:
        raise error(
            f"{path}, line {number} is not UTF-8 text: {refused.reason} at byte {refused.start + 1} of the line. "
            "Save the file as UTF-8."
        ) from None
    if "\0" in text:
        raise error(
            f"{path}, line {number} holds a NUL byte: the file is no UTF-8 text, or was damaged while it was written. "
            "Save it as UTF-8, or fetch it again."
        )
    return io.StringIO(text, newline="") if "\r" in text else (text,)


def stamp(*sources: str | Path) -> tuple[object, ...]:
    """Returns a value that is another one as soon as a file has changed, was replaced, or came or went.

    Args:
        sources: Files, directories, or names of something else, which have no stamp of their own.
    """
    return tuple(_stamp(Path(source)) if str(source) else None for source in sources)


def _stamp(path: Path) -> object:
    try:
        if path.is_dir():
            return tuple((file.name, _stamp(file)) for file in sorted(path.iterdir()) if not file.is_dir())
        facts = path.stat()
        found = (facts.st_mtime_ns, facts.st_ctime_ns, facts.st_size, facts.st_ino)
        settled = abs(time.time() - max(facts.st_mtime, facts.st_ctime)) > _SETTLED
        if settled or facts.st_size > _HASHED or not path.is_file():
            return found
        return *found, hashlib.sha256(path.read_bytes()).hexdigest()
    except (OSError, ValueError):
        return None
