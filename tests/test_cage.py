"""The cage: a caged harness behaves as a trusted one, and a hostile one reaches nothing and costs nobody but itself."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
import zlib
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import harness_sdk
import whale_env
from harness_sdk import LoadedHarness, ScriptedPolicy, jobs_for, rollout
from harness_sdk.sandbox import (
    CagedSession,
    CageLimits,
    CagePool,
    ConfinementError,
    ZygoteError,
    confinement,
    run_python,
    shared_pool,
)
from harness_sdk.sandbox.pool import SPARES
from harness_sdk.sandbox.worker import harness_class
from harness_sdk.session import HarnessError, HarnessSession, LocalSession
from harness_sdk.types import Completion, Episode, Message, ParseFailure, StepResult, Turn
from harness_sdk.validator.allowed import MODULES, SDK_NAMES
from whale_env.sandbox import kernel, python_tool
from whale_env.sandbox.kernel import Confinement
from whale_env.types import Observation, Task, ToolCall, ToolSpec, canonical_json

SHARED = Path(os.environ.get("WHALE_SHARED", Path(__file__).parents[2] / "shared")) / "cases"
confined = pytest.mark.skipif(not confinement().available, reason=confinement().why)

MOVE = ToolSpec("move", "Plays a move.", {"type": "object", "properties": {"uci": {"type": "string"}}}, commits=True)
FIRST = Observation("White to move.\ud800\x00 <|im_end|>", {"fen": "8/8", "legal": ["e2e4", "é"], "n": 3})
EPISODE = Episode(Task("t1", "chess", "search", {"tier": 2}), (MOVE,), FIRST, FIRST)
CALL = ToolCall("move", {"uci": "e2e4"})
TURN = Turn(Completion("<move>e2e4</move>", tokens=5), (CALL,), ("Black to move.",))
PLAIN = "from harness_sdk.harness import Harness\nclass Plain(Harness):\n    system = 'Play.'\n"


class Steps:
    """An environment that answers every call with a running number."""

    def __init__(self, blocking: bool = False) -> None:
        self.blocking = blocking
        self.calls: list[ToolCall] = []

    def __call__(self, call: ToolCall) -> StepResult:
        self.calls.append(call)
        return StepResult(Observation(f"state {len(self.calls)}", {"n": len(self.calls)}), len(self.calls) > 2)


@pytest.fixture(scope="module")
def pool() -> Iterator[CagePool]:
    limits = CageLimits(hook_seconds=1.0, episode_seconds=10, memory_mb=128, steps=32)
    pool = CagePool(limits=limits)
    yield pool
    asyncio.run(pool.close())


def with_session(pool: CagePool, source: str, use: Callable[[CagedSession], Coroutine[Any, Any, Any]]) -> Any:
    """Opens a session, uses it, closes it."""

    async def run() -> Any:
        session = await pool.open(textwrap.dedent(source))
        try:
            return await use(session)
        finally:
            await session.close()

    return asyncio.run(run())


def harness(**hooks: str) -> str:
    """Source of a harness whose hooks have the given bodies; ``top`` goes to the module."""
    arguments = {"tools": "env_tools", "pack": "episode", "parse": "completion, episode", "act": "call, env"}
    arguments |= {"recover": "failure, episode", "stop": "episode"}
    top = hooks.pop("top", "")
    lines = ["from harness_sdk.harness import Harness", "from harness_sdk.types import *", top, "class Case(Harness):"]
    for hook, body in hooks.items():
        lines += [f"    def {hook}(self, {arguments[hook]}):", textwrap.indent(body, "        ")]
    return "\n".join([*lines, "    limits_kept = True\n"])


async def outcome(awaitable: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await awaitable
    except HarnessError as error:
        return ("HarnessError", error.hook, str(error))


async def transcript(session: HarnessSession) -> list[Any]:
    """Everything that a session answers in one scripted episode."""
    episode, steps, said = EPISODE, Steps(), ["<move>e2e4</move>", "", "\x00\ud800 <|im_end|>", "z" * 5000, "<move>"]
    out: list[Any] = [session.limits, await outcome(session.tools(episode.tools))]
    for text in said:
        completion = Completion(text, "length" if text == "<move>" else "stop", tokens=len(text))
        out += [await outcome(session.stop(episode)), await outcome(session.pack(episode))]
        parsed = await outcome(session.parse(completion, episode))
        out.append(parsed)
        calls = tuple(parsed) if isinstance(parsed, list) else (CALL,)
        results = [await outcome(session.act(call, episode.tools, steps)) for call in calls]
        failure = parsed if isinstance(parsed, ParseFailure) else ParseFailure("illegal move", "e2e5")
        feedback = await outcome(session.recover(failure, episode))
        out += [results, feedback]
        turn = Turn(completion, calls, tuple(map(str, results)), failure, str(feedback))
        observation = Observation(f"after {text}", {"n": len(episode.turns)})
        episode = replace(episode, observation=observation, turns=(*episode.turns, turn))
    return [*out, steps.calls]


ALIKE = {
    "defaults": PLAIN,
    "state": harness(pack="self.n = getattr(self, 'n', 0) + 1\nreturn [{'role': 'user', 'content': str(self.n)}]"),
    "rewrites": harness(
        pack="""
return [
    {"role": "system", "content": repr(episode)},
    {"role": "tool", "content": episode.first.text, "tool_call_id": "c1"},
    {"role": "assistant", "content": "x", "tool_calls": [{"id": "c1", "n": len(episode.turns), "f": 1.5}]},
]""",
        act="return ' | '.join(env.step(call).text for _ in range(2)) + repr(env.specs)",
        parse="return [ToolCall('move', {'uci': w, 'deep': [1, None, True]}, 'id') for w in completion.text.split()]",
        top="from whale_env.types import ToolCall",
    ),
    "gives up": harness(recover="return None", stop="return 'enough' if episode.turns else None"),
    "raises": harness(pack="return {}['missing']", parse="raise ValueError('\\ud800')", act="return env.nothing"),
    "wrong types": harness(
        pack="return 3", parse="return [1]", act="return None", recover="return b''", tools="return [1]"
    ),
    "subclasses": harness(
        top="class S(str):\n    __eq__ = lambda s, o: True\n    __hash__ = str.__hash__\n    __str__ = lambda s: 'lie'",
        pack="return [{'role': 'user', 'content': S('a%d' % len(episode.turns))}]",
        act="return S('text')",
    ),
    "hash order": harness(act="return ','.join(sorted({'a', 'b', 'c'})) + str(hash(1.5))"),
    "changes what it returned": harness(
        pack="""
out = [{"role": "user", "content": "same"}, {"role": "user", "content": str(len(episode.turns))}]
self.kept = getattr(self, 'kept', out)
self.kept[0]['content'] = 'changed'
return out"""
    ),
    "limits": PLAIN + "    max_turns = 3\n    stop_strings = ['</move>']\n",
}


@confined
@pytest.mark.parametrize("source", ALIKE.values(), ids=ALIKE)
def test_a_harness_behaves_the_same_caged_and_trusted(pool: CagePool, source: str) -> None:
    caged = with_session(pool, source, transcript)
    local = asyncio.run(transcript(LocalSession(harness_class(source)())))
    assert caged == local
    assert [type(item) for item in caged] == [type(item) for item in local]


@confined
@pytest.mark.parametrize("name", ["ChessH0", "ChessStrong"])
def test_trajectories_are_the_same_byte_for_byte(pool: CagePool, name: str) -> None:
    trusted = harness_sdk.load(f"reference_harnesses.chess:{name}")

    async def opened(seed: int) -> HarnessSession:
        return await pool.open(trusted.source, name, seed=seed)

    env = whale_env.handle("chess")
    tasks = env.tasks("search")[:6]

    def script(messages: Sequence[Message]) -> str:
        """Answers badly, then with the first move that the prompt names; the prompt decides."""
        prompt = messages[-1]["content"]
        moves = re.findall(r"\b(?:[a-h][1-8]){2}\b|\b[KQRBN][a-h1-8]*x?[a-h][1-8]\b", prompt)
        choice = zlib.crc32(prompt.encode()) % 4
        return ["no idea \ud800", "<move>zz</move>", *[*moves, "e2e4"][:2]][choice]

    def played(harness: LoadedHarness) -> list[str]:
        run = rollout(jobs_for(harness, tasks, 2), env, ScriptedPolicy(script))
        return [canonical_json(trajectory.to_json()) for trajectory in asyncio.run(run)]

    caged = played(replace(trusted, trusted=False, _open=opened))
    assert caged == played(trusted)
    assert "harness_error" not in "".join(caged)
    assert '"results":["' in "".join(caged)


@confined
def test_what_a_harness_mutates_stays_in_its_cage(pool: CagePool) -> None:
    turn = Turn(Completion("x"), (ToolCall("move", {"uci": "e2e4"}),), ("ok",))
    episode = replace(EPISODE, turns=(turn,))
    source = harness(
        pack="c = episode.turns[0].calls[0]\nc.arguments['uci'] = 'changed'\nobject.__setattr__(c, 'name', 'x')\n"
        "return [{'role': 'user', 'content': repr(c)}]"
    )
    assert "changed" in with_session(pool, source, lambda session: session.pack(episode))[0]["content"]
    assert turn.calls[0].arguments == {"uci": "e2e4"}


@confined
def test_each_turn_crosses_the_wire_once_and_changes_are_noticed(pool: CagePool) -> None:
    source = harness(pack="return [{'role': 'user', 'content': repr(episode)}]")

    async def use(session: CagedSession) -> None:
        sent: list[int] = []
        exchange = session._wire.exchange

        async def spy(frame: bytes, seconds: float) -> bytes:
            sent.append(len(frame))
            return await exchange(frame, seconds)

        session._wire.exchange = spy  # type: ignore[method-assign]
        episode = EPISODE
        for count in range(40):
            episode = replace(episode, turns=(*episode.turns, replace(TURN, feedback=str(count))))
            assert (await session.pack(episode))[0]["content"] == _clean(repr(episode))
        assert max(sent[20:]) < 2 * min(sent[1:])
        other = replace(episode, turns=(*episode.turns[:5], replace(TURN, feedback="new"), *episode.turns[6:]))
        for changed in (
            other,
            replace(other, turns=()),
            replace(other, first=Observation("x")),
            replace(other, done=True),
        ):
            assert (await session.pack(changed))[0]["content"] == _clean(repr(changed))

    with_session(pool, source, use)


def _clean(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


@confined
def test_seed_fixes_randomness(pool: CagePool) -> None:
    source = harness(top="import random", act="return str(random.random()) + str(hash('x'))")

    async def run(seed: int) -> str:
        session = await pool.open(source, seed=seed)
        text = await session.act(CALL, (MOVE,), Steps())
        await session.close()
        return text

    assert asyncio.run(run(1)) == asyncio.run(run(1)) != asyncio.run(run(2))


@confined
@pytest.mark.parametrize("blocking", [False, True])
def test_env_step_is_served_within_act(pool: CagePool, blocking: bool) -> None:
    steps = Steps(blocking)
    source = harness(act="r = env.step(call)\nreturn f'{r.text} {r.observation.data} {r.done} {env.step(call).done}'")
    text = with_session(pool, source, lambda session: session.act(CALL, (MOVE,), steps))
    assert text == "state 1 {'n': 1} False False"
    assert steps.calls == [CALL, CALL]


@confined
def test_an_env_error_is_not_told_to_the_harness(pool: CagePool) -> None:
    class Broken(Steps):
        def __call__(self, call: ToolCall) -> StepResult:
            raise RuntimeError("the answer is 42")

    source = harness(act="try:\n    env.step(call)\nexcept BaseException as error:\n    return repr(error)")

    async def use(session: CagedSession) -> None:
        with pytest.raises(HarnessError, match="act: RuntimeError: the answer is 42"):
            await session.act(CALL, (MOVE,), Broken())
        with pytest.raises(HarnessError, match="environment failed"):
            await session.stop(EPISODE)

    with_session(pool, source, use)


@confined
@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("", "exactly one Harness subclass; it defines none"),
        ("x = 1 +", "load: SyntaxError: invalid syntax"),
        ("import nothing_of_that_name", r"ModuleNotFoundError.*\(line 1\)"),
        ("import torch", "ModuleNotFoundError"),
        ("\n1 / 0", r"load: ZeroDivisionError: division by zero \(line 2\)"),
        (PLAIN + "class Second(Harness): pass", "exactly one Harness subclass; it defines Plain, Second"),
        ("import sys\nsys.exit(3)", "load: SystemExit: 3"),
        ("import os\nos._exit(3)", "load: killed: the process exited with status 3"),
        ("while True: pass", "load: timeout"),
        ("'\ud800'", "UnicodeEncodeError"),
        ("x = '\x00'", "null bytes"),
        ("x = " + "(" * 500 + ")" * 500, "too many nested parentheses"),
        (f"x = {'-' * 100_000}1", "load: (RecursionError|MemoryError|killed)"),
        ("x = 'a' * 10**10", "load: MemoryError"),
        (PLAIN + "    max_turns = -1", "limits: max_turns must be a whole number from 1"),
        (PLAIN + "    max_turns = float('nan')", "limits: max_turns must be a whole number"),
        (PLAIN + "    max_turns = True", "limits: max_turns must be a whole number"),
        (PLAIN + "    stop_strings = ('',)", "limits: stop_strings must be a tuple of non-empty strings"),
        (PLAIN + "    def __init__(self): raise ValueError('no')", "load: ValueError: no"),
        (PLAIN + "    def __init__(self, x): pass", "load: TypeError"),
        ("from harness_sdk.harness import Harness\nclass M(type):\n    def __instancecheck__(c, o): raise SystemExit\n"
         "class H(Harness, metaclass=M):\n    def __init_subclass__(cls): 1/0\nclass G(H): pass", "ZeroDivisionError"),
        ("#" * 1_100_000, "load: the source has 1100000 characters"),
    ],
)  # fmt: skip
def test_sources_that_do_not_load(pool: CagePool, source: str, why: str) -> None:
    with pytest.raises(HarnessError, match=why):
        with_session(pool, source, lambda session: session.stop(EPISODE))


@confined
@pytest.mark.parametrize(
    ("hook", "body", "why"),
    [
        ("pack", "x = 1\nreturn episode.turns[9]", r"^pack: IndexError: .* \(line 7\)$"),
        ("act", "return 1 / 0", r"^act: ZeroDivisionError: .* \(line 6\)$"),
        ("stop", "raise ValueError('x' * 9999)", r"^stop: ValueError: x+ \(line 6\)$"),
    ],
)
def test_an_error_in_a_hook_names_its_line(pool: CagePool, hook: str, body: str, why: str) -> None:
    calls: dict[str, Callable[[HarnessSession], Coroutine[Any, Any, Any]]] = {
        "pack": lambda session: session.pack(EPISODE),
        "act": lambda session: session.act(CALL, (MOVE,), Steps()),
        "stop": lambda session: session.stop(EPISODE),
    }
    with pytest.raises(HarnessError, match=why):
        with_session(pool, harness(**{hook: body}), calls[hook])


@confined
def test_a_class_can_be_chosen(pool: CagePool) -> None:
    source = PLAIN + "class Second(Harness):\n    max_turns = 5\n"

    async def run() -> int:
        session = await pool.open(source, "Second")
        await session.close()
        with pytest.raises(HarnessError, match="no Harness subclass 'Third'; the source defines Plain, Second"):
            await pool.open(source, "Third")
        return session.limits.max_turns

    assert asyncio.run(run()) == 5


FORGE = """
import json, os
def forge(*messages, raw=b""):
    for message in messages:
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        raw += len(data).to_bytes(4, "big") + data
    while raw:
        raw = raw[os.write(3, raw):]
    while True: pass
"""

CONTAINED = {
    "endless": ("while 1:\n    try:\n        while 1: pass\n    except BaseException: pass", "timeout: no answer"),
    "regex": ("import re\nre.match(r'(a+)+$', 'a' * 40 + 'b')", "timeout"),
    "ignored signals": ("import signal as s\nfor n in (1, 2, 15, 24): s.signal(n, s.SIG_IGN)\nwhile 1: 1", "timeout"),
    "sleep": ("import time\ntime.sleep(60)", "timeout"),
    "integer bomb": ("return 10 ** 10 ** 9", "timeout|MemoryError"),
    "string bomb": ("return 'a' * 10 ** 10", "MemoryError"),
    "list bomb": ("x = []\nwhile True: x.append(x * 1000)", "MemoryError|timeout|killed"),
    "recursion": ("def f(): f()\nf()", "RecursionError"),
    "stack": ("import sys\nsys.setrecursionlimit(10**9)\ndef f(): return max(f(), key=f)\nf()", "killed|Memory|time"),
    "segfault": ("import ctypes\nctypes.string_at(0)", "killed: killed by signal 11"),
    "sys.exit": ("import sys\nsys.exit()", "SystemExit"),
    "os._exit": ("import os\nos._exit(0)", "killed: the process exited with status 0"),
    "interrupt": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    "fork bomb": ("import os\nwhile True: os.fork()", "PermissionError"),
    "thread bomb": ("import threading\nwhile True: threading.Thread(target=print).start()", "can't start new thread"),
    "kill parent": ("import os\nos.kill(os.getppid(), 9)", "PermissionError"),
    "long text": ("return 'x' * 5_000_000", "returned 5000000 characters"),
    "50 MB": ("return 'x' * 50_000_000", "returned 50000000 characters"),
    "closed wire": ("import os\nos.close(3)\nwhile True: pass", "killed|timeout"),
    "half a frame": (FORGE + "forge(raw=b'\\x00\\x00')", "timeout"),
    "no JSON": (FORGE + "forge(b'}{')", "protocol: not JSON"),
    "no text": (FORGE + "forge(b'\\xff\\xfe')", "protocol: not JSON"),
    "no object": (FORGE + "forge([])", "protocol: answer is list"),
    "huge frame": (FORGE + "forge(raw=b'\\xff\\xff\\xff\\xff')", "protocol: a message of 4294967295 bytes"),
    "wrong number": (FORGE + "forge({'id': 99, 'value': 'x'})", "out of sequence"),
    "boolean number": (FORGE + "forge({'id': True, 'value': 'x'})", "protocol: id is bool"),
    "no number": (FORGE + "forge({'value': 'x'})", "protocol: id is NoneType"),
    "two answers": (FORGE + "forge({'id': 1, 'value': 'x'}, {'id': 2, 'value': 'x'})", "more than one answer"),
    "two contents": (FORGE + "forge({'id': 1, 'value': 'x', 'error': 'y'})", "protocol"),
    "no content": (FORGE + "forge({'id': 1})", "protocol: an answer with neither"),
    "unknown content": (FORGE + "forge({'id': 1, 'reward': 1.0})", "protocol: an answer with neither"),
    "NaN": (FORGE + "forge({'id': 1, 'value': float('nan')})", "protocol: not JSON: NaN"),
    "long number": (FORGE + "forge(b'{\"id\": 1, \"value\": ' + b'1' * 100000 + b'}')", "protocol: not JSON"),
    "endless number": (FORGE + "forge(b'{\"id\": 1, \"value\": 1e999}')", "protocol: not JSON: number 1e999"),
    "nested": (FORGE + "forge(b'{\"id\": 1, \"value\": ' + b'[' * 99 + b']' * 99 + b'}')", "nested deeper than 64"),
    "many values": (FORGE + "forge(b'{\"id\": 1, \"value\": [' + b'[],' * 300_000 + b'[]]}')", "200000 values"),
    "deep JSON": (FORGE + "forge(b'[' * 100000 + b']' * 100000)", "protocol: not JSON"),
    "wrong type": (FORGE + "forge({'id': 1, 'value': {'a': 1}})", "must return a string, not dict"),
    "error of a wrong type": (FORGE + "forge({'id': 1, 'error': 5})", "protocol: error is int"),
    "foreign hook": (FORGE + "forge({'id': 1, 'error': 'x', 'hook': 'parse'})", "protocol: an answer with more than"),
    "bad step": (FORGE + "forge({'id': 1, 'step': {'name': 5, 'arguments': {}}})", "protocol: name is int"),
    "bad step arguments": (FORGE + "forge({'id': 1, 'step': {'name': 'm', 'arguments': [1]}})", "arguments is list"),
    "many steps": ("while True: env.step(call)", "more than 32 calls of env.step in one act"),
}  # fmt: skip


@confined
@pytest.mark.parametrize(("body", "why"), CONTAINED.values(), ids=CONTAINED)
def test_hostile_hooks_are_contained(pool: CagePool, body: str, why: str) -> None:
    async def use(session: CagedSession) -> str:
        start = time.monotonic()
        with pytest.raises(HarnessError, match=why) as caught:
            await session.act(CALL, (MOVE,), Steps())
        assert caught.value.hook == "act"
        assert time.monotonic() - start < 30
        return str(caught.value)

    assert len(with_session(pool, harness(act=body), use)) < 5000


@confined
@pytest.mark.parametrize(
    ("hook", "body", "why"),
    [
        ("pack", FORGE + "forge({'id': 1, 'value': {'keep': 1, 'messages': []}})", "keeps 1 messages of 0"),
        ("pack", FORGE + "forge({'id': 1, 'value': {'keep': -1, 'messages': []}})", "keeps -1 messages"),
        (
            "pack",
            FORGE + "forge({'id': 1, 'value': {'keep': 0, 'messages': [{'role': 'root', 'content': 'x'}]}})",
            "role",
        ),
        ("pack", FORGE + "forge({'id': 1, 'value': []})", "protocol: pack is list"),
        ("pack", FORGE + "forge({'id': 1, 'step': {'name': 'move', 'arguments': {}}})", "env.step outside act"),
        ("pack", "return [{'role': 'user', 'content': 'x' * 1000}] * 1_000_000", "returned 1000000 messages"),
        ("pack", "return [{'role': 'user', 'content': 'x' * 50_000_000}]", "returned 50000000 characters"),
        ("pack", "return [{'role': 'assistant', 'content': '', 'tool_calls': [{1, 2}]}]", "not JSON|TypeError"),
        ("pack", "return [{'role': 'assistant', 'content': '', 'tool_calls': [float('nan')]}]", "not JSON data"),
        ("parse", FORGE + "forge({'id': 1, 'value': {'calls': [], 'failure': None}})", "protocol: neither"),
        (
            "parse",
            FORGE + "forge({'id': 1, 'value': {'failure': {'reason': 1, 'detail': '', 'kind': 'format'}}})",
            "protocol",
        ),
        (
            "parse",
            FORGE + "forge({'id': 1, 'value': {'failure': {'reason': '', 'detail': '', 'kind': 'won'}}})",
            "protocol",
        ),
        (
            "parse",
            FORGE + "forge({'id': 1, 'value': {'calls': [{'name': 'm', 'arguments': {}, 'said': True}]}})",
            "protocol",
        ),
        ("tools", FORGE + "forge({'id': 1, 'value': [{'function': {}}]})", "not an OpenAI function schema"),
    ],
)
def test_forged_answers_are_refused(pool: CagePool, hook: str, body: str, why: str) -> None:
    async def use(session: CagedSession) -> None:
        arguments: dict[str, tuple[Any, ...]] = {
            "pack": (EPISODE,),
            "parse": (Completion("x"), EPISODE),
            "tools": ((MOVE,),),
        }
        with pytest.raises(HarnessError, match=why) as caught:
            await getattr(session, hook)(*arguments[hook])
        assert caught.value.hook == hook

    with_session(pool, harness(**{hook: body}), use)


@confined
@pytest.mark.parametrize(
    ("limits", "body", "why"),
    [
        (CageLimits(hook_seconds=20, cpu_seconds=1), "while True: pass", "timeout: used its 1 s of processor time"),
        (
            CageLimits(hook_seconds=20, episode_seconds=0.5),
            "import time\ntime.sleep(0.4)\nreturn 'x'",
            "more than 0.5 s",
        ),
        (CageLimits(memory_mb=16), "return 'x' * 50_000_000", "MemoryError"),
        (CageLimits(message_bytes=1000), "return 'x' * 2000", "a message of .* bytes; the bound is 1000"),
        (CageLimits(episode_bytes=3000), "return 'x' * 900", "more than 3000 bytes in one episode"),
    ],
    ids=["processor time", "episode", "memory", "message", "episode bytes"],
)
def test_limits_hold(limits: CageLimits, body: str, why: str) -> None:
    async def run() -> None:
        async with CagePool(limits=limits) as pool:
            session = await pool.open(harness(act=body))
            with pytest.raises(HarnessError, match=why):
                for _ in range(6):
                    await session.act(CALL, (MOVE,), Steps())
            await session.close()

    asyncio.run(run())


@confined
def test_answers_ahead_of_time_end_the_session(pool: CagePool) -> None:
    source = harness(top=FORGE, act="import os, json\nd = json.dumps({'id': 1, 'value': 'x'}).encode()\n"
                     "os.write(3, len(d).to_bytes(4, 'big') + d)\nreturn 'y'")  # fmt: skip

    async def use(session: CagedSession) -> None:
        await outcome(session.act(CALL, (MOVE,), Steps()))
        with pytest.raises(HarnessError, match=r"nobody asked for|more than one|out of sequence|closed"):
            await session.stop(EPISODE)
            await session.stop(EPISODE)

    with_session(pool, source, use)


@confined
def test_a_flood_is_bounded(pool: CagePool) -> None:
    source = harness(act="import os\nwhile True: os.write(3, bytes(65536))")
    with pytest.raises(HarnessError, match="protocol"):
        with_session(pool, source, lambda session: session.act(CALL, (MOVE,), Steps()))


@confined
def test_step_kept_for_later_does_not_work(pool: CagePool) -> None:
    source = harness(act="self.kept = env\nreturn env.step(call).text", stop="return self.kept.step(ToolCall('m'))",
                     top="from whale_env.types import ToolCall")  # fmt: skip
    steps = Steps()

    async def use(session: CagedSession) -> None:
        assert await session.act(CALL, (MOVE,), steps) == "state 1"
        with pytest.raises(HarnessError, match="only inside the act call"):
            await session.stop(EPISODE)

    with_session(pool, source, use)
    assert len(steps.calls) == 1


@confined
def test_an_error_leaves_the_session_usable_and_a_breach_does_not(pool: CagePool) -> None:
    source = harness(pack="return 1 / 0", act="while True: pass")

    async def use(session: CagedSession) -> None:
        with pytest.raises(HarnessError, match="ZeroDivisionError"):
            await session.pack(EPISODE)
        assert await session.stop(EPISODE) is None
        with pytest.raises(HarnessError, match="act: timeout"):
            await session.act(CALL, (MOVE,), Steps())
        with pytest.raises(HarnessError, match="stop: timeout"):
            await session.stop(EPISODE)
        await session.close()
        await session.close()

    with_session(pool, source, use)


@confined
def test_nothing_survives_an_episode(pool: CagePool) -> None:
    source = (
        "import math, json\nfrom harness_sdk.harness import Harness\nHarness.seen = getattr(Harness, 'seen', 0) + 1\n"
        + (
            "math.sqrt = json.dumps = lambda *a: 42\n"
            "class H(Harness):\n    def act(self, call, env): return str(Harness.seen)\n"
        )
    )
    for _ in range(3):
        assert with_session(pool, source, lambda session: session.act(CALL, (MOVE,), Steps())) == "1"


@confined
def test_200_sessions_at_once_and_stuck_ones_hurt_nobody(pool: CagePool) -> None:
    stuck = harness(pack="while True: pass")

    async def one(number: int) -> Any:
        session = await pool.open(stuck if number % 50 == 7 else PLAIN)
        try:
            return await outcome(session.pack(EPISODE))
        finally:
            await session.close()

    async def run() -> list[Any]:
        return await asyncio.gather(*map(one, range(200)))

    for number, result in enumerate(asyncio.run(run())):
        if number % 50 == 7:
            assert result[:2] == ("HarnessError", "pack")
        else:
            assert result[0]["content"] == "Play."


@confined
def test_no_process_and_no_descriptor_is_left(pool: CagePool) -> None:
    async def run() -> None:
        for body in ("return 'x'", "while True: pass", "import os\nos._exit(1)"):
            session = await pool.open(harness(act=body))
            await outcome(session.act(CALL, (MOVE,), Steps()))
            await session.close()

    def workers() -> set[str]:
        assert process is not None
        return set(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())

    asyncio.run(run())
    process = pool._zygote._process
    before, descriptors = workers(), len(os.listdir("/proc/self/fd"))
    assert len(before) == SPARES
    asyncio.run(run())
    assert len(os.listdir("/proc/self/fd")) == descriptors
    deadline = time.monotonic() + 60
    while len(after := workers()) != SPARES:  # a spare is being forked
        assert time.monotonic() < deadline
    assert len(before & after) < SPARES


@confined
def test_the_death_of_the_trusted_process_ends_all() -> None:
    code = f"""
import asyncio, os
from harness_sdk.sandbox import CagePool, run_python
from whale_env.sandbox import python_tool
async def main():
    pool = CagePool()
    session = await pool.open({harness(act="while True: pass")!r})
    run_python("open('notes', 'w').write('x')")
    runner = python_tool._runner(False)
    os.mkdir(runner.scratch + "/left")
    print(pool._zygote._process.pid, runner.zygote._process.pid, runner.scratch, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    root = str(Path(__file__).parents[1])
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=root) as parent:
        assert parent.stdout is not None
        *zygotes, scratch = parent.stdout.readline().split()
        listed = [Path(f"/proc/{pid}/task/{pid}/children").read_text().split() for pid in zygotes]
        assert listed[0]
        parent.kill()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in [*zygotes, *listed[0], *listed[1]]):
        assert time.monotonic() < deadline, "a process outlived its trusted parent"
        time.sleep(0.01)
    assert os.listdir(scratch) == []
    os.rmdir(scratch)


@confined
def test_a_forked_trusted_process_starts_its_own_pool(pool: CagePool) -> None:
    asyncio.run(shared_pool().start())
    pid = os.fork()
    if not pid:
        code = 1
        try:
            session = asyncio.run(shared_pool().open(PLAIN))
            code = 0 if session.limits.max_turns == 1000 and run_python("1").stdout == "1\n" else 2
            python_tool._close()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    with_session(pool, PLAIN, lambda session: session.stop(EPISODE))


@confined
def test_the_public_names_for_harnesses_are_there(pool: CagePool) -> None:
    names = sorted(SDK_NAMES & set(harness_sdk.__all__))
    source = (
        f"from harness_sdk import {', '.join(names)}\nfrom whale_env import ToolCall, Observation, Task, types\n"
        + PLAIN
    )
    assert with_session(pool, source, lambda session: session.stop(EPISODE)) is None
    source = "".join(f"import {name}\n" for name in MODULES) + PLAIN
    assert with_session(pool, source, lambda session: session.stop(EPISODE)) is None
    loaded = with_session(pool, harness(act="import sys\nreturn ' '.join(sys.modules)"), _act).split()
    assert not {"numpy", "gymnasium", "whale_env.core", "harness_sdk.rollout", "harness_sdk.loader"} & set(loaded)


async def _act(session: CagedSession) -> str:
    return await session.act(CALL, (MOVE,), Steps())


@confined
def test_a_cancelled_hook_ends_its_worker(pool: CagePool) -> None:
    async def use(session: CagedSession) -> None:
        task = asyncio.create_task(session.act(CALL, (MOVE,), Steps()))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(HarnessError, match="cancelled"):
            await session.stop(EPISODE)

    with_session(pool, harness(act="while True: pass"), use)


@confined
def test_a_dead_zygote_fails_its_sessions_and_is_replaced(pool: CagePool) -> None:
    async def use(session: CagedSession) -> None:
        process = pool._zygote._process
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
        await asyncio.sleep(0.1)
        with pytest.raises(ZygoteError, match="zygote died"):
            await session.stop(EPISODE)
        other = await pool.open(PLAIN)
        assert await other.stop(EPISODE) is None
        await other.close()

    with_session(pool, PLAIN, use)


@confined
def test_a_busy_parent_does_not_time_an_honest_harness_out(pool: CagePool) -> None:
    async def use(session: CagedSession) -> None:
        task = asyncio.create_task(session.stop(EPISODE))
        await asyncio.sleep(0)
        time.sleep(1.2)  # blocks the loop for longer than a hook may take
        assert await task is None

    with_session(pool, PLAIN, use)


def test_without_confinement_it_is_refused_or_runs_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "confinement", lambda: Confinement(False, "this kernel offers no Landlock"))

    async def refused() -> None:
        await CagePool().open(PLAIN)

    with pytest.raises(ConfinementError, match=r"no Landlock.*--allow-uncaged.*--search\.allow-uncaged"):
        asyncio.run(refused())

    async def uncaged() -> None:
        async with CagePool(allow_uncaged=True, limits=CageLimits(hook_seconds=0.5)) as pool:
            assert pool.caged is False
            session = await pool.open(harness(act="return 'x'", pack="while True: pass"))
            assert session.caged is False
            assert await session.act(CALL, (MOVE,), Steps()) == "x"
            with pytest.raises(HarnessError, match="timeout"):
                await session.pack(EPISODE)
            await session.close()

    asyncio.run(uncaged())


# --- canaries ---------------------------------------------------------------------------------------------------------


def rows() -> list[dict[str, str]]:
    path = SHARED / "pyjail.jsonl"
    return [json.loads(line) for line in path.read_text("utf-8").strip("\n").split("\n")] if path.exists() else []


REACH = [
    "return open(SECRET).read()",
    "import os\nreturn os.environ['WHALE_SECRET']",
    "return open('/proc/self/environ').read()",
    "import os\nreturn open(f'/proc/{os.getppid()}/environ').read()",
    "import os\nreturn open(f'/proc/{PARENT}/mem').read()",
    "open(OUT, 'w').write('x')\nreturn 'wrote'",
    "open('/dev/shm/whale-canary', 'w').write('x')\nreturn 'wrote'",
    "import tempfile\nreturn tempfile.mkdtemp()",
    "import os\nreturn str(os.listdir('/'))",
    "import os\nos.chmod(SECRET, 0o777)\nreturn 'changed'",
    "import os\nos.utime(SECRET)\nreturn 'changed'",
    "import os\nos.rename(SECRET, OUT)\nreturn 'moved'",
    "import socket\nsocket.create_connection(('127.0.0.1', PORT))\nreturn 'connected'",
    "import socket\nsocket.socket(socket.AF_UNIX).connect('\\0' + 'whale')\nreturn 'connected'",
    "import socket\nsocket.socket(fileno=3).sendto(b'x', ('127.0.0.1', PORT))\nreturn 'sent'",
    "import subprocess\nreturn subprocess.check_output('id').decode()",
    "import os\nos.execv('/bin/sh', ['sh'])",
    "import os\nos.kill(PARENT, 0)\nreturn 'signalled'",
    "import signal\nsignal.pthread_kill(PARENT, 0)\nreturn 'signalled'",
    "import ctypes\nassert ctypes.CDLL(None).ptrace(16, PARENT, 0, 0) == 0\nreturn 'traced'",
    "import ctypes\nassert ctypes.CDLL(None).prctl(1, 0, 0, 0, 0) == 0\nreturn 'unleashed'",
    "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))\nreturn 'raised'",
    "import os\nreturn str(os.memfd_create('x'))",
    "import os\nreturn str(os.pipe())",
    "import whale_env, inspect\nreturn inspect.getsource(whale_env.core)",
    "import os, whale_env\nreturn str(os.listdir(os.path.join(os.path.dirname(whale_env.__file__), 'data')))",
    "import gc\nreturn str([o for o in gc.get_objects() if type(o).__name__ in ('ToolEnv', 'EnvHandle')][0])",
    "import gc\nreturn next(o for o in gc.get_objects() if type(o) is dict and 'WHALE_SECRET' in o)['WHALE_SECRET']",
    "import numpy.f2py as f\nf.compile('')\nreturn 'compiled'",
]


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Callable[[Any], None]]]:
    """Names for an attack to use, and a check that nothing was reached."""
    word, secret, outside = "canary-51d0", tmp_path / "secret", tmp_path / "out"
    secret.write_text(word)
    monkeypatch.setenv("WHALE_SECRET", word)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        port = listener.getsockname()[1]

        def check(results: Any) -> None:
            assert word not in repr(results)
            assert "uid=" not in repr(results)
            assert "root:" not in repr(results)
            assert secret.read_text() == word
            assert not outside.exists()
            with pytest.raises(BlockingIOError):
                listener.accept()

        yield f"SECRET, OUT, PORT, PARENT = {str(secret)!r}, {str(outside)!r}, {port}, {os.getpid()}\n", check


@confined
@pytest.mark.parametrize("body", REACH)
def test_nothing_outside_is_reached(pool: CagePool, body: str, canary: tuple[str, Callable[[Any], None]]) -> None:
    names, check = canary
    source = harness(top=names, act=body)
    result = with_session(pool, source, lambda session: outcome(session.act(CALL, (MOVE,), Steps())))
    check(result)
    assert isinstance(result, tuple), f"the harness got {result!r}"


@confined
@pytest.mark.parametrize("row", rows(), ids=lambda row: row["id"])
@pytest.mark.parametrize("place", ["module", "hook"])
def test_known_escapes_reach_nothing(
    pool: CagePool, row: dict[str, str], place: str, canary: tuple[str, Callable[[Any], None]]
) -> None:
    _, check = canary
    payload = row["payload"]
    source = payload + "\n" + PLAIN if place == "module" else harness(act=f"exec({payload!r}, {{}})\nreturn 'ran'")
    steps = Steps()

    async def run() -> list[Any]:
        try:
            session = await pool.open(source)
        except HarnessError as error:
            return [str(error)]
        results = [await outcome(session.act(CALL, (MOVE,), steps)), await outcome(session.pack(EPISODE))]
        await session.close()
        return results

    check(asyncio.run(run()))
    assert all(call == CALL for call in steps.calls)
