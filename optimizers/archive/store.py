"""The archive of all harnesses tried: sources, scores and outcomes on disk, made to be read by a proposer or a person.

``harnesses/`` is whole in itself, and all that a proposer may read: ``index.md`` says what to read first,
``evolution_summary.jsonl`` has a line for every candidate, ``rejected/`` those that were never scored. ``<id>/`` holds
``harness.py``, ``meta.json`` (name, parent, hypothesis, axis, scores by weights version), ``outcomes.jsonl`` (one line
per rollout: task, reward, failure, turns, tokens), ``trajectories.jsonl``, the rollouts as text, and ``diff.md``.
No answers: what a rollout earned, and what the model was shown and wrote, nothing else. Scores of other weights never
compete. How things read is ``diff_text``, ``index_text`` and ``rollout_text`` beside it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from harness_sdk.loader import LoadedHarness
from harness_sdk.trajectory import Trajectory
from optimizers.archive.diff_text import Side, diff_text
from optimizers.archive.index_text import View, index_text
from optimizers.archive.quoting import clean, slug
from optimizers.archive.records import Entry, HarnessScore, Iteration, OutcomeTable, Refusal, common
from optimizers.archive.rollout_text import folder, texts
from optimizers.record.rundir import RunDir
from whale_env.json_lines import read_lines

SUMMARY = "harnesses/evolution_summary.jsonl"

MAX_SOURCE = 100_000
"""Characters kept of a rejected candidate's source, and of its report."""

MAX_HYPOTHESIS = 4_000
"""Characters kept of a hypothesis."""

MAX_NAME = 200
"""Characters kept of a name, an axis or a parent."""


class Archive:
    """Reads and writes the ``harnesses`` folder of a run."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self.folder = run.path / "harnesses"

    def ids(self) -> list[str]:
        """Returns the ids of all harnesses, oldest first."""
        metas = [json.loads(path.read_text("utf-8")) for path in self.folder.glob("*/meta.json")]
        return [meta["id"] for meta in sorted(metas, key=lambda meta: (meta["cycle"], meta["iteration"], meta["id"]))]

    def scored_at(self, weights_version: int) -> set[str]:
        """Returns the ids of the harnesses that have a score at one version of the weights."""
        return {entry.id for entry in self.entries() if weights_version in entry.scores}

    def entry(self, harness_id: str) -> Entry:
        """Returns what is known of one harness."""
        meta = json.loads((self.folder / harness_id / "meta.json").read_text("utf-8"))
        scores = {int(version): HarnessScore(**score) for version, score in meta.pop("scores").items()}
        return Entry(**meta, scores=scores)

    def entries(self) -> list[Entry]:
        """Returns all harnesses, oldest first."""
        return [self.entry(harness_id) for harness_id in self.ids()]

    def source(self, harness_id: str) -> str:
        """Returns a harness's source."""
        return (self.folder / harness_id / "harness.py").read_text("utf-8")

    def trajectories(self, harness_id: str, weights_version: int) -> list[Trajectory]:
        """Returns the saved rollouts of a harness at one version of the weights.

        A rollout that was filed again (the same task, index and seed) counts once, as it was filed last.
        """
        path = self.folder / harness_id / "trajectories.jsonl"
        lines = read_lines(path) if path.is_file() else ()
        latest: dict[tuple[str, int, int], Trajectory] = {}
        for line in lines:
            if line["weights_version"] == weights_version:
                trajectory = Trajectory.from_json(line["trajectory"])
                latest[trajectory.task.id, trajectory.index, trajectory.seed] = trajectory
        return list(latest.values())

    def add(self, entry: Entry, harness: LoadedHarness) -> None:
        """Files a new harness; one that is there keeps its record."""
        if not (self.folder / entry.id / "meta.json").is_file():
            self._run.write_text(f"harnesses/{entry.id}/harness.py", harness.source)
            told = replace(
                entry,
                name=_told(entry.name, MAX_NAME),
                axis=_told(entry.axis, MAX_NAME),
                parent=entry.parent and _told(entry.parent, MAX_NAME),
                hypothesis=_told(entry.hypothesis, MAX_HYPOTHESIS),
            )
            self._write(told)

    def table(self, harness_id: str, weights_version: int) -> OutcomeTable:
        """Returns what a harness earned at one version of the weights."""
        path = self.folder / harness_id / "outcomes.jsonl"
        lines = [x for x in (read_lines(path) if path.is_file() else ()) if x["weights_version"] == weights_version]
        outcomes = {(line["task"], line["index"]): line["reward"] for line in lines}
        rewards = {key: reward for key, reward in outcomes.items() if reward is not None}
        unknown = [key for key, reward in outcomes.items() if reward is None]
        score = self.entry(harness_id).scores.get(weights_version)
        turns, tokens = (score.turns, score.tokens) if score else (0.0, 0.0)
        return OutcomeTable(harness_id, rewards, turns, tokens, unknown)

    def tables(self, weights_version: int) -> list[OutcomeTable]:
        """Returns what harnesses earned at one version of the weights, of all that may be compared there."""
        scored = [entry for entry in self.entries() if weights_version in entry.scores]
        return [self.table(entry.id, weights_version) for entry in scored if entry.scores[weights_version].competes]

    def record(
        self, harness_id: str, trajectories: Sequence[Trajectory], weights_version: int, stopped: str = ""
    ) -> HarnessScore:
        """Files a harness's rollouts at one version of the weights, as data and as text.

        Args:
            harness_id: The harness.
            trajectories: Its rollouts. Those filed before are not filed twice.
            weights_version: The version.
            stopped: Why not all examples were played, if so.

        Returns:
            The score of these rollouts.
        """
        base = f"harnesses/{harness_id}"
        outcomes = self.folder / harness_id / "outcomes.jsonl"
        filed = list(read_lines(outcomes)) if outcomes.is_file() else []
        for trajectory in map(_shown, trajectories):
            outcome = {
                "weights_version": weights_version,
                "task": trajectory.task.id,
                "index": trajectory.index,
                "seed": trajectory.seed,
                "reward": trajectory.reward,
                "failure": trajectory.score.failure,
                "stopped": trajectory.stopped,
                "turns": len(trajectory.turns),
                "tokens": trajectory.tokens,
            }
            if outcome in filed:
                continue
            self._run.append(f"{base}/outcomes.jsonl", outcome)
            line = {"weights_version": weights_version, "trajectory": trajectory.to_json()}
            self._run.append(f"{base}/trajectories.jsonl", line)
        with self._run.folder(f"{base}/{folder(weights_version)}") as scratch:
            for name, text in texts(self.trajectories(harness_id, weights_version)).items():
                (scratch / name).write_text(text, "utf-8")
        score = replace(HarnessScore.of(trajectories, weights_version), stopped=stopped)
        entry = self.entry(harness_id)
        self._write(replace(entry, scores={**entry.scores, weights_version: score}))
        return score

    def conclude(self, done: Iteration) -> None:
        """Writes what one iteration taught: diffs, summary lines, rejected candidates, the frontier and the index.

        Doing it again for the same iteration changes nothing.
        """
        diffs = {harness_id: self._write_diff(harness_id, done) for harness_id in done.scored}
        summary = self.summary()
        here = (done.cycle, done.iteration)
        before = [line for line in summary if (line["cycle"], line["iteration"]) != here]
        lines = [self._line(harness_id, diffs[harness_id], done) for harness_id in done.scored]
        number = sum(line["verdict"] == "rejected" for line in before)
        lines += [self._refuse(refusal, number + n, done) for n, refusal in enumerate(done.refused, 1)]
        for line in lines:
            if line not in summary:
                self._run.append(SUMMARY, line)
        self.write_frontier(done.weights_version, done.accepted)
        self._run.write_text("harnesses/index.md", index_text(self._view(done)))

    def summary(self) -> list[dict[str, Any]]:
        """Returns the lines of ``evolution_summary.jsonl``: every candidate so far, rejected ones too."""
        path = self._run.path / SUMMARY
        return list(read_lines(path)) if path.is_file() else []

    def cut_back(self) -> None:
        """Forgets what a killed iteration left, as the run directory does with logs: to be called on resume.

        A score whose rollouts the logs no longer hold goes, and so does a candidate that has no other.
        """
        for harness_id in self.ids():
            entry = self.entry(harness_id)
            outcomes = self.folder / harness_id / "outcomes.jsonl"
            filed = {line["weights_version"] for line in read_lines(outcomes)} if outcomes.is_file() else set()
            kept = {version: score for version, score in entry.scores.items() if version in filed}
            if not kept and entry.iteration > 0:
                with self._run.guarded():
                    shutil.rmtree(self.folder / harness_id)
            elif kept.keys() != entry.scores.keys():
                self._write(replace(entry, scores=kept))

    def write_frontier(self, weights_version: int, accepted: str) -> None:
        """Rewrites ``frontier.json``: what is accepted, and all scores at the current weights, best first."""
        scored = [(e, e.scores[weights_version]) for e in self.entries() if weights_version in e.scores]
        scored.sort(key=lambda pair: pair[1].rank(), reverse=True)
        rows = [{"id": e.id, "name": e.name, "axis": e.axis, **asdict(score)} for e, score in scored]
        self._run.write_json(
            "frontier.json", {"weights_version": weights_version, "accepted": accepted, "harnesses": rows}
        )

    def _write_diff(self, harness_id: str, done: Iteration) -> str | None:
        """Writes a candidate's diff against its parent; returns its path within the archive."""
        name = f"harnesses/{harness_id}/diff.md"
        if harness_id == done.incumbent:  # what it changed was written when it came in
            return f"{harness_id}/diff.md" if (self._run.path / name).is_file() else None
        parent, note = self.entry(harness_id).parent, ""
        if parent is None or parent not in self.ids():
            parent = done.incumbent
            note = "Its parent is not in the archive; it is compared with the harness that was accepted then."
        version = done.weights_version
        before, after = (
            Side(self.entry(x), self.source(x), self.trajectories(x, version)) for x in (parent, harness_id)
        )
        self._run.write_text(name, diff_text(before, after, version, note))
        return f"{harness_id}/diff.md"

    def _line(self, harness_id: str, diff: str | None, done: Iteration) -> dict[str, Any]:
        entry = self.entry(harness_id)
        score = entry.scores[done.weights_version]
        both = common([self.table(x, done.weights_version) for x in (harness_id, done.incumbent)])
        delta = both[0].mean - both[1].mean if both[0].rewards else None
        if harness_id == done.incumbent:
            verdict, why = "incumbent", "scored at the current weights, for candidates to be compared with"
        else:
            verdict = "accepted" if harness_id == done.accepted else "not accepted"
            why = f"search reward {score.reward:.3f} over {score.rollouts} rollouts"
            why += "" if delta is None else f", {delta:+.3f} against the incumbent"
        return {
            "cycle": done.cycle,
            "iteration": done.iteration,
            "id": harness_id,
            "name": entry.name,
            "axis": entry.axis,
            "parent": entry.parent,
            "hypothesis": entry.hypothesis,
            "weights_version": done.weights_version,
            "reward": score.reward if score.rollouts else None,
            "delta": delta,
            "rollouts": score.rollouts,
            "turns": score.turns,
            "tokens": score.tokens,
            "failures": dict(score.failures),
            "verdict": verdict,
            "why": done.why.get(harness_id, why),
            "diff": diff,
        }

    def _refuse(self, refusal: Refusal, number: int, done: Iteration) -> dict[str, Any]:
        """Files a rejected candidate's source and report; returns its summary line."""
        stem = f"rejected/{number}-{slug(refusal.name, 32)}"
        source, report = _told(refusal.source, MAX_SOURCE), _told(refusal.why, MAX_SOURCE)
        if len(refusal.source) > MAX_SOURCE:
            source += f"\n# {len(refusal.source) - MAX_SOURCE} more characters were not kept\n"
        head = f"{_told(refusal.name, MAX_NAME)}, cycle {done.cycle} iteration {done.iteration}: rejected, never scored"
        self._run.write_text(f"harnesses/{stem}.py", source)
        self._run.write_text(f"harnesses/{stem}.txt", f"{head}\n\n{report}\n")
        return {
            "cycle": done.cycle,
            "iteration": done.iteration,
            "id": None,
            "name": _told(refusal.name, MAX_NAME),
            "axis": _told(refusal.axis, MAX_NAME),
            "parent": refusal.parent and _told(refusal.parent, MAX_NAME),
            "hypothesis": _told(refusal.hypothesis, MAX_HYPOTHESIS),
            "weights_version": done.weights_version,
            "reward": None,
            "delta": None,
            "verdict": "rejected",
            "why": _told(refusal.why, MAX_HYPOTHESIS),
            "report": f"{stem}.txt",
            "source": f"{stem}.py",
        }

    def _view(self, done: Iteration) -> View:
        entries = self.entries()
        where = {entry.id: self.folder / entry.id / folder(done.weights_version) for entry in entries}
        files = {harness_id: sorted(path.name for path in place.glob("*.txt")) for harness_id, place in where.items()}
        return View(entries, self.summary(), files, done.weights_version, done.accepted)

    def _write(self, entry: Entry) -> None:
        scores = {str(version): asdict(score) for version, score in entry.scores.items()}
        self._run.write_json(f"harnesses/{entry.id}/meta.json", {**_shallow(entry), "scores": scores})


def _shallow(entry: Entry) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in Entry.__dataclass_fields__}


def _told(text: str, limit: int) -> str:
    """Returns what a proposer wrote, bounded, and without characters that no file holds."""
    return clean(text[:limit])


def _shown(trajectory: Trajectory) -> Trajectory:
    """Returns a rollout as the archive may show it.

    The words of an exception from inside the environment could quote an answer; only its type is kept.
    """
    if trajectory.score.failure != "env_error" or trajectory.stopped.startswith("policy: "):
        return trajectory
    return replace(trajectory, stopped=trajectory.stopped.partition(":")[0])
