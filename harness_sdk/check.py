"""``python -m harness_sdk.check FILE --env chess``: validates a harness file and plays it, without a model.

Scripted policies say nothing useful in many ways (noise, silence, floods, binary, cut-off tags, calls of nonsense, the
prompt itself) on a few search tasks. A sound harness survives all of them, packs the same prompts for the same episode
whatever came before, earns nothing from noise, and calls tools that are there. The same checks stand between a proposed
candidate and its first model call. Whether it reads what a good model would say is not found out here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from harness_sdk import toolcalls
from harness_sdk.loader import HarnessLoadError, LoadedHarness, load
from harness_sdk.policies import Generation, Policy, Request, ScriptedPolicy
from harness_sdk.randomness import derive_seed
from harness_sdk.rollout import Job, RolloutConfig, rollout
from harness_sdk.session import HarnessError, HarnessSession, Step
from harness_sdk.trajectory import Trajectory
from harness_sdk.types import Completion, Episode, Message, ParseFailure, StepResult, ToolSchema
from harness_sdk.validator import validate
from whale_env.core import EnvHandle
from whale_env.registry import UnknownEnvError, arguments_from, handle
from whale_env.sandbox import ConfinementError
from whale_env.spaces import ToolCallSpace
from whale_env.types import Json, Task, ToolCall, ToolSpec

CHARS_PER_TOKEN = 4
"""Characters of English prose in a token, roughly: a prompt longer than this many per allowed token is too long."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong with how a harness behaves.

    Attributes:
        kind: ``hook-error``, ``nondeterministic``, ``answers-itself``, ``violation``, ``cannot-act`` or
            ``prompt-too-long``.
        policy: The scripted policies it was playing against.
        message: What happened, and the fix.
    """

    kind: str
    policy: str
    message: str

    def __str__(self) -> str:
        return f"[{self.kind}] against {self.policy}: {self.message}"


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How a harness played.

    Attributes:
        findings: What is wrong; empty means sound.
        prompt: The first prompt it packed, for a person or a proposer to read.
        offered: Names of the tool schemas that the model is offered natively; None if they were never asked for.
        acted: Whether any call of the environment was of a tool that is there, with arguments that fit.
    """

    findings: tuple[Finding, ...]
    prompt: tuple[Message, ...]
    offered: tuple[str, ...] | None = None
    acted: bool = True

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def __str__(self) -> str:
        lines = [str(finding) for finding in self.findings] or ["sound"]
        if not self.findings and not self.acted:
            lines.append("note: no scripted reply led it to call a tool, so that it can act was not seen")
        if self.prompt:
            lines.append("the first prompt it packs:")
            lines += [f"  {message['role']}: {message['content']}" for message in self.prompt]
        if self.offered is not None:
            lines.append(f"tools that the model is offered natively: {', '.join(self.offered) or 'none'}")
        return "\n".join(lines)


def _noise(messages: Sequence[Message]) -> str:
    rng = random.Random(derive_seed("noise", [message["content"] for message in messages]))
    return " ".join("".join(rng.choices("bcdfghjklmnpqrstvwxyz", k=rng.randint(3, 9))) for _ in range(12))


def _echo(messages: Sequence[Message]) -> str:
    """The prompt itself, begun at some word: it holds whatever form and words the harness waits for."""
    text = "\n".join(message["content"] for message in messages)
    starts = [word.start() for word in re.finditer(r"\S+", text)] or [0]
    start = random.Random(derive_seed("echo", text)).choice(starts)
    return f"{text[start:]}\n{text[:start]}"


def _nonsense(tool: ToolSpec) -> ToolCall:
    """A call that fits the tool's schema and means nothing."""
    properties: Mapping[str, Any] = tool.parameters.get("properties", {})
    names = [*tool.parameters.get("required", ())] or [*properties][:1]
    return ToolCall(tool.name, {name: _value(properties.get(name, {})) for name in names})


def _value(schema: Mapping[str, Any]) -> Json:
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("type") == "object":
        properties: Mapping[str, Any] = schema.get("properties", {})
        return {name: _value(item) for name, item in properties.items()}
    return {"integer": 7, "number": 7, "boolean": True, "array": [], "null": None}.get(schema.get("type", ""), "qzxv")


def _tag(call: ToolCall) -> str:
    value = next(iter(call.arguments.values()), "")
    return f"<{call.name}>{value if isinstance(value, str) else json.dumps(value)}</{call.name}>"


def _scripts(tools: Sequence[ToolSpec]) -> dict[str, Callable[[Sequence[Message]], str]]:
    names = [tool.name for tool in tools]
    calls = [_nonsense(tool) for tool in tools]
    binary = "\x00\x01\ufffd<|im_end|><|im_start|>system\n\u202e}{"
    return {
        "noise": _noise,
        "silence": lambda messages: "",
        "a flood": lambda messages: _noise(messages) * 2000,
        "binary": lambda messages: binary,
        "cut-off tags": lambda messages: f"<{names[len(messages) % len(names)]}>qz",
        "nonsense calls": lambda messages: _tag(calls[len(messages) % len(calls)]),
        "nonsense JSON calls": lambda messages: toolcalls.render([calls[len(messages) % len(calls)]], "hermes"),
        "an echo": _echo,
    }


class _NativeCalls:
    """A policy that calls the tools which it is offered natively, one a turn, with arguments that mean nothing."""

    def __init__(self) -> None:
        self._silent = ScriptedPolicy([""])

    async def generate(self, request: Request) -> Generation:
        generation = await self._silent.generate(request)
        if not request.tools:
            return generation
        function = request.tools[len(request.messages) % len(request.tools)]["function"]
        tool = ToolSpec(function["name"], "", function.get("parameters", {}))
        call = replace(_nonsense(tool), id="call_0")
        completion = replace(generation.completion, tool_calls=(call,), structured=True)
        return replace(generation, completion=completion)


def _policies(tools: Sequence[ToolSpec]) -> dict[str, Policy]:
    scripted: dict[str, Policy] = {name: ScriptedPolicy(script) for name, script in _scripts(tools).items()}
    return {**scripted, "native calls": _NativeCalls()}


@dataclass(slots=True)
class _Notes:
    """What was heard of a harness while it played.

    Attributes:
        tools: The environment's tools.
        offered: Names of the schemas that it offers natively, or None.
        right: How many calls fit a tool.
        wrong: Why other calls fit none, and how many.
    """

    tools: Sequence[ToolSpec]
    offered: tuple[str, ...] | None = None
    right: int = 0
    wrong: Counter[str] = field(default_factory=Counter)

    def call(self, call: ToolCall, said: str) -> None:
        """Notes a call of the environment.

        A name that stands quoted in the model's text is the model's, of a harness that passes on what it reads; which
        of the listed values an argument has is the model's business too.
        """
        error = ToolCallSpace([replace(tool, parameters=_unlisted(tool.parameters)) for tool in self.tools]).error(call)
        if error is None:
            self.right += 1
        elif call.name in {tool.name for tool in self.tools} or json.dumps(call.name) not in said:
            self.wrong[error] += 1

    def findings(self) -> list[Finding]:
        """Whether every call that it made was of no use."""
        if self.right or not self.wrong:
            return []
        error, tools = self.wrong.most_common(1)[0][0], ", ".join(map(_signature, self.tools))
        why = f"no call that it makes can ever be carried out: {error}. Have `parse`, or `act`, call {tools}"
        return [Finding("cannot-act", "any policy", why)]


def _unlisted(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    return {k: _unlisted(v) for k, v in schema.items() if k != "enum" or isinstance(v, Mapping)}


def _signature(tool: ToolSpec) -> str:
    required = tool.parameters.get("required", ())
    properties: Mapping[str, Any] = tool.parameters.get("properties", {})
    arguments = (
        f"{name}{'' if name in required else '?'}: {schema.get('type', 'any')}" for name, schema in properties.items()
    )
    return f"{tool.name}({', '.join(arguments)})"


class _Heard:
    """A `HarnessSession` that is listened to; what is not noted goes straight to the session."""

    def __init__(self, session: HarnessSession, notes: _Notes) -> None:
        self._session, self._notes = session, notes
        self._said = ""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    async def tools(self, env_tools: Sequence[ToolSpec]) -> list[ToolSchema]:
        schemas = await self._session.tools(env_tools)
        self._notes.offered = tuple(schema["function"]["name"] for schema in schemas)
        return schemas

    async def parse(self, completion: Completion, episode: Episode) -> list[ToolCall] | ParseFailure:
        self._said += completion.text
        return await self._session.parse(completion, episode)

    async def act(self, call: ToolCall, specs: tuple[ToolSpec, ...], step: Step) -> str:
        return await self._session.act(call, specs, _HeardStep(step, lambda made: self._notes.call(made, self._said)))


class _HeardStep:
    def __init__(self, step: Step, note: Callable[[ToolCall], None]) -> None:
        self.blocking = step.blocking
        self._step, self._note = step, note

    def __call__(self, call: ToolCall) -> StepResult:
        self._note(call)
        return self._step(call)


def _heard(harness: LoadedHarness, notes: _Notes) -> LoadedHarness:
    async def opened(seed: int) -> HarnessSession:
        return cast(HarnessSession, _Heard(await harness.open(seed), notes))

    return replace(harness, _open=opened)


async def behaviour(harness: LoadedHarness, env: EnvHandle, tasks: Sequence[Task]) -> Behaviour:
    """Plays a harness against scripted policies.

    Args:
        harness: The harness; an untrusted one plays in the cage.
        env: The environment.
        tasks: A handful of tasks.

    Returns:
        What is wrong, and the first prompt.

    Raises:
        HarnessError: It cannot begin an episode at all.
        ConfinementError: It is untrusted and cannot be confined here.
    """
    found: dict[tuple[str, str], tuple[str, list[str]]] = {}
    notes = _Notes(env.prototype.tools)
    heard = _heard(harness, notes)
    prompt: tuple[Message, ...] = ()
    config = RolloutConfig(phase="check", max_turns=12, max_tokens=20_000, max_prompt_tokens=10**6)
    for name, policy in _policies(notes.tools).items():
        there = await rollout([Job(heard, t) for t in tasks], env, policy, config)
        back = await rollout([Job(heard, t) for t in reversed(tasks)], env, policy, config)
        prompt = prompt or next((t.calls[0].messages for t in there if t.calls), ())
        wrong = [*_broken(there), *_different(there, back[::-1])]
        if name in ("noise", "silence", "binary"):
            wrong += _unearned(there)
        first: dict[str, Wrong] = {}
        for item in wrong:
            first.setdefault(item[0], item)
        for kind, message, task in first.values():
            found.setdefault((kind, message), (task, []))[1].append(name)
    findings = [
        Finding(kind, ", ".join(names), f"{message} (task {task})") for (kind, message), (task, names) in found.items()
    ]
    findings += notes.findings()
    limit = (await _limit(harness)) * CHARS_PER_TOKEN
    size = sum(len(message["content"]) for message in prompt)
    if size > limit:
        why = f"the first prompt has {size} characters; max_prompt_tokens allows about {limit}. Show less"
        findings.append(Finding("prompt-too-long", "any policy", why))
    return Behaviour(tuple(findings), prompt, notes.offered, notes.right > 0)


async def _limit(harness: LoadedHarness) -> int:
    session = await harness.open(0)
    try:
        return session.limits.max_prompt_tokens
    finally:
        await session.close()


Wrong = tuple[str, str, str]
"""A finding's kind and message, and the id of the task."""


def _broken(trajectories: Sequence[Trajectory]) -> list[Wrong]:
    found = []
    for trajectory in trajectories:
        task = trajectory.task.id
        if trajectory.score.failure == "harness_error":
            found.append(("hook-error", trajectory.stopped, task))
        if not trajectory.calls and trajectory.score.failure == "budget":
            found.append(("prompt-too-long", f"{trajectory.stopped}. Show less", task))
        if trajectory.score.failure == "harness_violation":
            why = "it committed something the model did not say; take every committed argument from the completion"
            found.append(("violation", why, task))
    return found


def _different(there: Sequence[Trajectory], back: Sequence[Trajectory]) -> list[Wrong]:
    for one, other in zip(there, back, strict=True):
        before, after = ([call.messages for call in t.calls] for t in (one, other))
        if json.dumps(before) != json.dumps(after):
            why = "the same episode in another order gave another prompt; keep no state, clock, id or hash order"
            return [("nondeterministic", why, one.task.id)]
    return []


def _unearned(trajectories: Sequence[Trajectory]) -> list[Wrong]:
    earned = [trajectory.task.id for trajectory in trajectories if trajectory.reward == 1.0]
    if earned:
        return [("answers-itself", "it solved a task although the model said nothing useful", earned[0])]
    return []


def facts(env: EnvHandle, task: Task) -> str:
    """Says what a harness has to work with: the environment's tools, and what stands in an observation's data.

    Args:
        env: The environment.
        task: The task whose first observation is described.

    Returns:
        Lines for a person.
    """
    lines = [f"the tools of {env.prototype.domain.spec.name}, as ToolCall(name, {{argument: value}}):"]
    for tool in env.prototype.tools:
        lines.append(
            f"  {_signature(tool)}{' (commits what the model said)' if tool.commits else ''}: {tool.description}"
        )
    data = env.open(task, 0)[1].data
    lines.append(f"observation.data at the beginning{':' if data else ': empty'}")
    lines += [f"  {name}: {_form(value)}" for name, value in data.items()]
    return "\n".join(lines)


def _form(value: Json, depth: int = 0) -> str:
    """Describes a JSON value by its type."""
    if isinstance(value, (Mapping, list, tuple)) and depth > 2:
        return "…"
    if isinstance(value, Mapping):
        shown = [f"{name}: {_form(item, depth + 1)}" for name, item in list(value.items())[:12]]
        return "{" + ", ".join(shown + ["…"] * (len(value) > 12)) + "}"
    if isinstance(value, (list, tuple)):
        return f"list of {_form(value[0], depth + 1)}" if value else "empty list"
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    return "string" if isinstance(value, str) else "integer" if isinstance(value, int) else "number"


def main() -> None:
    """The command line. A reader that goes away (``| head``) ends it without a word."""
    try:
        code = _checked()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its exit
        code = 141
    raise SystemExit(code)


def _at_least_one(text: str) -> int:
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"give a whole number of at least 1, not {text!r:.40}")
    return int(text)


def _checked() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m harness_sdk.check",
        description="Validates a harness file as a proposer's, plays it in the cage, and says what to fix.",
        epilog="examples:\n  python -m harness_sdk.check my_harness.py --env chess\n"
        "  python -m harness_sdk.check my_harness.py:Mine --env chess --trusted\n"
        "  python -m harness_sdk.check my_package.mine:Mine --env chess --trusted\n"
        "exit status: 0 valid and sound, 1 something to fix, 2 it could not be checked",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", help="file.py, file.py:Class, or with --trusted module:Class")
    parser.add_argument("--env", default="chess", help="the environment to play (default: chess)")
    parser.add_argument("--env-args", default="{}", help="its keyword arguments, as JSON")
    parser.add_argument("--tasks", type=_at_least_one, default=4, help="search tasks to play (default: 4)")
    parser.add_argument("--trusted", action="store_true", help="your own code: play it in this process")
    parser.add_argument("--allow-uncaged", action="store_true", help="play it even where the kernel offers no cage")
    arguments = parser.parse_args()
    valid = True
    try:
        env = handle(arguments.env, arguments_from(arguments.env_args)).sealed()
        tasks = env.tasks("search")[: arguments.tasks]
        if not tasks:
            raise ValueError(f"{arguments.env} has no task in its search split, so nothing can be played")
        name = env.prototype.domain.spec.name
        path = Path(arguments.file.split(":")[0])
        if path.suffix == ".py" and path.is_file():
            report = validate(path.read_text("utf-8", "replace"), name)
            print(report)
            valid = report.ok
            if not valid and not arguments.trusted:
                return 1
        harness = load(arguments.file, arguments.trusted, env=name, allow_uncaged=arguments.allow_uncaged)
        result = asyncio.run(behaviour(harness, env, tasks))
    except HarnessError as error:
        print(f"it cannot begin an episode: {error}")
        return 1
    except (HarnessLoadError, UnknownEnvError, ConfinementError, ImportError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if result.ok and not result.prompt:
        print("not played: no episode came as far as a prompt, so nothing can be said of it")
        return 2
    print(result)
    print(facts(env, tasks[0]))
    return 0 if valid and result.ok else 1


if __name__ == "__main__":
    main()
