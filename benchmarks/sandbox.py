"""What the cage costs: ``python -m benchmarks.sandbox``.

Times a cage's start, hook calls, many episodes at once and the harm that a stuck worker does, each beside the same
thing without a cage where there is one, and `run_python` beside a plain interpreter. Ends with status 1 when a figure
misses its bound. Whether the cage holds is not measured here: the tests do that.
"""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from benchmarks import command
from harness_sdk.sandbox import CageLimits, CagePool, confinement, run_python
from harness_sdk.sandbox.worker import harness_class
from harness_sdk.session import HarnessError, HarnessSession, LocalSession
from harness_sdk.types import Completion, Episode, StepResult, Turn
from whale_env.types import Observation, Task, ToolCall, ToolSpec

T = TypeVar("T")

SOURCE = '''
import re
from harness_sdk.harness import Harness
from harness_sdk.types import Completion, Episode, Message, ParseFailure
from whale_env.types import ToolCall

class Plain(Harness):
    """Shows the position and the last turns, and reads the last tag."""

    system = "You play chess. Think, then answer <move>uci</move>."
    window = 64

    def pack(self, episode: Episode) -> list[Message]:
        messages: list[Message] = [{"role": "system", "content": self.system}]
        messages.append({"role": "user", "content": episode.first.text})
        for turn in episode.turns[-self.window:]:
            messages.append({"role": "assistant", "content": turn.completion.text})
            messages.append({"role": "user", "content": turn.feedback or " ".join(turn.results) or "Continue."})
        return messages

    def parse(self, completion: Completion, episode: Episode) -> list[ToolCall] | ParseFailure:
        found = re.findall(r"<move>(.*?)</move>", completion.text)
        return [ToolCall("move", {"uci": found[-1].strip()})] if found else ParseFailure("no <move> tag found")
'''
STUCK = """
from harness_sdk.harness import Harness

class Stuck(Harness):
    def pack(self, episode):
        while True:
            pass
"""
MOVE = ToolSpec("move", "Plays a move.", {"type": "object", "properties": {"uci": {"type": "string"}}}, commits=True)
FIRST = Observation(
    "White to move.\n" + "r n b q k b n r\n" * 8, {"fen": "rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR"}
)
EPISODE = Episode(Task("t", "chess", "search"), (MOVE,), FIRST, FIRST)
TEXT = "I look at the centre first. " * 40 + "<move>e2e4</move>"


class Steps:
    """An environment that costs nothing."""

    blocking = False

    def __call__(self, call: ToolCall) -> StepResult:
        """Answers any call alike."""
        return StepResult(FIRST)


async def play(session: HarnessSession, turns: int) -> list[float]:
    """Plays a scripted episode and returns the seconds of each hook call."""
    times: list[float] = []
    episode = EPISODE

    async def timed(call: Awaitable[T]) -> T:
        began = time.perf_counter()
        value = await call
        times.append(time.perf_counter() - began)
        return value

    await timed(session.tools(episode.tools))
    for _ in range(turns):
        await timed(session.stop(episode))
        await timed(session.pack(episode))
        completion = Completion(TEXT, tokens=256)
        calls = await timed(session.parse(completion, episode))
        assert isinstance(calls, list)
        results = [await timed(session.act(call, episode.tools, Steps())) for call in calls]
        episode = replace(episode, turns=(*episode.turns, Turn(completion, tuple(calls), tuple(results))))
    return times


async def starts(pool: CagePool, count: int) -> list[float]:
    """Returns the seconds of each of many starts, one after another: fork, confine, run the module."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        session = await pool.open(SOURCE)
        times.append(time.perf_counter() - began)
        await session.close()
    return times


async def together(pool: CagePool, count: int, turns: int) -> float:
    """Returns the seconds that many episodes take at once."""

    async def one() -> None:
        session = await pool.open(SOURCE)
        await play(session, turns)
        await session.close()

    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(count)))
    return time.perf_counter() - began


async def beside_stuck(pool: CagePool, count: int, turns: int) -> tuple[float, float]:
    """Returns the seconds of many episodes beside a stuck one, and how long that one lived."""

    async def stuck() -> float:
        session = await pool.open(STUCK)
        began = time.perf_counter()
        try:
            await session.pack(EPISODE)
        except HarnessError:
            return time.perf_counter() - began
        finally:
            await session.close()
        raise AssertionError("the stuck harness answered")

    dying = asyncio.create_task(stuck())
    took = await together(pool, count, turns)
    return took, await dying


def clocked(call: Callable[[], object]) -> float:
    """Returns the seconds of a call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


class Table:
    """Prints figures as they come, and remembers whether one missed its bound."""

    missed = False

    def row(self, what: str, value: float, unit: str, bound: float | None = None, note: str = "") -> None:
        """Prints one figure."""
        missed = bound is not None and value > bound
        self.missed |= missed
        against = "" if bound is None else f"bound {bound:.3g}{' MISSED' if missed else ''}"
        print(f"  {what:48} {value:9.3f} {unit:3}  {against:16} {note}", flush=True)


async def cage(table: Table, episodes: int) -> None:
    """Measures the harness cage."""
    began = time.perf_counter()
    async with CagePool(limits=CageLimits(hook_seconds=1.0)) as pool:
        table.row("pool start, cold", (time.perf_counter() - began) * 1e3, "ms")
        times = sorted(await starts(pool, 100))
        note = f"slowest {times[-1] * 1e3:.1f}"
        table.row("cage start, warm, p50", statistics.median(times) * 1e3, "ms", 3.0, "fork, confinement, fresh module")
        table.row("cage start, warm, p99", times[98] * 1e3, "ms", 200.0, note)
        session = await pool.open(SOURCE)
        hooks = await play(session, 128)
        await session.close()
        plain = await play(LocalSession(harness_class(SOURCE)()), 128)
        ratio = statistics.median(hooks) / statistics.median(plain)
        table.row("hook round trip, p50", statistics.median(hooks) * 1e3, "ms", 0.5, f"{ratio:.0f} times uncaged")
        table.row("hook round trip, p99", sorted(hooks)[int(len(hooks) * 0.99)] * 1e3, "ms")
        table.row("last 16 turns of 128 over first 16", sum(hooks[-64:]) / sum(hooks[1:65]), "x")
        alone = await together(pool, episodes, 4)
        table.row(f"{episodes} episodes of 4 turns at once", alone, "s", None, f"{alone / episodes * 1e3:.1f} ms each")
        beside, lived = await beside_stuck(pool, episodes, 4)
        table.row("the same beside a stuck one", beside, "s", alone + lived, f"which lived {lived:.2f} s")


def python(table: Table) -> None:
    """Measures `run_python`."""
    table.row("run_python, first call", clocked(lambda: run_python("1")) * 1e3, "ms")
    code = "import sympy, numpy\nsympy.sqrt(8)"
    times = [clocked(lambda: run_python(code)) for _ in range(30)]
    plain = min(clocked(lambda: subprocess.run([sys.executable, "-c", code], check=True)) for _ in range(3))
    note = f"plain interpreter {plain / statistics.median(times):.0f} times that"
    table.row("run_python with sympy and numpy, p50", statistics.median(times) * 1e3, "ms", None, note)
    with ThreadPoolExecutor(64) as threads:
        took = clocked(lambda: list(threads.map(run_python, [code] * 64)))
    table.row("64 of them at once", took, "s")


def main() -> int:
    """Runs the benchmark; returns the exit status."""
    parser = command.parser("sandbox", "What the cage costs.")
    parser.add_argument("--episodes", type=int, default=200, help="episodes at once (default: %(default)s)")
    episodes = parser.parse_args().episodes
    if not confinement().available:
        print(f"nothing to measure: {confinement().why}")
        return 1
    print(confinement().why)
    table = Table()
    asyncio.run(cage(table, episodes))
    python(table)
    return int(table.missed)


if __name__ == "__main__":
    command.finish(main)
