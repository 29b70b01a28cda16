"""Domains as Gymnasium environments with binary verifiers.

``make("chess")`` is ``gymnasium.make("whale/Chess-v0")`` without the wrappers. The core is `whale_env.core`; each
domain is a folder beside it.
"""

from whale_env.commit import Named, named_verbatim, said_verbatim
from whale_env.core import Domain, DomainSpec, Easy, EnvHandle, Outcome, Session, ToolEnv
from whale_env.errors import InputError, WhaleError
from whale_env.openmp import wait_briefly
from whale_env.registry import UnknownEnvError, handle, make, register
from whale_env.types import Observation, Score, Split, Task, ToolCall, ToolSpec

__all__ = [
    "Domain",
    "DomainSpec",
    "Easy",
    "EnvHandle",
    "InputError",
    "Named",
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
    "WhaleError",
    "handle",
    "make",
    "named_verbatim",
    "register",
    "said_verbatim",
]

wait_briefly()
register()
