"""Names of environments: ours, and any other that Gymnasium knows (``my_pkg:MyEnv-v0``, ``my_pkg/MyEnv-v0``).

Importing `whale_env` registers ours. Without that import, ``packaging/whale_gymnasium.py`` does so when Gymnasium is
imported, since Gymnasium 1.0 no longer reads its own plug-in entry points. Nothing is constructed here.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib.metadata import entry_points
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

ADAPTERS: Mapping[str, tuple[str, str]] = {
    "gymnasium": ("whale/Gymnasium-v0", "whale_env.adapters:gymnasium_env"),
    "reasoning-gym": ("whale/ReasoningGym-v0", "whale_env.adapters:reasoning_env"),
}
"""The same for doors to environments of others; these need arguments that say which."""

PLUGINS = "gymnasium.envs"
"""Entry-point group whose members are functions that register environments with Gymnasium."""


class UnknownEnvError(LookupError):
    """No environment has that name."""


def register() -> None:
    """Registers our environments with Gymnasium; safe to call twice."""
    for env_id, entry_point in (*ENVS.values(), *ADAPTERS.values()):
        if env_id not in gym.registry:
            gym.register(env_id, entry_point=entry_point)


def load_plugins(name: str) -> dict[str, str]:
    """Has installed packages register their environments, until one with a given id is there.

    A package declares ``[project.entry-points."gymnasium.envs"]`` with ``my_pkg = "my_pkg:register"``; the function
    takes no arguments. Those named like the id's namespace are asked first.

    Args:
        name: A Gymnasium id that is not known yet.

    Returns:
        Why plug-ins failed, by name. One that fails does not keep the others from being asked.
    """
    namespace = name.partition("/")[0] if "/" in name else ""
    failed: dict[str, str] = {}
    for plugin in sorted(entry_points(group=PLUGINS), key=lambda point: (point.name != namespace, point.name)):
        if name in gym.registry:
            break
        try:
            plugin.load()()
        except Exception as error:  # whatever a stranger's package does at import is its own affair
            failed[plugin.name] = f"{type(error).__name__}: {error}"
    return failed


def resolve(name: str) -> str:
    """Turns a short name or an id into a Gymnasium id.

    Args:
        name: ``"chess"``, ``"whale/Chess-v0"``, ``"module:Env-v0"``, or ``"my_pkg/Env-v0"`` of an installed package
            that registers it through the ``gymnasium.envs`` entry point.

    Returns:
        The Gymnasium id.

    Raises:
        UnknownEnvError: Nothing has that name; the message suggests the nearest.
    """
    register()
    ours = {**ENVS, **ADAPTERS}
    if name in ours:
        return ours[name][0]
    if name in gym.registry or ":" in name:
        return name
    failed = load_plugins(name)
    if name in gym.registry:
        return name
    names = {key.lower(): key for key in (*ours, *(env_id for env_id, _ in ours.values()), *gym.registry)}
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    hint = f" Did you mean {names[near[0]]!r}?" if near else ""
    broken = "".join(f" The plug-in {plugin!r} failed: {why}." for plugin, why in failed.items())
    known = f"Known: {', '.join(ours)}, module:EnvId, or the id of an installed plug-in."
    raise UnknownEnvError(f"unknown environment {name!r}.{hint} {known}{broken}")


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
        raise ValueError(f"environment {name!r} cannot be made with {dict(kwargs or {})}: {error}") from error
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
