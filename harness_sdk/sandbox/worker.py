"""What runs inside the cage: one untrusted harness, for one episode, behind a wire.

This code is as exposed as the harness that it runs, which may rewrite all of it; the trusted side
(`harness_sdk.sandbox.session`) believes nothing that comes from here. It only makes honest harnesses behave as
`LocalSession` makes them behave. Confinement and limits are in place before it starts (`whale_env.sandbox.zygote`).
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from types import ModuleType
from typing import Any, cast

from harness_sdk.harness import Harness, Tools
from harness_sdk.session import (
    EnvTools,
    HarnessError,
    Limits,
    checked_calls,
    checked_messages,
    checked_optional_text,
    checked_tools,
    cut_optional_text,
    cut_text,
    described,
)
from harness_sdk.types import Completion, Episode, ParseFailure, StepResult, Turn
from whale_env.types import Observation, Task, ToolCall, ToolSpec

MODULE = "candidate"
FILE = "<harness>"

# Bound here, so that a harness that replaces `json.dumps` or `os.write` does not lose its own answers.
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_decode = json.JSONDecoder().decode
_read, _write, _exit = os.read, os.write, os._exit


def main(wire: int, job: Mapping[str, Any]) -> None:
    """Loads the harness that the first message brings, then answers hook calls until the wire is closed."""
    opening = _receive(wire)
    random.seed(opening["seed"])
    try:
        harness = harness_class(opening["source"], opening["class"])()
        limits = asdict(Limits.declared_by(harness))
    except HarnessError as error:
        _send(wire, {"id": 0, "hook": error.hook, "error": _why(error)})
        return
    except BaseException as error:
        _send(wire, {"id": 0, "hook": "load", "error": described(error, FILE)})
        return
    _send(wire, {"id": 0, "value": limits})
    served = _Hooks(wire, harness)
    while True:
        request = _receive(wire)
        answer: dict[str, Any] = {"id": request["id"]}
        try:
            frame = _encode({**answer, "value": served.call(request)})
        except HarnessError as error:
            frame = _encode({**answer, "error": _why(error)})
        except BaseException as error:
            frame = _encode({**answer, "error": described(error, FILE)})
        _send_text(wire, frame)


def harness_class(source: str, name: str | None = None) -> type[Harness]:
    """Runs a harness's source as a fresh module and finds its class.

    Args:
        source: Python source.
        name: The class to take, where the source defines several.

    Returns:
        The class.

    Raises:
        HarnessError: The source cannot be run, does not define exactly one `Harness` subclass, or none of that name.
    """
    module = ModuleType(MODULE)
    module.__file__ = FILE
    sys.modules[MODULE] = module
    try:
        exec(compile(source, FILE, "exec"), module.__dict__)
    except BaseException as error:
        raise HarnessError("load", described(error, FILE)) from error
    found = {
        value.__name__: value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Harness) and value.__module__ == MODULE
    }
    names = ", ".join(found) or "none"
    if name is not None:
        if name not in found:
            raise HarnessError("load", f"there is no Harness subclass {name!r}; the source defines {names}")
        return found[name]
    if len(found) != 1:
        raise HarnessError("load", f"the source must define exactly one Harness subclass; it defines {names}")
    return next(iter(found.values()))


class _Hooks:
    """The harness, and its episode as rebuilt from what was sent so far."""

    def __init__(self, wire: int, harness: Harness) -> None:
        self._wire = wire
        self._harness = harness
        self._turns: list[Turn] = []
        self._packed: list[Any] = []
        self._specs: tuple[ToolSpec, ...] = ()
        self._acting = 0

    def call(self, request: dict[str, Any]) -> Any:
        """Runs one hook and returns its checked result as JSON data."""
        hook = str(request["hook"])
        answer: Callable[[dict[str, Any]], Any] = getattr(self, f"_{hook}")
        return answer(request)

    def _tools(self, request: dict[str, Any]) -> Any:
        return checked_tools(self._harness.tools(_specs(request["tools"])))

    def _pack(self, request: dict[str, Any]) -> Any:
        messages = checked_messages(self._harness.pack(self._episode(request)))
        keep = 0
        for old, new in zip(self._packed, messages, strict=False):
            if "tool_calls" in new or old != new:
                break
            keep += 1
        self._packed = list(messages)
        return {"keep": keep, "messages": messages[keep:]}

    def _parse(self, request: dict[str, Any]) -> Any:
        completion = Completion.from_json(request["completion"])
        found = checked_calls(self._harness.parse(completion, self._episode(request)))
        if isinstance(found, ParseFailure):
            return {"failure": found.to_json()}
        return {"calls": [call.to_json() for call in found]}

    def _act(self, request: dict[str, Any]) -> Any:
        if "specs" in request:
            self._specs = _specs(request["specs"])
        self._acting = int(request["id"])
        step = _Step(self, self._acting)
        try:
            call, env = ToolCall.from_json(request["call"]), cast(Tools, EnvTools(self._specs, step))
            return cut_text("act", self._harness.act(call, env))
        finally:
            self._acting = 0

    def _recover(self, request: dict[str, Any]) -> Any:
        failure = ParseFailure.from_json(request["failure"])
        return cut_optional_text("recover", self._harness.recover(failure, self._episode(request)))

    def _stop(self, request: dict[str, Any]) -> Any:
        return checked_optional_text("stop", self._harness.stop(self._episode(request)))

    def step(self, act: int, call: ToolCall) -> StepResult:
        """Asks the trusted side to step the environment."""
        if act != self._acting:
            raise RuntimeError("env.step works only inside the act call that it was given to")
        _send(self._wire, {"id": act, "step": call.to_json()})
        return StepResult.from_json(_receive(self._wire)["result"])

    def _episode(self, request: dict[str, Any]) -> Episode:
        delta = request["episode"]
        if "base" in delta:
            base = delta["base"]
            self._task = Task.from_json(base["task"])
            self._env_tools = _specs(base["tools"])
            self._first = Observation.from_json(base["first"])
        if "observation" in delta:
            shown = delta["observation"]
            self._observation = self._first if shown is None else Observation.from_json(shown)
        self._turns[delta["keep"] :] = [Turn.from_json(turn) for turn in delta["turns"]]
        turns = tuple(self._turns)
        return Episode(self._task, self._env_tools, self._first, self._observation, turns, delta["done"])


class _Step:
    """``env.step`` as a harness sees it."""

    blocking = False

    def __init__(self, hooks: _Hooks, act: int) -> None:
        self._hooks = hooks
        self._act = act

    def __call__(self, call: ToolCall) -> StepResult:
        return self._hooks.step(self._act, call)


def _specs(data: list[dict[str, Any]]) -> tuple[ToolSpec, ...]:
    return tuple(ToolSpec.from_json(spec) for spec in data)


def _why(error: HarnessError) -> str:
    return str(error).removeprefix(f"{error.hook}: ")


def _receive(wire: int) -> dict[str, Any]:
    size = int.from_bytes(_exactly(wire, 4), "big")
    message: dict[str, Any] = _decode(_exactly(wire, size).decode("utf-8", "surrogatepass"))
    return message


def _exactly(wire: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = _read(wire, min(size - len(data), 1 << 20))
        if not chunk:
            _exit(0)
        data += chunk
    return bytes(data)


def _send(wire: int, message: dict[str, Any]) -> None:
    _send_text(wire, _encode(message))


def _send_text(wire: int, text: str) -> None:
    data = text.encode("utf-8", "surrogatepass")
    view = memoryview(len(data).to_bytes(4, "big") + data)
    while view:
        view = view[_write(wire, view) :]
