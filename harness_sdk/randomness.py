"""Where every random choice comes from: seeds derived by hashing what the choice belongs to."""

from __future__ import annotations

import hashlib
import random

from harness_sdk.types import Episode
from whale_env.types import Json, canonical_json


def derive_seed(*parts: Json) -> int:
    """Derives a seed from (run seed, phase, task, rollout index, …).

    Args:
        *parts: JSON values; the order matters.

    Returns:
        A whole number from 0 to 2**63 - 1, the same on every machine.
    """
    digest = hashlib.sha256(canonical_json(list(parts)).encode("utf-8", "replace")).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def seeded(episode: Episode) -> random.Random:
    """Returns the generator for a harness that wants a random choice: fixed by the task and the turn.

    Args:
        episode: The episode as a hook sees it.

    Returns:
        A fresh generator; the same episode gives the same numbers.
    """
    return random.Random(derive_seed("harness", episode.task.id, len(episode.turns)))
