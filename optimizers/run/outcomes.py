"""What units of a run come to, as data: a weight step, an evaluation of a pair, the whole result.

The journal and ``result.json`` hold them as JSON. How they come about is `optimizers.run.whale`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from harness_sdk.trajectory import Trajectory
from optimizers.run.evaluation import Evaluation, Gain
from optimizers.weights.protocol import UpdateStats


@dataclass(frozen=True, slots=True)
class WeightStep:
    """One step of a weight phase.

    Attributes:
        reward: Mean verifier reward of the rollouts whose reward is known.
        rollouts: Rollouts, unknown ones included.
        stats: What was learnt from them.
    """

    reward: float
    rollouts: int
    stats: UpdateStats

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory], stats: UpdateStats) -> WeightStep:
        """Sums a step up."""
        known = [trajectory.reward for trajectory in trajectories if trajectory.reward is not None]
        return cls(fmean(known) if known else 0.0, len(trajectories), stats)

    def to_json(self) -> dict[str, Any]:
        """Returns the step as JSON data."""
        return {"reward": self.reward, "rollouts": self.rollouts, **asdict(self.stats)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> WeightStep:
        """Rebuilds a step from `to_json`."""
        stats = {name: value for name, value in data.items() if name not in ("reward", "rollouts")}
        return cls(data["reward"], data["rollouts"], UpdateStats(**stats))

    def __str__(self) -> str:
        stats = self.stats
        loss = "" if stats.loss is None else f", loss {stats.loss:.3f}"
        skipped = f", {stats.skipped} updates skipped: gradient not finite" if stats.skipped else ""
        return f"reward {self.reward:.3f}, accepted {stats.accepted}/{self.rollouts}{loss}{skipped}"


@dataclass(frozen=True, slots=True)
class PairEvaluation(Evaluation):
    """How a pair of the run did on the test split.

    Attributes:
        phase: After which phase; ``base`` is before the first.
        harness: Id of its harness.
        weights_version: Version of its weights.
        floor: What the harness earns with policies that know nothing, on tasks of the search split
            (`harness_sdk.floor`); None if it could not be measured.
        floor_policy: The best of those policies.
        floor_tasks: On how many tasks that was measured.
    """

    phase: str = "base"
    harness: str = ""
    weights_version: int = 0
    floor: float | None = None
    floor_policy: str = ""
    floor_tasks: int = 0

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> PairEvaluation:
        """Rebuilds an evaluation from `to_json`."""
        return cls(**data)

    def __str__(self) -> str:
        known = f"mean@{self.k} {self.mean:.1%} ({self.low:.1%} to {self.high:.1%})"
        floor = "" if self.floor is None else f", floor {self.floor:.1%} ({self.floor_policy})"
        copied = "" if self.copied is None else f", copied {self.copied:.1%}"
        unknown = f", {self.unknown} of {self.rollouts} rollouts unknown" if self.unknown else ""
        return known + floor + copied + unknown


@dataclass(frozen=True, slots=True)
class Result:
    """What a run comes to.

    Attributes:
        env: The environment.
        method: The method.
        seed: The seed.
        base: The pair it began with.
        phases: The pair after each phase.
        final: The last pair.
        selected: The pair that was best on the search split.
        gain: The last against the first.
        harness: Id of the last harness.
        weights_version: Version of the last weights.
        caged: Whether proposed harnesses were confined.
        spent: Both ledgers.
        seconds: Time of all units of work.
    """

    env: str
    method: str
    seed: int
    base: PairEvaluation
    phases: Sequence[PairEvaluation]
    final: PairEvaluation
    selected: PairEvaluation
    gain: Gain
    harness: str
    weights_version: int
    caged: bool
    spent: Mapping[str, Mapping[str, float]]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Returns the result as JSON data."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Result:
        """Rebuilds a result from `to_json`."""
        pairs = {name: PairEvaluation.from_json(data[name]) for name in ("base", "final", "selected")}
        phases = tuple(PairEvaluation.from_json(row) for row in data["phases"])
        return cls(**{**data, **pairs, "phases": phases, "gain": Gain(**data["gain"])})

    def __repr__(self) -> str:
        return f"Result({self.env} {self.method} s{self.seed}: base {self.base}, final {self.final})"
