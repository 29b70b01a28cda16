"""Two ledgers that never mix: what the agent spent on rollouts, and what the proposer spent on writing candidates.

Both count failed work too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from harness_sdk.trajectory import Trajectory
from optimizers.record.rundir import LEDGER, RunDir
from whale_env.json_lines import read_lines


@dataclass(frozen=True, slots=True)
class AgentCost:
    """What rollouts cost.

    Attributes:
        rollouts: Episodes, infrastructure failures included.
        unknown: Episodes that an infrastructure failure ended (reward None).
        prompt_tokens: Tokens of all prompts, cached or not.
        sampled_tokens: Tokens sampled.
        seconds: Wall time.
    """

    rollouts: int = 0
    unknown: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory], seconds: float) -> AgentCost:
        """Adds up some rollouts."""
        return cls(
            len(trajectories),
            sum(t.reward is None for t in trajectories),
            sum(t.prompt_tokens for t in trajectories),
            sum(t.tokens for t in trajectories),
            seconds,
        )

    @classmethod
    def total(cls, costs: Sequence[AgentCost]) -> AgentCost:
        """Adds costs up."""
        return cls(*(sum(getattr(cost, field.name) for cost in costs) for field in fields(cls)))


@dataclass(frozen=True, slots=True)
class ProposerCost:
    """What proposals cost.

    Attributes:
        conversations: Proposal rounds begun.
        input_tokens: Tokens in, cached ones excluded.
        cached_tokens: Tokens in, read from a cache.
        output_tokens: Tokens out.
        usd: Money.
        seconds: Wall time.
    """

    conversations: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    usd: float = 0.0
    seconds: float = 0.0


def booked(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns what counts of a ledger's lines: of a round that was booked again, the last line."""
    counted: dict[object, dict[str, Any]] = {}
    for number, line in enumerate(lines):
        counted[line.get("key") or number] = line
    return list(counted.values())


class Ledger:
    """Writes both ledgers to ``ledger.jsonl`` and adds them up."""

    def __init__(self, run: RunDir) -> None:
        self._run = run

    def agent(self, phase: str, cost: AgentCost) -> None:
        """Books rollouts."""
        self._run.append(LEDGER, {"ledger": "agent", "phase": phase, **asdict(cost)})

    def proposer(self, phase: str, cost: ProposerCost, key: str = "") -> None:
        """Books proposals.

        Args:
            phase: The phase.
            cost: What the round cost in all.
            key: Names the round. One that a killed run goes on with reports its whole cost again; it counts once.
        """
        self._run.append(LEDGER, {"ledger": "proposer", "phase": phase, "key": key, **asdict(cost)})

    def totals(self) -> dict[str, dict[str, float]]:
        """Returns the sums, ``{"agent": {…}, "proposer": {…}}``."""
        sums: dict[str, dict[str, float]] = {"agent": {}, "proposer": {}}
        path = self._run.path / LEDGER
        for line in booked(read_lines(path) if path.is_file() else ()):
            into = sums[line["ledger"]]
            for key, value in line.items():
                if isinstance(value, (int, float)):
                    into[key] = into.get(key, 0) + value
        return sums
