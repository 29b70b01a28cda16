"""The Python source behind a harness: of a file, of a module's class, of a class defined in a script or notebook cell.

A source's hash is the harness's id, so it is read one way here, for every way of loading. Nothing is imported or run.
"""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from harness_sdk.harness import Harness


def read_source(path: Path) -> str:
    """Returns a file's source.

    Raises:
        OSError: The file cannot be read.
        UnicodeDecodeError: It is not UTF-8.
    """
    return without_mark(path.read_text("utf-8"))


def without_mark(source: str) -> str:
    """Returns a source without the byte order mark that some editors write before it, and that is no part of it."""
    return source.removeprefix("\ufeff")


def class_source(harness: type[Harness]) -> str:
    """Returns the source that stands for a harness class.

    Args:
        harness: The class.

    Returns:
        Its file's whole text if it can be imported from there; for a class of a script, a notebook cell or a function,
        its own text, after that of the classes like it that it extends.

    Raises:
        OSError: There is none, as for a class made with ``exec`` or typed at Python's prompt.
    """
    if _importable(harness):
        return inspect.getsource(sys.modules[harness.__module__])
    own = [kind for kind in reversed(harness.__mro__) if issubclass(kind, Harness) and not _importable(kind)]
    return "\n\n".join(_own_text(kind) for kind in own)


def _importable(kind: type) -> bool:
    module = sys.modules.get(kind.__module__)
    return kind.__module__ != "__main__" and getattr(module, kind.__qualname__, None) is kind


def _own_text(kind: type) -> str:
    for name in _files(kind):
        lines = linecache.getlines(name)
        for node in _classes(lines, kind.__qualname__.rpartition(".")[2]):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first <= (_first_line(kind) or first) <= (node.end_lineno or first):
                return textwrap.dedent("".join(lines[first - 1 : node.end_lineno]))
    raise OSError(f"no source of {kind.__qualname__} is at hand")


def _files(kind: type) -> Iterator[str]:
    """Yields where a class's text may stand: where its methods do, else its module's file or one of the cells."""
    codes = [value.__code__ for value in vars(kind).values() if inspect.isfunction(value)]
    if codes:
        yield codes[0].co_filename
        return
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    if file:
        yield file
    yield from reversed([name for name, entry in linecache.cache.items() if len(entry) > 1 and entry[1] is None])


def _first_line(kind: type) -> int | None:
    """Returns a line that is surely within the class, where it has a method; a text may define its name twice."""
    return next((value.__code__.co_firstlineno for value in vars(kind).values() if inspect.isfunction(value)), None)


def _classes(lines: list[str], name: str) -> list[ast.ClassDef]:
    """Returns the classes of a name in a text, the last one first."""
    try:
        nodes = list(ast.walk(ast.parse("".join(lines))))
    except SyntaxError:  # a cell with the notebook's own commands in it
        return []
    found = [node for node in nodes if isinstance(node, ast.ClassDef) and node.name == name]
    return sorted(found, key=lambda node: -node.lineno)
