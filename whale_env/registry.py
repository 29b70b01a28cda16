"""Names of environments: ours, and any other that Gymnasium knows (``my_pkg:MyEnv-v0``).

Importing `whale_env` registers ours. Without that import, ``packaging/whale_gymnasium.py`` does so when Gymnasium is
imported, since Gymnasium 1.0 no longer reads its own plug-in entry points. Nothing is constructed here.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import gymnasium as gym

from whale_env.core import EnvHandle, ToolEnv
from whale_env.types import Json

ENVS: Mapping[str, tuple[str, str]] = {
    "chess": ("whale/Chess-v0", "whale_env.chess:chess_env"),
    "math": ("whale/Math-v0", "whale_env.math:math_env"),
    "searchqa": ("whale/SearchQA-v0", "whale_env.searchqa:searchqa_env"),
}
"""Short name → (Gymnasium id, entry point)."""


class UnknownEnvError(LookupError):
    """No environment has that name."""


def register() -> None:
    """Registers our environments with Gymnasium; safe to call twice."""
    for env_id, entry_point in ENVS.values():
        if env_id not in gym.registry:
            gym.register(env_id, entry_point=entry_point)


def resolve(name: str) -> str:
    """Turns a short name or an id into a Gymnasium id.

    Args:
        name: ``"chess"``, ``"whale/Chess-v0"`` or ``"module:Env-v0"``.

    Returns:
        The Gymnasium id.

    Raises:
        UnknownEnvError: Nothing has that name; the message suggests the nearest.
    """
    register()
    if name in ENVS:
        return ENVS[name][0]
    if name in gym.registry or ":" in name:
        return name
    ours = {**{short: short for short in ENVS}, **{env_id: env_id for env_id, _ in ENVS.values()}}
    near = difflib.get_close_matches(name.lower(), {key.lower(): key for key in ours}, n=1, cutoff=0.5)
    hint = f" Did you mean {next(key for key in ours if key.lower() == near[0])!r}?" if near else ""
    raise UnknownEnvError(f"unknown environment {name!r}.{hint} Known: {', '.join(ENVS)}, or module:EnvId.")


def handle(name: str, kwargs: Mapping[str, Json] | None = None) -> EnvHandle:
    """Returns an `EnvHandle` on all splits, after checking that the environment can be made.

    Args:
        name: As for `resolve`.
        kwargs: Keyword arguments of the environment.

    Returns:
        The handle.

    Raises:
        UnknownEnvError: No such environment, or its module cannot be imported.
        ValueError: The environment refuses the arguments.
    """
    made = EnvHandle(resolve(name), dict(kwargs or {}))
    try:
        _ = made.prototype
    except (ModuleNotFoundError, gym.error.UnregisteredEnv) as error:
        raise UnknownEnvError(f"cannot make environment {name!r}: {error}") from error
    except TypeError as error:
        raise ValueError(f"environment {name!r} refuses its arguments {dict(kwargs or {})}: {error}") from error
    return made


def make(name: str, **kwargs: Any) -> ToolEnv:
    """Makes an environment by short name or id: ``make("chess")``.

    Args:
        name: As for `resolve`.
        **kwargs: Passed to the environment.

    Returns:
        The environment, without Gymnasium's wrappers.

    Raises:
        UnknownEnvError: No such environment.
    """
    return handle(name, kwargs).prototype
