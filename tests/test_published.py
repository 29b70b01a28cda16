"""The published data sets, split: on stand-in files of the paper's sizes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from whale_env import published
from whale_env.datasets import main
from whale_env.errors import InputError
from whale_env.published import RECIPES, get, source_of_folder
from whale_env.registry import handle
from whale_env.rows import DatasetError
from whale_env.types import SPLITS


def write(path: Path, rows: list[dict[str, object]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def math_files(folder: Path, count: int = 17_917 + 256) -> dict[str, str]:
    pool = [{"problem": f"What is {n} + 1?", "answer": str(n + 1)} for n in range(count)]
    tests = {
        f"aime{year}": write(
            folder / f"{year}.jsonl", [{"problem": f"AIME {year}-{n}?", "answer": str(n)} for n in range(30)]
        )
        for year in (24, 25)
    }
    leaked: list[dict[str, object]] = [{"problem": "aime 24-3?", "answer": "3"}]
    return {"dapo-math-17k": write(folder / "pool.jsonl", [*pool, *pool[:500], *leaked]), **tests}


def test_math_is_split_as_published(tmp_path: Path) -> None:
    out = tmp_path / "data"
    manifest = get("math", out, math_files(tmp_path))
    assert {split: facts["tasks"] for split, facts in manifest["splits"].items()} == {
        "train": 17_917,
        "search": 256,
        "test": 60,
    }
    assert manifest["splits"]["test"]["sources"] == {"aime24": 30, "aime25": 30}
    env = handle("math", {"source": source_of_folder(out)})
    tasks = {split: env.tasks(split) for split in SPLITS}
    assert [len(tasks[split]) for split in SPLITS] == [17_917, 256, 60]
    assert len({task.id for split in SPLITS for task in tasks[split]}) == 17_917 + 256 + 60
    assert {task.source for task in tasks["test"]} == {"aime24", "aime25"}


def test_searchqa_is_split_as_published(tmp_path: Path) -> None:
    recipe = RECIPES["searchqa"]
    files = {
        name: write(tmp_path / f"{name}.jsonl", [{"question": f"{name} {n}?", "answer": f"a{n}"} for n in range(20)])
        for name in recipe.tests
    }
    pool: list[dict[str, object]] = [
        {"question": f"Who is {n}?", "answer": f"a{n}", "data_source": "nq" if n % 4 else "hotpotqa"}
        for n in range(20_000)
    ]
    files["search-r1"] = write(tmp_path / "pool.jsonl", pool)
    splits = get("searchqa", tmp_path / "data", files)["splits"]
    assert [splits[split]["tasks"] for split in SPLITS] == [18_946, 256, 140]
    assert splits["search"]["sources"] == {"nq": 192, "hotpotqa": 64}
    assert len(splits["test"]["sources"]) == 7


def test_chess_is_split_by_plies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from whale_env.chess.puzzles import EMBEDDED

    small = published.Recipe("lichess", (), {"test": 8, "search": 8, "train": 64})
    monkeypatch.setattr(published, "RECIPES", {"chess": small})
    manifest = get("chess", tmp_path, {"lichess": str(EMBEDDED)})
    assert [manifest["splits"][split]["tasks"] for split in SPLITS] == [64, 8, 8]
    env = handle("chess", {"source": source_of_folder(tmp_path)})
    assert [len(env.tasks(split)) for split in SPLITS] == [64, 8, 8]
    assert RECIPES["chess"].sizes == {"test": 256, "search": 256, "train": 16_384}


def test_what_is_there_stays_and_what_is_damaged_is_made_again(tmp_path: Path) -> None:
    files, out = math_files(tmp_path), tmp_path / "data"
    first = get("math", out, files)
    assert get("math", out, {"aime24": "gone.jsonl"}) == first, "nothing is read again"
    (out / "search.jsonl.zst").write_bytes(b"torn")
    assert get("math", out, files) == first


def test_errors_say_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["get", "maths", "--out", str(tmp_path / "x")]) == 2
    assert "math" in capsys.readouterr().err
    with pytest.raises(InputError, match="Did you mean"):
        get("math", tmp_path / "x", {"aime2024": "a.jsonl"})
    with pytest.raises(DatasetError, match="Is the copy complete"):
        get("math", tmp_path / "x", math_files(tmp_path, 1000))
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        get("math", tmp_path / "file" / "under", {})
    assert main(["args", str(tmp_path)]) == 2


def test_a_download_without_network_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="Is there a network"):
        published.download("http://127.0.0.1:9/none", tmp_path / "a.zst")
