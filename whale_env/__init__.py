"""Domains as Gymnasium environments with binary verifiers.

``make("chess")`` is ``gymnasium.make("whale/Chess-v0")`` without the wrappers. The core is `whale_env.core`; each
domain is one file beside it.
"""

from whale_env.core import Domain, DomainSpec, EnvHandle, Outcome, Session, ToolEnv, said_verbatim
from whale_env.registry import UnknownEnvError, handle, make, register
from whale_env.types import Observation, Score, Split, Task, ToolCall, ToolSpec

__all__ = [
    "Domain",
    "DomainSpec",
    "EnvHandle",
    "Observation",
    "Outcome",
    "Score",
    "Session",
    "Split",
    "Task",
    "ToolCall",
    "ToolEnv",
    "ToolSpec",
    "UnknownEnvError",
    "handle",
    "make",
    "register",
    "said_verbatim",
]

register()
