"""Running untrusted Python: `run_python`, and the confinement that it and the harness cage stand on.

`run_python` is for programs that a model wrote (the math environment's tool). Harness code lives in
`harness_sdk.sandbox`. What is defended and what is not is told in ``docs/threat_model.md``.
"""

from whale_env.sandbox.kernel import Confinement, confinement
from whale_env.sandbox.python_tool import Result, Status, run_python
from whale_env.sandbox.spawn import ConfinementError, ZygoteError

__all__ = ["Confinement", "ConfinementError", "Result", "Status", "ZygoteError", "confinement", "run_python"]
