"""The report of a run: one self-contained page, of a finished or an unfinished run, and one line when it cannot be."""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

from optimizers.commands.report import main
from optimizers.record.ledger import AgentCost, Ledger, ProposerCost
from optimizers.record.rundir import METRICS, RunDir
from optimizers.report.data import ReportError
from optimizers.report.page import write_report

pytest.importorskip("matplotlib")

SOURCE = "from harness_sdk import Harness\n\n\nclass Best(Harness):\n    system = '<b>&'\n"


def evaluated(mean: float, harness: str, version: int) -> dict[str, Any]:
    rates = {"format": 0.5, "legality": None, "truncated": 0.25, "turns": 1.5, "tokens": 20.0}
    known = {"mean": mean, "low": mean - 0.05, "high": mean + 0.05, "k": 8, "tasks": 32, "unknown": 0}
    return {**known, **rates, "rollouts": 256, "seconds": 9.0, "harness": harness, "weights_version": version}


def recorded(path: Path, *, cycles: int = 2) -> RunDir:
    """A run directory as a run leaves it, without having run."""
    run = RunDir.open(path, {"env": "riddles<1>", "method": "whale", "seed": 7, "model": "tiny"}, resume=False)
    ledger = Ledger(run)
    for name in ("h0", "h1"):
        meta = {
            "id": name,
            "name": f"$Name_{name}$ \u4e2d",
            "axis": "prompt",
            "hypothesis": "<script>alert(1)</script>",
        }
        run.write_json(f"harnesses/{name}/meta.json", {**meta, "cycle": 1, "iteration": 1, "scores": {}})
        run.write_text(f"harnesses/{name}/harness.py", SOURCE)
    run.finish("evaluation/base", evaluated(0.1, "h0", 0), 1.0)
    version = 0
    for cycle in range(1, cycles + 1):
        for _ in range(3):
            version += 1
            ledger.agent(f"weights-{cycle}", AgentCost(64, 0, 90_000, 9_000, 1.0))
            step = {"reward": 0.1 * version, "rollouts": 64, "accepted": version - 1, "updates": int(version > 1)}
            loss = 1 / version if version > 1 else None
            line = {"phase": f"weights-{cycle}", "cycle": cycle, "step": version, "harness": "h0", **step, "loss": loss}
            run.append(METRICS, line)
            run.finish(f"weights/{cycle}/{version}", step, 61.0)
        run.finish(f"evaluation/weights-{cycle}", evaluated(0.1 + 0.2 * cycle, "h0", version), 1.0)
        for iteration in (1, 2):
            harness = f"h{iteration - 1}"
            ledger.proposer(f"harness-{cycle}", ProposerCost(1, 500, 100, 50, 0.25, 3.0))
            score = {"weights_version": version, "reward": 0.3 * iteration, "rollouts": 32, "failures": {"wrong": 3}}
            line = {"phase": f"harness-{cycle}", "cycle": cycle, "iteration": iteration, "harness": harness, **score}
            run.append(METRICS, line)
            run.finish(f"harness/{cycle}/{iteration}/score", {"accepted": harness, "best": 0.3 * iteration}, 1.0)
    return run


def finish(run: RunDir) -> None:
    last = {**evaluated(0.6, "h1", 6), "phase": "weights-2"}
    ends = {"base": evaluated(0.1, "h0", 0), "phases": [last], "final": last, "selected": last, "harness": "h1"}
    run.write_json("result.json", ends)


def test_retests_show_what_holds_on_tasks_held_out(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", cycles=1)
    assert "gain held out" not in write_report(run.path).read_text("utf-8")
    test = {"nominee": "h1", "rollouts": 288, "searched": 0.25, "looks": [0.2, 0.0123], "accepted": True}
    for iteration, held in ((3, 0.0625), (4, None)):
        more = {"holdout": held, "overfit": None if held is None else 0.25 - held}
        run.finish(f"harness/1/{iteration}/score", {"accepted": "h1", "best": 0.6, "retest": test | more}, 1.0)
    page = write_report(run.path).read_text("utf-8")
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in page.split("gain held out")[1].split("<tr>")[1:3]]
    assert [row[0] for row in rows] == ["1.3", "1.4"]
    assert rows[0][2:] == ["288", "+0.250", "+0.062", "+0.188", "0.0123", "yes"]
    assert rows[1][4:6] == ["-", "-"]


def test_a_finished_run(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run")
    finish(run)
    path = write_report(run.path)
    page = path.read_text("utf-8")
    assert path == run.path / "report.html" and "riddles&lt;1&gt; · whale · seed 7" in page and "finished" in page
    assert "60.0%" in page and "45.0% to 55.0%" in page and "384" in page
    assert page.count("<svg ") == 4
    labels = re.findall(r'aria-label="([^"]+)"', page)
    assert [label.split()[0] for label in labels] == ["Test", "Mean", "Search", "Rollouts"]
    for svg in re.findall(r"<svg .*?</svg>", page, re.S):
        ElementTree.fromstring(svg)
    assert "4 conversations, 2,000 tokens in" in page and "1.00 USD" in page


def test_the_page_is_self_contained_and_inert(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run")
    page = write_report(run.path).read_text("utf-8")
    assert not re.search(r"<(script|link|img|iframe|object)\b", page)
    assert not re.search(r"""(src|href)=["'](?!#)""", page) and "@import" not in page and "url(http" not in page
    assert "&lt;script&gt;alert(1)" in page and "&lt;b&gt;&amp;" in page


def test_the_same_run_gives_the_same_page(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run")
    assert write_report(run.path).read_bytes() == write_report(run.path).read_bytes()
    assert not [p for p in run.path.iterdir() if "tmp" in p.name]


@pytest.mark.parametrize("lines", [0, 1, 2, 5, 7])
def test_an_unfinished_run(tmp_path: Path, lines: int) -> None:
    run = recorded(tmp_path / "run")
    journal = run.path / "journal.jsonl"
    kept = journal.read_text().splitlines(keepends=True)[:lines]
    journal.write_text("".join(kept) + '{"key": "torn')
    page = write_report(run.path).read_text("utf-8")
    assert ("nothing finished yet" if not lines else f"unit: {json.loads(kept[-1])['key']}") in page
    assert "$Name_h" in page


def test_a_run_that_has_only_begun(tmp_path: Path) -> None:
    run = RunDir.open(tmp_path / "run", {"env": "e", "method": "whale", "seed": 0, "model": "m"}, resume=False)
    page = write_report(run.path).read_text("utf-8")
    assert "nothing finished yet" in page and "<svg" not in page


def test_the_summary_of_the_archive_is_shown(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", cycles=1)
    line = {"cycle": 1, "iteration": 2, "id": None, "name": "Evil", "axis": "parsing", "verdict": "rejected"}
    run.append("harnesses/evolution_summary.jsonl", {**line, "reward": None, "delta": None, "why": "imports os"})
    page = write_report(run.path).read_text("utf-8")
    assert "1 candidates" in page and "rejected" in page and "imports os" in page


def test_what_is_no_run_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    with pytest.raises(ReportError, match="holds no run"):
        write_report(tmp_path)
    run = recorded(tmp_path / "run")
    (run.path / "config.json").write_text("{")
    with pytest.raises(ReportError, match="of another form"):
        write_report(run.path)
    monkeypatch.setattr(sys, "argv", ["report", str(tmp_path / "nowhere")])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2 and capsys.readouterr().err.count("\n") == 1


def test_a_missing_matplotlib_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = recorded(tmp_path / "run")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ReportError, match=r"needs matplotlib: pip install -e '\.\[report\]'"):
        write_report(run.path)
    assert not (run.path / "report.html").exists()


def test_the_command_prints_where_the_page_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = recorded(tmp_path / "run")
    monkeypatch.setattr(sys, "argv", ["report", str(run.path)])
    main()
    assert capsys.readouterr().out == f"{run.path / 'report.html'}\n"
