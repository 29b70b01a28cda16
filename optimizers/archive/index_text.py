"""The index of the archive, as text: what to read first, what fails most, what was tried."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optimizers.archive.quoting import MAX_ROWS, cell, left_out, one_line
from optimizers.archive.records import Entry, HarnessScore
from optimizers.archive.rollout_text import folder

MEANINGS: Mapping[str, str] = {
    "format": "the reply could not be read as an action",
    "truncated": "the reply was cut off by its token limit before an action could be read",
    "illegal": "an action was read, but the environment refused it",
    "wrong": "valid actions, but not the right ones",
    "budget": "the limit on turns or tokens came before an end",
    "timeout": "it took too long",
    "harness_error": "the harness's own code failed",
    "harness_violation": "the harness committed something that the model had not said",
}

GUIDE = """## What is where

Paths are relative to this folder.

- `<id>/harness.py`: the source. `<id>/meta.json`: parent, hypothesis, axis, scores by weights version.
- `<id>/diff.md`: which examples flipped against the parent, the source diff, the prompt diff.
- `<id>/trajectories/weights-<version>/<outcome>-<example>-<n>.txt`: one rollout each, the outcome in the name and in
  the header. `<id>/outcomes.jsonl`: all outcomes, a line each. `<id>/trajectories.jsonl`: the same rollouts with ids.
- `evolution_summary.jsonl`: every candidate ever proposed, a line each, rejected ones too; `rejected/`: their sources
  and reports.
"""


@dataclass(frozen=True, slots=True)
class View:
    """What the index is made from.

    Attributes:
        entries: All harnesses, oldest first.
        summary: Lines of ``evolution_summary.jsonl``.
        files: Names of the rollout texts at the current weights, by harness id.
        weights_version: The current weights.
        accepted: Id of the accepted harness.
    """

    entries: Sequence[Entry]
    summary: Sequence[Mapping[str, Any]]
    files: Mapping[str, Sequence[str]]
    weights_version: int
    accepted: str


def index_text(view: View) -> str:
    """Returns the index: what to read first, what fails most, what was tried."""
    version = view.weights_version
    ranked = sorted(
        (e for e in view.entries if version in e.scores), key=lambda e: e.scores[version].rank(), reverse=True
    )
    entries = {entry.id: entry for entry in view.entries}
    accepted = entries[view.accepted]
    score = accepted.scores.get(version)
    first = [f"The accepted harness: `{accepted.id}/harness.py`, {one_line(accepted.name)}, {_summed(score)}."]
    if score and score.failures:
        worst = max(score.failures, key=lambda kind: (score.failures[kind], kind))
        example = _example(view, accepted.id, worst)
        first.append(f"Its commonest failure, {worst}" + (f": `{example}`." if example else "."))
    helped = [line for line in view.summary if line["verdict"] == "accepted" and line.get("diff")]
    if helped:
        first.append(f"What last helped: `{helped[-1]['diff']}`.")
    lines = [
        "# The archive of harnesses",
        "",
        f"{len(view.entries)} harnesses. Weights version {version} is current: only scores at it are ranked.",
        "",
        "## Read first",
        "",
        *(f"{number}. {text}" for number, text in enumerate(first, 1)),
        "",
    ]
    lines += [*_ranking(ranked, view, score), *_failures(view, accepted, score), *_tried(view), *_axes(view)]
    lines += [*_stale(view), GUIDE]
    return "\n".join(lines)


def _ranking(ranked: Sequence[Entry], view: View, incumbent: HarnessScore | None) -> list[str]:
    if not ranked:
        return []
    lines = [
        f"## Best at weights version {view.weights_version}",
        "",
        "| harness | axis | reward | against accepted | turns | tokens | failures | source |",
        "|---|---|---:|---:|---:|---:|---|---|",
    ]
    for entry in ranked[:MAX_ROWS]:
        score = entry.scores[view.weights_version]
        against = "accepted" if entry.id == view.accepted else _signed(score, incumbent)
        lines.append(
            f"| {cell(entry.name)} | {cell(entry.axis)} | {score.reward:.3f} | {against} | {score.turns:.2f} "
            f"| {score.tokens:.1f} | {_kinds(score.failures)} | `{entry.id}/harness.py` |"
        )
    return [*lines, *left_out(len(ranked), "evolution_summary.jsonl"), ""]


def _failures(view: View, accepted: Entry, score: HarnessScore | None) -> list[str]:
    if score is None or not score.rollouts:
        return []
    title = ["## Where the accepted harness fails", ""]
    if not score.failures:
        return [*title, f"Nowhere: all {score.rollouts} rollouts are solved.", ""]
    lines = [*title, "| failure | rollouts | share | meaning | example |", "|---|---:|---:|---|---|"]
    for kind, count in sorted(score.failures.items(), key=lambda item: (-item[1], item[0])):
        example = _example(view, accepted.id, kind)
        path = f"`{example}`" if example else "none kept"
        lines.append(f"| {kind} | {count} | {count / score.rollouts:.0%} | {MEANINGS.get(kind, '')} | {path} |")
    return [*lines, ""]


def _tried(view: View) -> list[str]:
    """Returns what did not help and what was never scored, the newest first."""
    scored = [x for x in view.summary if x["verdict"] == "not accepted"]
    flat = [x for x in reversed(scored) if x["delta"] is None or x["delta"] <= 0]
    lines: list[str] = []
    if flat:
        lines += [
            "## Tried, and did not help",
            "",
            "| harness | axis | against the accepted one then | weights | hypothesis | read |",
            "|---|---|---:|---|---|---|",
        ]
        for x in flat[:MAX_ROWS]:
            stale = "" if x["weights_version"] == view.weights_version else " (stale)"
            delta = "unknown" if x["delta"] is None else f"{x['delta']:+.3f}"
            read = f"`{x['diff']}`" if x.get("diff") else f"`{x['id']}/harness.py`"
            lines.append(
                f"| {cell(x['name'])} | {cell(x['axis'])} | {delta} | {x['weights_version']}{stale} "
                f"| {cell(x['hypothesis'], 160)} | {read} |"
            )
        lines += [*left_out(len(flat), "evolution_summary.jsonl"), ""]
    refused = [x for x in reversed(view.summary) if x["verdict"] == "rejected"]
    if refused:
        lines += ["## Rejected before a rollout", "", "| candidate | why | read |", "|---|---|---|"]
        for x in refused[:MAX_ROWS]:
            lines.append(f"| {cell(x['name'])} | {cell(x['why'], 160)} | `{x['report']}` |")
        lines += [*left_out(len(refused), "evolution_summary.jsonl"), ""]
    return lines


def _axes(view: View) -> list[str]:
    deltas: dict[str, list[float]] = defaultdict(list)
    for x in view.summary:
        if x["verdict"] in ("accepted", "not accepted"):
            deltas[x["axis"]].append(-math.inf if x["delta"] is None else x["delta"])
    if not deltas:
        return []
    lines = ["## Axes", "", "| axis | candidates | accepted | best change when tried |", "|---|---:|---:|---:|"]
    wins = Counter(x["axis"] for x in view.summary if x["verdict"] == "accepted")
    for axis, values in sorted(deltas.items(), key=lambda item: -len(item[1]))[:MAX_ROWS]:
        best = max(values)
        lines.append(
            f"| {cell(axis)} | {len(values)} | {wins[axis]} | {'unknown' if best == -math.inf else f'{best:+.3f}'} |"
        )
    return [*lines, ""]


def _stale(view: View) -> list[str]:
    old = [e for e in view.entries if e.scores and view.weights_version not in e.scores]
    if not old:
        return []
    lines = [
        "## Stale: scored at older weights only",
        "",
        "Not ranked; what failed or worked then may not now.",
        "",
        "| harness | axis | last score | at weights version | source |",
        "|---|---|---:|---:|---|",
    ]
    for entry in old[::-1][:MAX_ROWS]:
        version = max(entry.scores)
        lines.append(
            f"| {cell(entry.name)} | {cell(entry.axis)} | {entry.scores[version].reward:.3f} (stale) | {version} "
            f"| `{entry.id}/harness.py` |"
        )
    return [*lines, *left_out(len(old), "the folders beside this file"), ""]


def _example(view: View, harness_id: str, kind: str) -> str | None:
    name = next((name for name in view.files.get(harness_id, ()) if name.startswith(f"{kind}-")), None)
    return name and f"{harness_id}/{folder(view.weights_version)}/{name}"


def _summed(score: HarnessScore | None) -> str:
    if score is None:
        return "not scored at these weights"
    if not score.rollouts:
        return "score unknown (infrastructure failures only)"
    return f"search reward {score.reward:.3f} over {score.rollouts} rollouts"


def _signed(score: HarnessScore, other: HarnessScore | None) -> str:
    return "" if other is None else f"{score.reward - other.reward:+.3f}"


def _kinds(failures: Mapping[str, int]) -> str:
    return ", ".join(f"{kind} {count}" for kind, count in sorted(failures.items(), key=lambda x: -x[1])) or "none"
