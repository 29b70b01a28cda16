"""Names of environments: ours, and any other that Gymnasium knows (``my_pkg:MyEnv-v0``, ``my_pkg/MyEnv-v0``).

Importing `whale_env` registers ours; without that import Gymnasium does so where the module stands before the id,
``gymnasium.make("whale_env:whale/Chess-v0")``. Nothing is constructed here.
"""

from __future__ import annotations

import importlib
import os
import sysconfig
import traceback
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym

from whale_env.core import DomainSpec, EnvHandle, ForeignEnvError, ToolEnv
from whale_env.errors import InputError, WhaleError
from whale_env.strict_json import read_object
from whale_env.types import Json, ToolSpec
from whale_env.wording import did_you_mean

ENVS: Mapping[str, tuple[str, str]] = {
    "chess": ("whale/Chess-v0", "whale_env.chess.env:chess_env"),
    "math": ("whale/Math-v0", "whale_env.math.env:math_env"),
    "searchqa": ("whale/SearchQA-v0", "whale_env.searchqa.env:searchqa_env"),
}
"""Short name → (Gymnasium id, entry point)."""

ADAPTERS: Mapping[str, tuple[str, str]] = {
    "gymnasium": ("whale/Gymnasium-v0", "whale_env.adapters:gymnasium_env"),
    "reasoning-gym": ("whale/ReasoningGym-v0", "whale_env.adapters:reasoning_env"),
}
"""The same for doors to environments of others; these need arguments that say which."""

PLUGINS = "gymnasium.envs"
"""Entry-point group whose members are functions that register environments with Gymnasium."""


class UnknownEnvError(WhaleError, LookupError):
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
    hint = did_you_mean(name, (*ours, *(env_id for env_id, _ in ours.values()), *gym.registry), cutoff=0.5)
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
        InputError: The environment refuses the arguments, or a module that is not ours fails to make it.
    """
    made = EnvHandle(resolve(name), dict(kwargs or {}))
    ours = made.name in {env_id for env_id, _ in (*ENVS.values(), *ADAPTERS.values())}
    if ":" in made.name:
        _import_for(made.name)
    try:
        _check_spec(made.prototype)
    except ForeignEnvError:
        raise
    except (ModuleNotFoundError, gym.error.UnregisteredEnv) as error:
        raise UnknownEnvError(f"cannot make environment {name!r}: {_line(error)}") from error
    except Exception as error:
        if ours and not isinstance(error, TypeError):
            raise  # ours say what is wrong in classes of their own
        told = _line(error) if ours else _told(error)
        raise InputError(f"environment {name!r} cannot be made with {made.kwargs}: {told}") from error
    return made


def declared(name: str) -> DomainSpec:
    """Returns what a domain declares of itself, before anybody has decided with which arguments it is made.

    That is the ``spec`` of the one domain class in the module of the entry point; where there is none, that of an
    environment made without arguments; where that fails too, a spec that has the defaults and no tool.

    Args:
        name: As for `resolve`.
    """
    try:
        env_id = resolve(name)
        if ":" in env_id:
            _import_for(env_id)
        point = gym.registry.get(env_id.rpartition(":")[2])
        found = _class_specs(importlib.import_module(_origin(point))) if point else []
        return found[0] if len(found) == 1 else handle(name).prototype.domain.spec
    except Exception:  # nobody has asked to make it yet; who does will be told
        return DomainSpec(name, ())


def _class_specs(module: ModuleType) -> list[DomainSpec]:
    classes = (kind for kind in vars(module).values() if isinstance(kind, type) and kind.__module__ == module.__name__)
    return [spec for kind in classes if isinstance(spec := vars(kind).get("spec"), DomainSpec)]


def _import_for(name: str) -> None:
    """Imports the module of ``module:EnvId``, which registers the id.

    Raises:
        UnknownEnvError: It cannot be imported, or registers no such id; the message lists those that it does register.
    """
    module, _, env_id = name.partition(":")
    before = set(gym.registry)
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:  # a stranger's module may do anything at import
        raise UnknownEnvError(f"cannot import module {module!r} of environment {name!r}: {_told(error)}") from error
    if not any(env_id in (key, key.rpartition("-v")[0]) for key in gym.registry):  # without a version: the latest
        own = [key for key, spec in gym.registry.items() if key not in before or _origin(spec) == module]
        known = f"it registers {_listed(own)}" if own else "it registers none: let it call gymnasium.register(id=…)"
        raise UnknownEnvError(f"module {module!r} registers no environment {env_id!r}; {known}")


def _origin(spec: gym.envs.registration.EnvSpec) -> str:
    """Returns the module that an entry point lies in."""
    point = spec.entry_point
    return point.partition(":")[0] if isinstance(point, str) else str(getattr(point, "__module__", ""))


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(map(repr, names[:8])) + more


def _check_spec(env: ToolEnv) -> None:
    spec: object = env.domain.spec
    if not isinstance(spec, DomainSpec):
        raise TypeError(f"the domain's spec is a {type(spec).__name__}, not a whale_env.DomainSpec")
    for tool in spec.tools:
        if not isinstance(tool, ToolSpec):
            raise TypeError(f"the spec's tool {tool!r:.80} is a {type(tool).__name__}, not a whale_env.ToolSpec")


def _line(error: BaseException) -> str:
    said, _, _ = str(error).partition(" was raised from the environment creator")  # Gymnasium repeats the arguments
    return " ".join(said.split())


def _told(error: BaseException) -> str:
    """Returns an error as one line: its kind, what it says, and where in the stranger's code it happened."""
    frames = traceback.extract_tb((error.__cause__ or error).__traceback__)
    place = next((f" ({Path(file).name}, line {line})" for file, line, *_ in reversed(frames) if _is_theirs(file)), "")
    return f"{type(error).__name__}: {_line(error)}{place}"


def _is_theirs(file: str) -> bool:
    ours = tuple(str(Path(str(module)).parent) + os.sep for module in (__file__, gym.__file__))
    installed = os.sep + "site-packages" + os.sep
    is_standard = file.startswith(sysconfig.get_path("stdlib")) and installed not in file
    return file.endswith(".py") and not file.startswith(ours) and not is_standard


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


def arguments_from(text: str) -> dict[str, Json]:
    """Reads an environment's keyword arguments, as a command line gives them.

    Args:
        text: A JSON object.

    Returns:
        The arguments.

    Raises:
        InputError: It is none; the message names ``--env-args``.
    """
    return read_object(text, "--env-args")
