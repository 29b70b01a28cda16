"""What the archive holds, as data: a harness, its scores, its outcomes, and what an iteration of the search did.

Plain frozen dataclasses. How they are kept on disk is `optimizers.archive.store`, how they read as text its
neighbours.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from harness_sdk.trajectory import Trajectory

KNOWN = 0.98
"""Share of a harness's rollouts whose reward must be known for it to be compared with others."""


def enough(known: int, unknown: int) -> bool:
    """Whether so many known rewards and so few unknown ones say what a harness is worth."""
    return known > 0 and known >= KNOWN * (known + unknown)


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
        stopped: Why scoring ended before all examples were played, or "". Such a score never competes.
        unknown: Rollouts whose reward an infrastructure failure left unknown.
    """

    weights_version: int
    reward: float
    rollouts: int
    turns: float
    tokens: float
    failures: Mapping[str, int] = field(default_factory=dict)
    stopped: str = ""
    unknown: int = 0

    @property
    def competes(self) -> bool:
        """Whether it may be compared with others: it is whole, and hardly any of it was lost to the infrastructure."""
        return not self.stopped and enough(self.rollouts, self.unknown)

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory], weights_version: int) -> HarnessScore:
        """Sums up the rollouts of one harness."""
        known = [t for t in trajectories if t.reward is not None]
        if not known:
            return cls(weights_version, 0.0, 0, 0.0, 0.0, unknown=len(trajectories))
        return cls(
            weights_version,
            fmean(t.reward or 0.0 for t in known),
            len(known),
            fmean(len(t.turns) for t in known),
            fmean(t.tokens for t in known),
            dict(sorted(Counter(t.score.failure for t in known if t.score.failure).items())),
            unknown=len(trajectories) - len(known),
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


@dataclass(frozen=True, slots=True)
class Refusal:
    """A candidate that was rejected before it was scored.

    Attributes:
        name: What it was called.
        source: Its source.
        why: The report of the validator or of the behaviour checks.
        parent: Id of the harness it was derived from, or None.
        axis: Which part of a harness it was to change.
        hypothesis: What its author expected.
    """

    name: str
    source: str
    why: str
    parent: str | None = None
    axis: str = ""
    hypothesis: str = ""


@dataclass(frozen=True, slots=True)
class Iteration:
    """What one iteration of the search did.

    Attributes:
        cycle: Which cycle.
        iteration: Which iteration of the cycle.
        weights_version: The frozen weights.
        incumbent: Id of the harness that was accepted before.
        accepted: Id of the one that is accepted now.
        scored: Ids of those scored, in order.
        refused: Candidates that were not.
        why: The selection rule's reasons by id; where it gives none, the scores are told.
    """

    cycle: int
    iteration: int
    weights_version: int
    incumbent: str
    accepted: str
    scored: Sequence[str]
    refused: Sequence[Refusal] = ()
    why: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OutcomeTable:
    """What one harness earned at one version of the weights.

    Attributes:
        harness: Its id.
        rewards: Reward by (task id, rollout index), where it is known.
        turns: Mean model calls of those rollouts.
        tokens: Mean sampled tokens.
        unknown: Rollouts that an infrastructure failure left without a reward.
    """

    harness: str
    rewards: Mapping[tuple[str, int], float]
    turns: float = 0.0
    tokens: float = 0.0
    unknown: Collection[tuple[str, int]] = ()

    @classmethod
    def of(cls, harness: str, trajectories: Sequence[Trajectory]) -> OutcomeTable:
        """Reads a table off rollouts; an infrastructure failure is no outcome."""
        known = [t for t in trajectories if t.reward is not None]
        rewards = {(t.task.id, t.index): t.reward for t in known if t.reward is not None}
        unknown = [(t.task.id, t.index) for t in trajectories if t.reward is None]
        turns, tokens = (fmean(len(t.turns) for t in known), fmean(t.tokens for t in known)) if known else (0.0, 0.0)
        return cls(harness, rewards, turns, tokens, unknown)

    @property
    def mean(self) -> float:
        """Mean reward over rollouts; 0 where none is known."""
        return fmean(self.rewards.values()) if self.rewards else 0.0

    @property
    def played(self) -> int:
        """Rollouts, known or not."""
        return len(self.rewards) + len(self.unknown)

    @property
    def competes(self) -> bool:
        """Whether it may be compared with others: hardly any of it is unknown."""
        return enough(len(self.rewards), len(self.unknown))

    def with_round(self, later: OutcomeTable, number: int, samples: int) -> OutcomeTable:
        """Returns the table with another round of ``samples`` rollouts per task, numbered on from ``number`` rounds."""
        mine, new = len(self.rewards), len(later.rewards)
        share = new / (mine + new) if mine + new else 0.0
        added = {(task, index + number * samples): reward for (task, index), reward in later.rewards.items()}
        return OutcomeTable(
            self.harness,
            {**self.rewards, **added},
            self.turns + share * (later.turns - self.turns),
            self.tokens + share * (later.tokens - self.tokens),
            [*self.unknown, *((task, index + number * samples) for task, index in later.unknown)],
        )

    def on(self, tasks: Collection[str]) -> OutcomeTable:
        """Returns the part of the table on some tasks."""
        rewards = {key: reward for key, reward in self.rewards.items() if key[0] in tasks}
        return replace(self, rewards=rewards, unknown=[key for key in self.unknown if key[0] in tasks])


def common(tables: Sequence[OutcomeTable]) -> list[OutcomeTable]:
    """Returns the tables cut to the rollouts whose reward all of them know: what may be compared."""
    keys = set.intersection(*(set(table.rewards) for table in tables)) if tables else set()
    return [
        replace(table, rewards={key: table.rewards[key] for key in table.rewards if key in keys}) for table in tables
    ]
