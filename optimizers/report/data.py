"""What a report is made from, read from a run directory, finished or not."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optimizers.record.ledger import booked
from optimizers.record.rundir import JOURNAL, LEDGER, METRICS
from whale_env.errors import InputError
from whale_env.json_lines import read_lines


class ReportError(InputError):
    """No report can be written; one line that says why and what to do."""


@dataclass(frozen=True, slots=True)
class RunData:
    """What a report is made from.

    Attributes:
        config: The configuration.
        result: The result, or None while the run is not finished.
        units: Results of finished units by key, in order.
        seconds: How long they took together.
        metrics: Lines of ``metrics.jsonl``.
        ledger: Lines of ``ledger.jsonl``.
        metas: What is known of each harness, by id.
        summary: Lines of the archive's ``evolution_summary.jsonl``.
        accepted: Id of the harness that is accepted now, if any is known.
        source: Its source.
    """

    config: Mapping[str, Any]
    result: Mapping[str, Any] | None
    units: Mapping[str, Any]
    seconds: float
    metrics: Sequence[Mapping[str, Any]]
    ledger: Sequence[Mapping[str, Any]]
    metas: Mapping[str, Mapping[str, Any]]
    summary: Sequence[Mapping[str, Any]]
    accepted: str | None
    source: str

    @classmethod
    def read(cls, path: Path) -> RunData:
        """Reads a run directory.

        Raises:
            ReportError: It is none.
        """
        if not (path / "config.json").is_file() or not (path / JOURNAL).is_file():
            raise ReportError(f"{path} holds no run (no config.json and {JOURNAL}); give a run directory")
        journal = _lines(path / JOURNAL)
        units = {line["key"]: line["result"] for line in journal}
        metas = {
            file.parent.name: json.loads(file.read_text("utf-8"))
            for file in sorted((path / "harnesses").glob("*/meta.json"))
        }
        result = json.loads((path / "result.json").read_text("utf-8")) if (path / "result.json").is_file() else None
        metrics = _lines(path / METRICS)
        scores = [unit["accepted"] for key, unit in units.items() if key.endswith("/score")]
        used = [line["harness"] for line in metrics if "step" in line]
        accepted = result["harness"] if result else next(iter([*scores[-1:], *used[-1:], *list(metas)[:1]]), None)
        file = path / "harnesses" / str(accepted) / "harness.py"
        return cls(
            config=json.loads((path / "config.json").read_text("utf-8")),
            result=result,
            units=units,
            seconds=sum(line["seconds"] for line in journal),
            metrics=metrics,
            ledger=booked(_lines(path / LEDGER)),
            metas=metas,
            summary=_lines(path / "harnesses" / "evolution_summary.jsonl"),
            accepted=accepted,
            source=file.read_text("utf-8") if file.is_file() else "",
        )

    def name(self, harness_id: str | None) -> str:
        """Returns what a harness is called."""
        meta = self.metas.get(harness_id or "", {})
        return str(meta.get("name") or harness_id or "none")

    @property
    def evaluations(self) -> list[tuple[str, Mapping[str, Any]]]:
        """The finished evaluations on the test split, in order, by name."""
        prefix = "evaluation/"
        return [(key.removeprefix(prefix), row) for key, row in self.units.items() if key.startswith(prefix)]

    def floor(self, harness: str) -> float | None:
        """What a harness earns with policies that know nothing; None where it was not measured."""
        found: float | None = self.units.get(f"floor/{harness}", {}).get("floor")
        return found


def _lines(path: Path) -> list[dict[str, Any]]:
    return list(read_lines(path)) if path.is_file() else []
