"""Slices of tasks: seeded, in proportion to the sources, the same for all who take them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from whale_env.datasets import load
from whale_env.slices import task_slice
from whale_env.types import Task


def tasks(**sizes: int) -> list[Task]:
    return [Task(f"{source}-{n}", "math", "test", {}, source) for source, size in sizes.items() for n in range(size)]


@pytest.mark.parametrize(("count", "shares"), [(10, (6, 3, 1)), (100, (60, 30, 10)), (5, (3, 1, 1))])
def test_sources_come_in_proportion(count: int, shares: tuple[int, int, int]) -> None:
    found = Counter(task.source for task in task_slice(tasks(a=600, b=300, c=100), count, 0))
    assert all(abs(found[name] - share) <= 1 for name, share in zip("abc", shares, strict=True)), found
    assert found.total() == count


def test_a_slice_is_a_seeded_sample_and_not_the_first() -> None:
    every = tasks(a=1000)
    first = task_slice(every, 100, 0)
    assert first == task_slice(every[::-1], 100, 0), "the order of the file decides nothing"
    assert {task.id for task in first} != {task.id for task in every[:100]}
    assert {task.id for task in first} != {task.id for task in task_slice(every, 100, 1)}
    assert list(task_slice(every, 200, 0))[:100] == list(first), "a larger slice begins with the smaller one"


def test_all_tasks_keep_their_order() -> None:
    every = tasks(a=3, b=2)
    assert task_slice(every, 0, 7) == task_slice(every, 5, 7) == task_slice(every, 9, 7) == every


def test_tasks_carry_their_source(tmp_path: Path) -> None:
    own, mixed = tmp_path / "aime.jsonl", tmp_path / "mixed.jsonl"
    own.write_text(json.dumps({"problem": "What is 1 + 1?", "answer": "2"}) + "\n")
    mixed.write_text(json.dumps({"problem": "What is 1 + 2?", "answer": "3", "data_source": "dapo"}) + "\n")
    assert load(own, domain="math")[0].source == "aime"
    assert load(mixed, domain="math")[0].source == "dapo"
    task = load(own, domain="math")[0]
    assert Task.from_json(task.to_json()) == task
