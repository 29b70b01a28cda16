"""Foreign environments as ours: any Gymnasium environment, and reasoning-gym's data sets.

``--env gymnasium --env-args '{"env": "FrozenLake-v1", "is_slippery": false}'`` and ``--env reasoning-gym --env-args
'{"dataset": "leg_counting"}'``. Tasksets of the package ``verifiers`` are not adapted; ``docs/new_domain.md`` says why.
"""

from whale_env.adapters.foreign_env import gymnasium_env
from whale_env.adapters.reasoning import reasoning_env

__all__ = ["gymnasium_env", "reasoning_env"]
