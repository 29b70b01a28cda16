"""The walls between packages and between the rooms inside them: who may import whom. Lazy imports count like others."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ["whale_env", "harness_sdk", "reference_harnesses", "optimizers", "benchmarks"]
"""Low to high: a package imports those before it, never one after it."""

ROOMS = ["statistics", "config", "record", "archive", "weights", "proposers", "search", "report", "run", "commands"]
"""The rooms of ``optimizers``, low to high; the doors (``python -m optimizers.…``) stand above them all."""

LONGEST = 450
"""Lines of a file."""

LONGER = {
    "whale_env.math.equality.expression": 600,  # one grammar: what is read and how it is read
    "benchmarks.generation": 515,  # one command, top to bottom
    "benchmarks.selection": 455,  # one command, top to bottom
    "benchmarks.vllm_check": 455,  # one command, top to bottom
}
"""The files that may be longer, each with its own limit: one concept that a cut would not make easier to read."""


def modules(package: str) -> dict[str, Path]:
    """Every module of a package by its dotted name."""
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


ALL = {name: path for package in PACKAGES for name, path in modules(package).items()}


def imports(name: str) -> Iterator[str]:
    """The modules of ours that a module imports anywhere in it, but for annotations alone (``TYPE_CHECKING``)."""
    tree = ast.parse(ALL[name].read_text("utf-8"))
    skipped = {
        part
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        for part in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in ALL)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name} imports relatively; name the package"
            module = node.module or ""
            inner = [f"{module}.{alias.name}" for alias in node.names]
            yield from (full for full in inner if full in ALL)
            if module in ALL and any(full not in ALL for full in inner):
                yield module


GRAPH = {name: {other for other in imports(name) if other != name} for name in ALL}


def circles() -> list[list[str]]:
    """Groups of modules that import each other, found by Tarjan's algorithm (1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in GRAPH[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            group = [stack.pop()]
            while group[-1] != name:
                group.append(stack.pop())
            if len(group) > 1:
                found.append(sorted(group))

    for name in GRAPH:
        if name not in index:
            visit(name)
    return found


def test_no_module_imports_in_a_circle() -> None:
    assert circles() == []


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_imports_against_the_arrow(package: str) -> None:
    later = set(PACKAGES[PACKAGES.index(package) + 1 :])
    wrong = {
        f"{name} -> {other}" for name in modules(package) for other in GRAPH[name] if other.partition(".")[0] in later
    }
    assert not wrong


def level(name: str) -> int:
    """How high a module of ``optimizers`` stands."""
    room = name.split(".")[1] if "." in name else ""
    return ROOMS.index(room) if room in ROOMS and not name.endswith("__main__") else len(ROOMS)


def test_no_room_imports_one_above_it() -> None:
    wrong = {
        f"{name} -> {other}"
        for name in modules("optimizers")
        for other in GRAPH[name]
        if other.startswith("optimizers.") and level(other) > level(name)
    }
    assert not wrong


@pytest.mark.parametrize("package", ["optimizers", "benchmarks"])
def test_harnesses_are_reached_by_reference(package: str) -> None:
    wrong = {
        f"{name} -> {other}"
        for name in modules(package)
        for other in GRAPH[name]
        if other.startswith("reference_harnesses.")
    }
    assert not wrong


def test_files_say_what_they_are_for() -> None:
    assert not [name for name, path in ALL.items() if not ast.get_docstring(ast.parse(path.read_text("utf-8")))]


def test_files_are_short_enough_to_read() -> None:
    lines = {name: len(path.read_text("utf-8").splitlines()) for name, path in ALL.items()}
    assert not {name: count for name, count in lines.items() if count > LONGER.get(name, LONGEST)}
    assert not [name for name in LONGER if lines.get(name, 0) <= LONGEST], "no longer long; take it off the list"
