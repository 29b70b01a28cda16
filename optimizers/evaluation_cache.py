"""A cache of finished rollouts, so that nothing is scored twice: not by a resumed phase, nor by the next one.

A rollout is addressed by everything that decides it: harness, weights, environment and its arguments, task, and how it
was rolled out (seed, phase, index, sampling, limits). Infrastructure failures are never kept. The file is append-only
JSONL under another suffix than the run's logs: a resumed run cuts those back to the last finished unit, and what was
rolled out since then is just what this file is for. What outcomes are used for is decided elsewhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from harness_sdk.policies.base import Policy
from harness_sdk.rollout import Job, RolloutConfig, rollout
from harness_sdk.trajectory import Trajectory
from whale_env.core import EnvHandle

FILE = "evaluations.cache"
"""Its usual name in a run directory."""

HEAD = b'{"key": "'
DIGITS = 32


class EvaluationCache:
    """Finished rollouts on disk by key; one writer at a time."""

    def __init__(self, path: Path) -> None:
        """Opens a cache file, new or old. A torn last line (the writer was killed) is cut off.

        Args:
            path: The file; its folder is made when something is kept.

        Raises:
            ValueError: A line is not of this cache.
        """
        self.path = path
        self._where: dict[str, tuple[int, int]] = {}
        if path.is_file():
            self._read()

    def _read(self) -> None:
        end = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    break
                if not line.startswith(HEAD):
                    raise ValueError(f"{self.path}:{number} is damaged; delete the file to score again")
                key = line[len(HEAD) : len(HEAD) + DIGITS].decode("ascii", "replace")
                self._where[key] = (end, len(line))
                end += len(line)
        if end < self.path.stat().st_size:
            with self.path.open("r+b") as file:
                file.truncate(end)

    def __len__(self) -> int:
        return len(self._where)

    def get(self, key: str) -> Trajectory | None:
        """Returns the rollout kept under a key, or None."""
        if key not in self._where:
            return None
        start, length = self._where[key]
        with self.path.open("rb") as file:
            file.seek(start)
            return Trajectory.from_json(json.loads(file.read(length))["trajectory"])

    def put(self, key: str, trajectory: Trajectory) -> bool:
        """Keeps a rollout.

        Returns:
            Whether it was kept: an infrastructure failure is not, nor one that is there already.
        """
        if trajectory.reward is None or key in self._where:
            return False
        if len(key) != DIGITS:
            raise ValueError(f"{key!r} is no key of {DIGITS} digits; make it with key_of")
        text = json.dumps({"key": key, "trajectory": trajectory.to_json()}, ensure_ascii=False)
        line = f"{text}\n".encode("utf-8", "replace")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as file:
            start = file.tell()
            file.write(line)
        self._where[key] = (start, len(line))
        return True


def key_of(job: Job, env: EnvHandle, weights: str, config: RolloutConfig) -> str:
    """Returns the address of a rollout: a hash of all that decides it, 32 hexadecimal digits.

    Args:
        job: Harness, task and index.
        env: The environment with its arguments.
        weights: What names the weights: a hash, or base model and version. Two that differ must never share it.
        config: How to roll out. How many run at a time does not count.
    """
    how = asdict(config)
    del how["concurrency"]
    parts = [job.harness.id, weights, env.name, dict(env.kwargs), job.task.id, job.index, how]
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:DIGITS]


@dataclass(frozen=True, slots=True)
class Evaluated:
    """What `cached_rollout` gives.

    Attributes:
        trajectories: One per job, in the order of the jobs.
        fresh: Those that were rolled out now: what the ledger books.
    """

    trajectories: tuple[Trajectory, ...]
    fresh: tuple[Trajectory, ...]


async def cached_rollout(
    jobs: Sequence[Job],
    env: EnvHandle,
    policy: Policy,
    config: RolloutConfig,
    store: tuple[EvaluationCache, str],
    on_done: Callable[[Trajectory], None] | None = None,
) -> Evaluated:
    """Rolls out the jobs that the cache does not hold, and keeps each as it finishes.

    Args:
        jobs: What to score.
        env: The environment.
        policy: The model.
        config: How to roll out.
        store: The cache, and what names the policy's weights.
        on_done: Called with each trajectory, kept ones first.
    """
    cache, weights = store
    keys = [key_of(job, env, weights, config) for job in jobs]
    found = [cache.get(key) for key in keys]
    address = {(job.harness.id, job.task.id, job.index): key for job, key in zip(jobs, keys, strict=True)}
    if on_done:
        for trajectory in found:
            if trajectory is not None:
                on_done(trajectory)

    def keep(trajectory: Trajectory) -> None:
        cache.put(address[trajectory.harness, trajectory.task.id, trajectory.index], trajectory)
        if on_done:
            on_done(trajectory)

    missing = [job for job, trajectory in zip(jobs, found, strict=True) if trajectory is None]
    fresh = await rollout(missing, env, policy, config, keep)
    rest = iter(fresh)
    return Evaluated(tuple(t if t is not None else next(rest) for t in found), tuple(fresh))
