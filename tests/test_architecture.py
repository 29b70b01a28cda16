"""The walls between packages: who may import whom."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ORDER = ["whale_env", "harness_sdk", "reference_harnesses", "optimizers", "benchmarks"]
ROOT = Path(__file__).parents[1]


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("package", ORDER)
def test_nothing_imports_against_the_arrow(package: str) -> None:
    later = set(ORDER[ORDER.index(package) + 1 :])
    wrong = {str(path): imported(path) & later for path in (ROOT / package).rglob("*.py") if imported(path) & later}
    assert not wrong


@pytest.mark.parametrize("package", ["optimizers", "benchmarks"])
def test_harnesses_are_reached_by_reference(package: str) -> None:
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("reference_harnesses"):
                assert {alias.name for alias in node.names} <= {"BASELINES", "STRONG"}, path


def test_files_say_what_they_are_for() -> None:
    silent = [
        str(path)
        for package in ORDER
        for path in (ROOT / package).rglob("*.py")
        if not ast.get_docstring(ast.parse(path.read_text("utf-8")))
    ]
    assert not silent
