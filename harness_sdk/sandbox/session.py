"""`CagedSession`: an untrusted harness in a confined process of its own, behind the interface of a trusted one.

A worker is taken to be fully hostile. Everything it sends is bounded, decoded as plain JSON, and checked for type,
order and sequence before it is used; it is waited for no longer than its limits allow, and never by blocking; upon any
breach it is killed. Confinement itself is in `whale_env.sandbox`; what a hook may return is checked by
`harness_sdk.session`, as for trusted harnesses. Whether a harness decides in the model's place is not judged here.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NoReturn, TypeVar

from harness_sdk.sandbox.wire import ProtocolError, Wire, decoded, encoded, failure_of, tool_call_of, typed
from harness_sdk.session import (
    HarnessError,
    Limits,
    Step,
    checked_calls,
    checked_messages,
    checked_optional_text,
    checked_tools,
    cut_optional_text,
    cut_text,
)
from harness_sdk.types import Completion, Episode, Message, ParseFailure, ToolSchema, Turn
from whale_env.sandbox import spawn
from whale_env.types import Observation, ToolCall, ToolSpec

T = TypeVar("T")

MAX_ERROR = 4000
UNCHARGED = 0.1


@dataclass(frozen=True, slots=True)
class CageLimits:
    """What one untrusted harness may use.

    Attributes:
        hook_seconds: Time of one hook; the environment's own steps do not count.
        episode_seconds: Time of all hooks of an episode, a tenth of a second of each left out (machines are busy).
        cpu_seconds: Processor time of an episode, in whole seconds.
        memory_mb: Mebibytes beyond what the interpreter and the SDK take.
        message_bytes: Size of one answer.
        episode_bytes: Size of all answers of an episode.
        steps: ``env.step`` calls in one ``act``.
    """

    hook_seconds: float = 2.0
    episode_seconds: float = 30.0
    cpu_seconds: int = 30
    memory_mb: int = 256
    message_bytes: int = 8 << 20
    episode_bytes: int = 128 << 20
    steps: int = 256


class CagedSession:
    """An untrusted harness in its own process, for one episode; see `HarnessSession`.

    Besides `HarnessError`, hooks raise `ZygoteError` when the worker was lost through no fault of the harness.

    Attributes:
        caged: Whether it is confined, or runs under resource limits alone.
        limits: Its declared limits.
    """

    def __init__(
        self, worker: spawn.Worker, wire: Wire, slots: asyncio.Semaphore, limits: CageLimits, caged: bool
    ) -> None:
        self.caged = caged
        self.limits = Limits()
        self._worker = worker
        self._wire = wire
        self._slots = slots
        self._limits = limits
        self._left = limits.episode_seconds
        self._sequence = 0
        self._over: str | None = None
        self._sent = _Sent()
        self._packed: list[Any] = []

    async def load(self, opening: Mapping[str, Any]) -> None:
        """Has the worker load its harness; called once, by the pool."""
        try:
            self.limits = await self._checked("load", _limits_from, await self._ask("load", opening))
        except BaseException:
            await self.close()
            raise

    async def tools(self, env_tools: Sequence[ToolSpec]) -> list[ToolSchema]:
        """See `Harness.tools`."""
        return checked_tools(await self._call("tools", {"tools": [tool.to_json() for tool in env_tools]}))

    async def pack(self, episode: Episode) -> list[Message]:
        """See `Harness.pack`."""
        value = await self._call("pack", {"episode": self._sent.delta(episode)})
        return await self._checked("pack", self._packed_from, value)

    async def parse(self, completion: Completion, episode: Episode) -> list[ToolCall] | ParseFailure:
        """See `Harness.parse`."""
        request = {"completion": completion.to_json(), "episode": self._sent.delta(episode)}
        return await self._checked("parse", _parsed_from, await self._call("parse", request))

    async def act(self, call: ToolCall, specs: tuple[ToolSpec, ...], step: Step) -> str:
        """See `Harness.act`."""
        request: dict[str, Any] = {"call": call.to_json()}
        if self._sent.specs is not specs:
            request["specs"] = [spec.to_json() for spec in specs]
            self._sent.specs = specs
        return cut_text("act", await self._call("act", request, step))

    async def recover(self, failure: ParseFailure, episode: Episode) -> str | None:
        """See `Harness.recover`."""
        request = {"failure": failure.to_json(), "episode": self._sent.delta(episode)}
        return cut_optional_text("recover", await self._call("recover", request))

    async def stop(self, episode: Episode) -> str | None:
        """See `Harness.stop`."""
        return checked_optional_text("stop", await self._call("stop", {"episode": self._sent.delta(episode)}))

    async def close(self) -> None:
        """Kills the worker and waits until it is gone; safe to call twice."""
        if self._over is None:
            self._over = "the session is closed"
        await self._end()

    async def _call(self, hook: str, request: Mapping[str, Any], step: Step | None = None) -> Any:
        self._sequence += 1
        try:
            return await self._ask(hook, {"id": self._sequence, "hook": hook, **request}, step)
        except asyncio.CancelledError:  # the answer may be half read
            self._over = self._over or f"{hook} was cancelled"
            self._worker.kill()
            raise

    async def _ask(self, hook: str, request: Mapping[str, Any], step: Step | None = None) -> Any:
        """Sends one request and returns the value of its answer; serves ``env.step`` meanwhile, within ``act``."""
        if self._over is not None:
            raise HarnessError(hook, self._over)
        steps = 0
        left = allowed = min(self._limits.hook_seconds, self._left)
        while True:
            answer, spent = await self._exchange(hook, request, left)
            left -= spent
            if "step" not in answer:
                break
            steps += 1
            if step is None:
                await self._breach(hook, "protocol: env.step outside act")
            if steps > self._limits.steps:
                await self._breach(hook, f"more than {self._limits.steps} calls of env.step in one act")
            request = await self._stepped(hook, answer["step"], step)
        self._left -= max(0.0, allowed - left - UNCHARGED)
        if "error" in answer:
            raise HarnessError(answer["hook"] or hook, answer["error"])
        return answer["value"]

    async def _exchange(self, hook: str, request: Mapping[str, Any], seconds: float) -> tuple[dict[str, Any], float]:
        """Sends one message; returns the answer and the seconds that it took."""
        async with self._slots:
            began = time.monotonic()
            try:
                answer = self._read(await self._wire.exchange(encoded(request), seconds))
            except TimeoutError:
                await self._breach(hook, f"timeout: {self._limit_that_ended()}")
            except ProtocolError as error:
                await self._breach(hook, f"protocol: {error}")
            except ConnectionError:
                await self._died(hook)
            return answer, time.monotonic() - began

    def _read(self, frame: bytes) -> dict[str, Any]:
        """Decodes one answer and checks its outline: the right number, and exactly one kind of content."""
        answer = typed(decoded(frame), dict, "answer")
        if typed(answer.pop("id", None), int, "id") != self._sequence:
            raise ProtocolError(f"an answer out of sequence, expected {self._sequence}")
        if "error" in answer:
            hook = answer.pop("hook", None) if self._sequence == 0 else None
            error = typed(answer.pop("error"), str, "error")[:MAX_ERROR]
            hook = hook if hook in ("load", "limits") else None
            if answer:
                raise ProtocolError("an answer with more than an error")
            return {"error": error, "hook": hook}
        if len(answer) != 1 or not answer.keys() <= {"value", "step"}:
            raise ProtocolError("an answer with neither value, step nor error")
        return answer

    async def _checked(self, hook: str, check: Callable[[Any], T], value: Any) -> T:
        try:
            return check(value)
        except ProtocolError as error:
            await self._breach(hook, f"protocol: {error}")

    def _packed_from(self, value: Any) -> list[Message]:
        """Puts the messages together again: the worker sends only what differs from its last answer."""
        answer = typed(value, dict, "pack")
        keep, messages = typed(answer.get("keep"), int, "keep"), typed(answer.get("messages"), list, "messages")
        if not 0 <= keep <= len(self._packed):
            raise ProtocolError(f"keeps {keep} messages of {len(self._packed)}")
        self._packed[keep:] = messages
        return checked_messages(self._packed)

    async def _stepped(self, hook: str, data: Any, step: Step) -> dict[str, Any]:
        """Runs one step here. An error of the environment ends the session: the harness is not told what it says."""
        call = await self._checked(hook, tool_call_of, data)
        try:
            result = await asyncio.to_thread(step, call) if step.blocking else step(call)
        except Exception as error:
            self._over = "its environment failed"
            self._worker.kill()
            raise HarnessError(hook, f"{type(error).__name__}: {error}") from error
        return {"result": result.to_json()}

    def _limit_that_ended(self) -> str:
        limits = self._limits
        if self._left < limits.hook_seconds:
            return f"its hooks took more than {limits.episode_seconds} s in all"
        return f"no answer within {limits.hook_seconds} s"

    async def _breach(self, hook: str, why: str) -> NoReturn:
        """Kills the worker and says why."""
        self._over = why
        await self._end()
        raise HarnessError(hook, why)

    async def _died(self, hook: str) -> NoReturn:
        end = spawn.Exit.of(await self._end())
        if end.code is None:
            self._over = end.why
            raise spawn.ZygoteError(end.why)
        if end.code == -signal.SIGXCPU:
            await self._breach(hook, f"timeout: used its {self._limits.cpu_seconds} s of processor time")
        await self._breach(hook, f"killed: {end.why}")

    async def _end(self) -> bytes:
        """Kills the worker, waits for its end, and returns what its zygote says of it."""
        status = self._worker.status
        if status.fileno() < 0:
            return b""
        self._worker.kill()
        status.setblocking(False)
        try:
            async with asyncio.timeout(spawn.END_SECONDS):
                return await asyncio.get_running_loop().sock_recv(status, 4096)
        except (TimeoutError, OSError):
            return b""
        finally:
            self._wire.close()
            status.close()


def _limits_from(value: Any) -> Limits:
    declared = typed(value, dict, "limits")
    if declared.keys() != {field.name for field in fields(Limits)}:
        raise ProtocolError("limits of other names")
    return Limits.of(declared)


def _parsed_from(value: Any) -> list[ToolCall] | ParseFailure:
    answer = typed(value, dict, "parse")
    if answer.keys() == {"failure"}:
        return checked_calls(failure_of(answer["failure"]))
    if answer.keys() != {"calls"}:
        raise ProtocolError("neither calls nor a failure")
    return checked_calls([tool_call_of(call) for call in typed(answer["calls"], list, "calls")])


class _Sent:
    """What the worker already has of its episode, so that each turn crosses the wire once."""

    def __init__(self) -> None:
        self.specs: tuple[ToolSpec, ...] | None = None
        self._base: tuple[Any, ...] | None = None
        self._observation: Observation | None = None
        self._turns: tuple[Turn, ...] = ()

    def delta(self, episode: Episode) -> dict[str, Any]:
        """Returns what must be sent for the worker to have this episode, and notes it as sent."""
        base = (episode.task, episode.tools, episode.first)
        data: dict[str, Any] = {"done": episode.done}
        if self._base is None or any(old is not new for old, new in zip(self._base, base, strict=True)):
            data["base"] = {
                "task": episode.task.to_json(),
                "tools": [tool.to_json() for tool in episode.tools],
                "first": episode.first.to_json(),
            }
            self._base, self._observation = base, None
        if episode.observation is not self._observation:
            data["observation"] = None if episode.observation is episode.first else episode.observation.to_json()
            self._observation = episode.observation
        keep = 0
        for old, new in zip(self._turns, episode.turns, strict=False):
            if old is not new:
                break
            keep += 1
        data["keep"], data["turns"] = keep, [turn.to_json() for turn in episode.turns[keep:]]
        self._turns = episode.turns
        return data
