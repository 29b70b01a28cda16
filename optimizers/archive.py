"""The archive of all harnesses tried: sources, scores and outcomes on disk, made to be read by a proposer or a person.

``harnesses/<id>/`` holds ``harness.py``, ``meta.json`` (name, parent, hypothesis, axis, scores by weights version),
``outcomes.jsonl`` (one line per rollout: task, reward, failure, turns, tokens) and ``trajectories.jsonl``. No answers:
what a rollout earned, and what the model was shown and wrote, nothing else. Scores of other weights never compete.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from harness_sdk.loader import LoadedHarness
from harness_sdk.trajectory import Trajectory
from optimizers.rundir import RunDir, read_lines


@dataclass(frozen=True, slots=True)
class HarnessScore:
    """How a harness did on the search split at one version of the weights.

    Attributes:
        weights_version: The version.
        reward: Mean reward of the rollouts whose reward is known.
        rollouts: How many those are.
        turns: Mean model calls.
        tokens: Mean sampled tokens.
        failures: Count of each failure.
    """

    weights_version: int
    reward: float
    rollouts: int
    turns: float
    tokens: float
    failures: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory], weights_version: int) -> HarnessScore:
        """Sums up the rollouts of one harness."""
        known = [t for t in trajectories if t.reward is not None]
        if not known:
            return cls(weights_version, 0.0, 0, 0.0, 0.0)
        return cls(
            weights_version,
            fmean(t.reward or 0.0 for t in known),
            len(known),
            fmean(len(t.turns) for t in known),
            fmean(t.tokens for t in known),
            dict(sorted(Counter(t.score.failure for t in known if t.score.failure).items())),
        )

    def rank(self) -> tuple[float, float, float]:
        """Returns a key that orders scores: reward, then fewer turns, then fewer tokens."""
        return self.reward, -self.turns, -self.tokens


@dataclass(frozen=True, slots=True)
class Entry:
    """One harness of the archive.

    Attributes:
        id: Hash of source and class name.
        name: What it was called when it was proposed.
        parent: Id of the harness it was derived from, or None.
        hypothesis: What its author expected to happen, and why.
        axis: Which part of a harness it changes.
        cycle: When it came in.
        iteration: When it came in, within the cycle.
        traits: The proposer's own record of how it was made.
        scores: Latest score by weights version.
    """

    id: str
    name: str
    parent: str | None
    hypothesis: str
    axis: str
    cycle: int
    iteration: int
    traits: Mapping[str, Any] = field(default_factory=dict)
    scores: Mapping[int, HarnessScore] = field(default_factory=dict)


class Archive:
    """Reads and writes the ``harnesses`` folder of a run."""

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self.folder = run.path / "harnesses"

    def ids(self) -> list[str]:
        """Returns the ids of all harnesses, oldest first."""
        metas = [json.loads(path.read_text("utf-8")) for path in self.folder.glob("*/meta.json")]
        return [meta["id"] for meta in sorted(metas, key=lambda meta: (meta["cycle"], meta["iteration"], meta["id"]))]

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
        """Returns the saved rollouts of a harness at one version of the weights."""
        path = self.folder / harness_id / "trajectories.jsonl"
        lines = read_lines(path) if path.is_file() else ()
        return [Trajectory.from_json(x["trajectory"]) for x in lines if x["weights_version"] == weights_version]

    def add(self, entry: Entry, harness: LoadedHarness) -> None:
        """Files a new harness; one that is there keeps its record."""
        if not (self.folder / entry.id / "meta.json").is_file():
            self._run.write_text(f"harnesses/{entry.id}/harness.py", harness.source)
            self._write(entry)

    def record(self, harness_id: str, trajectories: Sequence[Trajectory], weights_version: int) -> HarnessScore:
        """Files a harness's rollouts at one version of the weights.

        Returns:
            Its score.
        """
        score = HarnessScore.of(trajectories, weights_version)
        base = f"harnesses/{harness_id}"
        for trajectory in trajectories:
            outcome = {
                "weights_version": weights_version,
                "task": trajectory.task.id,
                "index": trajectory.index,
                "reward": trajectory.reward,
                "failure": trajectory.score.failure,
                "stopped": trajectory.stopped,
                "turns": len(trajectory.turns),
                "tokens": trajectory.tokens,
            }
            self._run.append(f"{base}/outcomes.jsonl", outcome)
            line = {"weights_version": weights_version, "trajectory": trajectory.to_json()}
            self._run.append(f"{base}/trajectories.jsonl", line)
        entry = self.entry(harness_id)
        self._write(Entry(**{**_shallow(entry), "scores": {**entry.scores, weights_version: score}}))
        return score

    def best(self, weights_version: int, incumbent: str) -> tuple[str, HarnessScore]:
        """Returns the best harness among those scored at these weights; the incumbent keeps ties in reward."""
        scored = {e.id: e.scores[weights_version] for e in self.entries() if weights_version in e.scores}
        if not scored:
            raise ValueError(f"no harness is scored at weights version {weights_version}")
        top = max(score.reward for score in scored.values())
        if incumbent in scored and scored[incumbent].reward == top:
            return incumbent, scored[incumbent]
        winner = max(scored, key=lambda harness_id: (scored[harness_id].rank(), harness_id))
        return winner, scored[winner]

    def write_frontier(self, weights_version: int, accepted: str) -> None:
        """Rewrites ``frontier.json``: what is accepted, and all scores at the current weights, best first."""
        scored = [(e, e.scores[weights_version]) for e in self.entries() if weights_version in e.scores]
        scored.sort(key=lambda pair: pair[1].rank(), reverse=True)
        rows = [{"id": e.id, "name": e.name, "axis": e.axis, **asdict(score)} for e, score in scored]
        self._run.write_json(
            "frontier.json", {"weights_version": weights_version, "accepted": accepted, "harnesses": rows}
        )

    def _write(self, entry: Entry) -> None:
        scores = {str(version): asdict(score) for version, score in entry.scores.items()}
        self._run.write_json(f"harnesses/{entry.id}/meta.json", {**_shallow(entry), "scores": scores})


def _shallow(entry: Entry) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in Entry.__dataclass_fields__}
