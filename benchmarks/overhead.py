"""What the rollout loop costs when the model costs nothing: ``python -m benchmarks.overhead``.

Plays scripted episodes and times a turn in this process without token ids, a turn late in a long episode whose prompts
carry ids, whole rollouts through HTTP (`OpenAIPolicy` against a server in another process), and the import of
`harness_sdk`. With ``--peers`` it plays an episode of as many turns in other agent frameworks beside it. What happens
in one process is given in its processor time: wall time on an idle machine, and it does not grow on a busy one. Ends
with status 1 when a figure misses its bound. The speed of models is `benchmarks.generation`'s, that of the cage
`benchmarks.sandbox`'s.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym

from benchmarks import command
from harness_sdk import Completion, Harness, Job, RolloutConfig, ScriptedPolicy, load, rollout
from harness_sdk.policies import Generation, OpenAIPolicy, Policy, Request
from harness_sdk.trajectory import Trajectory
from whale_env.core import DomainSpec, EnvHandle, Outcome, ToolEnv, said_verbatim
from whale_env.types import Observation, Score, Split, Task, ToolCall, ToolSpec

ENV = "whale-benchmarks/Notes-v0"
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
REPLY = "I write this down. <note>a line worth keeping</note>"
SEEN = "Noted. " * 8
TURNS = 8
LATE = 128
"""The turn at which the cost of a long episode is read."""
TOLERATED = 3
"""Turns before it that are read with it."""


class Notes:
    """A domain that costs nothing: notes are taken, and nothing ends the episode."""

    spec = DomainSpec("notes", (ToolSpec("note", "Writes a note.", TEXT),), max_steps=100_000)

    def tasks(self, split: Split) -> Sequence[Task]:
        """Returns the one task of a split."""
        return [Task(f"{split}-0", "notes", split)]

    def start(self, task: Task, seed: int) -> Notebook:
        """Opens a notebook."""
        return Notebook()


class Notebook:
    """An episode of `Notes`."""

    def observe(self) -> Observation:
        """Shows the same text always."""
        return Observation(SEEN)

    def apply(self, call: ToolCall) -> Outcome:
        """Accepts any note."""
        return Outcome(self.observe())

    def said(self, call: ToolCall, text: str) -> bool:
        """Whether the text says it."""
        return said_verbatim(call, text)

    def score(self) -> Score:
        """Gives no reward."""
        return Score(0.0, "budget")


def notes(split: Split = "train", render_mode: str | None = None) -> ToolEnv:
    """Makes the environment."""
    return ToolEnv(Notes(), split=split, render_mode=render_mode)


if ENV not in gym.registry:
    gym.register(ENV, entry_point=f"{__name__}:notes", disable_env_checker=True)


class Short(Harness):
    """The default hooks, for as many turns as are timed."""

    max_turns: ClassVar[int] = TURNS


class Long(Harness):
    """The default hooks in a long episode."""

    max_turns: ClassVar[int] = LATE + 1
    max_tokens: ClassVar[int] = 1_000_000
    max_prompt_tokens: ClassVar[int] = 1_000_000


class TokenPolicy:
    """Scripted, with ids as a model's: each prompt is the last one, what was sampled, and 32 ids of observation.

    Attributes:
        asked: When each request came, in seconds of processor time.
    """

    def __init__(self) -> None:
        self._said = tuple(range(100, 164))
        self._logprobs = (-0.5,) * len(self._said)
        self._completion = Completion(REPLY, "stop", (), len(self._said))
        self.asked: list[float] = []

    async def generate(self, request: Request) -> Generation:
        """Answers one request."""
        self.asked.append(time.process_time())
        last = request.previous
        prompt = tuple(range(300)) if last is None else last.prompt_ids + last.token_ids + tuple(range(32))
        return Generation(self._completion, "", prompt, self._said, self._logprobs)


@dataclass(frozen=True, slots=True)
class Played:
    """What some episodes gave, and what they took: seconds on the clock and of this process's processor time."""

    trajectories: list[Trajectory]
    wall: float
    processor: float


def play(policy: Policy, harness: type[Harness], episodes: int) -> Played:
    """Plays episodes, 64 at a time."""
    env = EnvHandle(ENV, {})
    loaded = load(f"benchmarks.overhead:{harness.__name__}")
    jobs = [Job(loaded, env.tasks("train")[0], index) for index in range(episodes)]
    config = RolloutConfig(max_turns=10_000, max_tokens=10**6, max_prompt_tokens=10**6, concurrency=64)

    async def played() -> Played:
        wall, processor = time.perf_counter(), time.process_time()
        done = await rollout(jobs, env, policy, config)
        took = Played(done, time.perf_counter() - wall, time.process_time() - processor)
        if isinstance(policy, OpenAIPolicy):
            await policy.close()
        return took

    played_now = asyncio.run(played())
    for trajectory in played_now.trajectories:
        if len(trajectory.turns) != harness.max_turns or trajectory.reward is None:
            raise SystemExit(
                f"an episode of {len(trajectory.turns)} turns, not {harness.max_turns}: {trajectory.stopped}"
            )
    return played_now


def in_process(episodes: int) -> float:
    """Returns the seconds a turn takes without ids, opening and closing of episodes included."""
    return play(ScriptedPolicy([REPLY], tokens=False), Short, episodes).processor / (episodes * TURNS)


def late_turn() -> tuple[float, float]:
    """Returns the seconds a turn takes with ids at turn `LATE`, and the seconds a turn that cutting samples takes."""
    policy = TokenPolicy()
    (trajectory,) = play(policy, Long, 1).trajectories
    steps = [after - before for before, after in zip(policy.asked, policy.asked[1:], strict=False)]
    began = time.process_time()
    (sample,) = trajectory.samples()
    cut = time.process_time() - began
    assert sum(sample.mask) == 64 * len(trajectory.calls)
    return statistics.median(steps[LATE - 1 - TOLERATED : LATE]), cut / len(trajectory.calls)


def through_http(url: str, episodes: int) -> float:
    """Returns rollouts a second through a server."""
    policy = OpenAIPolicy("scripted", server="vllm", base_url=url, api_key="none", concurrency=64)
    return episodes / play(policy, Short, episodes).wall


def import_seconds() -> float:
    """Returns how long importing `harness_sdk` takes in a fresh interpreter."""
    code = "import time; began = time.process_time(); import harness_sdk; print(time.process_time() - began)"
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


def _answer() -> bytes:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": REPLY}}
    usage = {"prompt_tokens": 300, "completion_tokens": 16, "total_tokens": 316}
    body = {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": "scripted",
        "choices": [choice],
        "usage": usage,
    }
    data = json.dumps(body).encode()
    head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    return head.encode() + data


def serve(ready: Connection) -> None:
    """Answers every request alike, over kept-alive connections, until it is terminated."""
    answer = _answer()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
                await reader.readexactly(int(length[1]) if length else 0)
                writer.write(answer)
                await writer.drain()

    async def main() -> None:
        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


@contextlib.contextmanager
def served() -> Iterator[str]:
    """Runs `serve` in another process; gives its address."""
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=serve, args=(there,), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{here.recv()}/v1"
    finally:
        process.terminate()
        process.join()


INSPECT = """
import json, os, sys, tempfile, time
os.chdir(tempfile.mkdtemp())
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageUser, ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import solver

turns, episodes, reply, seen = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]

@solver
def talk():
    async def solve(state, generate):
        for turn in range(turns):
            state = await generate(state)
            state.messages.append(ChatMessageUser(content=seen))
        return state
    return solve

def said():
    output = ModelOutput.from_content("mockllm/model", reply)
    output.usage = ModelUsage(input_tokens=300, output_tokens=16, total_tokens=316)  # else it counts tokens itself
    return output

def play(count):
    outputs = (said() for _ in range(count * turns))
    model = get_model("mockllm/model", custom_outputs=outputs)
    task = Task(dataset=[Sample(input=seen, target="line") for _ in range(count)], solver=talk(), scorer=includes())
    began = time.process_time()
    (log,) = eval(task, model=model, display="none", max_samples=64, max_connections=64)
    took = time.process_time() - began
    assert log.status == "success", log.error.message[:200]
    return took

play(1)
few, many = play(1), play(episodes + 1)
print(json.dumps({"turn": (many - few) / (episodes * turns)}))
"""

# Its lightest way: no program is launched (its null harness launches one a turn), no Env and no endpoint stand around
# the agent. Its model calls always pass its interception server, here over loopback HTTP inside one process.
VERIFIERS = """
import asyncio, json, os, sys, tempfile, time
os.environ["HOME"] = tempfile.mkdtemp()  # each rollout makes a folder under ~/.cache
import aiohttp
import verifiers.v1 as vf
from verifiers.v1.interception import InterceptionServer

turns, episodes, reply, seen = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
__all__ = ["Talk"]  # the harness that "__main__" names

class Talk(vf.Harness[vf.HarnessConfig]):
    SUPPORTS_RESUME, EXECUTES_CODE, NEEDS_CONTAINER = True, False, False

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        body = {"model": ctx.model, "messages": [message.model_dump(exclude_none=True) for message in data.prompt]}
        headers = {"authorization": f"Bearer {secret}"}
        async with http.post(f"{endpoint}/chat/completions", json=body, headers=headers) as response:
            await response.json()
        return vf.ProgramResult(0, "", "")

class Scripted(vf.Client):
    async def get_response(self, dialect, body, sampling, session_id=None, turn=None, headers=None):
        said = vf.AssistantMessage(content=reply)
        usage = {"prompt_tokens": 300, "completion_tokens": 16, "total_tokens": 316}
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": reply}}
        head = {"id": "x", "created": 0, "model": "scripted"}
        raw = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
        return vf.Response(**head, message=said, finish_reason="stop", usage=vf.Usage(**usage), raw=raw)

class Said(vf.Task):
    @vf.reward
    async def includes(self, trace):
        return float("line" in trace.last_reply)

async def talks(count):
    global http
    seat = vf.AgentConfig(model="scripted", harness={"id": "__main__"}, runtime=vf.SubprocessConfig())
    server = InterceptionServer()
    agent = vf.Agent(seat, interception=server)
    server.clients[agent.ctx.client.model_dump_json()] = Scripted()
    gate = asyncio.Semaphore(64)

    async def talk():
        async with gate, agent.interaction(Said(vf.TaskData())) as user:
            for turn in range(turns):
                segment = await user.turn(seen)
                assert not segment.terminated, user.trace.last_error
        assert user.trace.ok and user.trace.reward == 1.0, user.trace.last_error

    async with server, aiohttp.ClientSession(raise_for_status=True) as http:
        await asyncio.gather(*(talk() for _ in range(count)))

def spent():
    return time.process_time() + sum(os.times()[2:4])  # its own, and its children's

def play(count):
    began = spent()
    asyncio.run(talks(count))
    return spent() - began

play(1)
few, many = play(1), play(episodes + 1)
print(json.dumps({"turn": (many - few) / (episodes * turns)}))
"""

PEERS = {"inspect-ai": ("inspect_ai", INSPECT), "verifiers": ("verifiers", VERIFIERS)}
"""Distribution → package and a script that prints the seconds a turn takes, opening of episodes included."""


def peer(name: str, python: str, episodes: int) -> tuple[float | None, str]:
    """Returns the seconds a turn takes in another framework, or None, and its version or why there is none."""
    package, script = PEERS[name]
    version = f"from importlib.metadata import version; import {package}; print(version({name!r}))"
    found = subprocess.run([python, "-c", version], capture_output=True, text=True)
    if found.returncode:
        return None, f"not installed for {python}"
    arguments = [str(TURNS), str(episodes), REPLY, SEEN]
    done = subprocess.run([python, "-c", script, *arguments], capture_output=True, text=True)
    if done.returncode:
        return None, f"{found.stdout.strip()} failed: {(done.stderr.strip().splitlines() or ['no message'])[-1][:200]}"
    return float(json.loads(done.stdout.strip().splitlines()[-1])["turn"]), found.stdout.strip()


class Table:
    """Prints figures as they come, keeps them, and remembers whether one missed its bound."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.missed = False

    def row(self, what: str, value: float, unit: str, bound: float | None = None, *, least: bool = False) -> None:
        """Prints one figure; ``least`` makes the bound a lower one."""
        missed = bound is not None and (value < bound if least else value > bound)
        self.missed |= missed
        against = (
            "" if bound is None else f"{'at least' if least else 'at most'} {bound:g}{' MISSED' if missed else ''}"
        )
        print(f"  {what:52} {value:9.3f} {unit:12} {against}", flush=True)
        self.rows.append({"what": what, "value": value, "unit": unit, "bound": bound, "missed": missed})


def measure(table: Table, episodes: int, rounds: int) -> None:
    """Measures ours, medians over rounds."""
    play(ScriptedPolicy([REPLY]), Short, 1)  # imports and caches
    turn = statistics.median(in_process(episodes) for _ in range(rounds))
    table.row("a turn in process, without token ids", turn * 1e3, "ms", 0.2)
    late = [late_turn() for _ in range(rounds)]
    table.row(
        f"turn {LATE} of an episode, with token ids", statistics.median(step for step, _ in late) * 1e3, "ms", 1.0
    )
    table.row("  cutting its training sample, a turn", statistics.median(cut for _, cut in late) * 1e3, "ms")
    with served() as url:
        through_http(url, 1)
        rate = statistics.median(through_http(url, episodes) for _ in range(rounds))
    table.row(f"rollouts of {TURNS} turns through HTTP", rate, "rollouts/s", 50.0, least=True)
    table.row("import harness_sdk, best of 5", min(import_seconds() for _ in range(5)), "s", 0.5)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns the exit status."""
    parser = command.parser("overhead", (__doc__ or "").split("\n")[0])
    parser.add_argument("--episodes", type=int, default=64, help="episodes in a round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds; medians are shown (default: %(default)s)")
    parser.add_argument("--peers", action="store_true", help=f"also time {', '.join(PEERS)} where installed")
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter that has them (default: this one)")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    options = parser.parse_args(arguments)
    if options.episodes < 1 or options.rounds < 1:
        parser.error("--episodes and --rounds must be at least 1")
    load_before = os.getloadavg()[0]
    print(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores, load {load_before:.2f} at the start")
    table = Table()
    measure(table, options.episodes, options.rounds)
    ours = table.rows[0]["value"]
    for name in PEERS if options.peers else ():
        seconds, note = peer(name, options.peer_python, options.episodes)
        if seconds is None:
            print(f"  {name}: {note}")
        else:
            table.row(f"{name} {note}: a turn in process", seconds * 1e3, f"ms, {seconds * 1e3 / ours:.0f} x")
    if options.json:
        options.json.write_text(json.dumps({"load": load_before, "rows": table.rows}, indent=1) + "\n", "utf-8")
    return int(table.missed)


if __name__ == "__main__":
    command.finish(main)
