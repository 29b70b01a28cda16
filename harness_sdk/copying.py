"""The copy share: how many of the rewarded commits anyone would have made who reads the prompt and knows nothing.

Each rollout stores, as metrics, whether its commits are what one commits who always takes the first value that the very
prompt names, the last, or any (`harness_sdk.commit_rule.CommitRule.metrics`). A value is what the domain calls one: a
legal move, a number, a whole piece of text. The share is that of the one reader who finds most of the rewarded commits:
one and the same reader for all of them, since whoever could choose a reader by the prompt would know something.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from harness_sdk.commit_rule import COPIED
from harness_sdk.trajectory import Trajectory


def copy_share(trajectories: Iterable[Trajectory]) -> float | None:
    """Returns the share of rewarded commits that a reader without skill finds in their prompts.

    Args:
        trajectories: Rollouts of one harness; nothing is played again.

    Returns:
        A share from 0 to 1, or None where nothing was rewarded.
    """
    rewarded = [trajectory.score.metrics for trajectory in trajectories if trajectory.reward == 1.0]
    if not rewarded:
        return None
    return max(fmean(metrics.get(name, 0.0) for metrics in rewarded) for name in COPIED)
