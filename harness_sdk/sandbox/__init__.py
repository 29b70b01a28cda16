"""Untrusted code, caged: `CagePool` for harnesses that a proposer wrote, `run_python` for programs that a model wrote.

The interface of a caged harness is that of a trusted one (`harness_sdk.session`). What the cage defends against and
what it does not is told in ``docs/threat_model.md``.
"""

from harness_sdk.sandbox.pool import CagePool, shared_pool
from harness_sdk.sandbox.session import CagedSession, CageLimits
from whale_env.sandbox import Confinement, ConfinementError, Result, ZygoteError, confinement, run_python

__all__ = [
    "CageLimits",
    "CagePool",
    "CagedSession",
    "Confinement",
    "ConfinementError",
    "Result",
    "ZygoteError",
    "confinement",
    "run_python",
    "shared_pool",
]
