"""``python -m harness_sdk.check FILE --env chess``: validates a harness file and plays it, without a model.

Scripted policies say nothing useful in many ways (noise, silence, floods, binary, cut-off tags) on a few search tasks.
A sound harness survives all of them, packs the same prompts for the same episode whatever came before, and earns
nothing from noise. The same checks stand between a proposed candidate and its first model call.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness_sdk.loader import HarnessLoadError, LoadedHarness, load
from harness_sdk.policies import ScriptedPolicy
from harness_sdk.randomness import derive_seed
from harness_sdk.rollout import Job, RolloutConfig, rollout
from harness_sdk.trajectory import Trajectory
from harness_sdk.types import Message
from harness_sdk.validator import validate
from whale_env.core import EnvHandle
from whale_env.registry import UnknownEnvError, handle
from whale_env.types import Task

CHARS_PER_TOKEN = 4
"""Characters of English prose in a token, roughly: a prompt longer than this many per allowed token is too long."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong with how a harness behaves.

    Attributes:
        kind: ``hook-error``, ``nondeterministic``, ``answers-itself``, ``violation`` or ``prompt-too-long``.
        policy: The scripted policy it was playing against.
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
    """

    findings: tuple[Finding, ...]
    prompt: tuple[Message, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def __str__(self) -> str:
        lines = [str(finding) for finding in self.findings] or ["sound"]
        shown = "\n".join(f"  {message['role']}: {message['content']}" for message in self.prompt)
        return "\n".join(lines) + (f"\nthe first prompt it packs:\n{shown}" if shown else "")


def _noise(messages: Sequence[Message]) -> str:
    rng = random.Random(derive_seed("noise", [message["content"] for message in messages]))
    return " ".join("".join(rng.choices("bcdfghjklmnpqrstvwxyz", k=rng.randint(3, 9))) for _ in range(12))


def _scripts(names: Sequence[str]) -> dict[str, Callable[[Sequence[Message]], str]]:
    binary = "\x00\x01\ufffd<|im_end|><|im_start|>system\n\u202e}{"
    return {
        "noise": _noise,
        "silence": lambda messages: "",
        "a flood": lambda messages: _noise(messages) * 2000,
        "binary": lambda messages: binary,
        "cut-off tags": lambda messages: f"<{names[len(messages) % len(names)]}>qz",
        "nonsense calls": lambda messages: (lambda name: f"<{name}>qzxv</{name}>")(names[len(messages) % len(names)]),
    }


async def behaviour(harness: LoadedHarness, env: EnvHandle, tasks: Sequence[Task]) -> Behaviour:
    """Plays a harness against scripted policies.

    Args:
        harness: The harness; an untrusted one plays in the cage.
        env: The environment.
        tasks: A handful of tasks.

    Returns:
        What is wrong, and the first prompt.
    """
    findings: list[Finding] = []
    names = [tool.name for tool in env.prototype.tools]
    prompt: tuple[Message, ...] = ()
    config = RolloutConfig(phase="check", max_turns=12, max_tokens=20_000, max_prompt_tokens=10**6)
    for name, script in _scripts(names).items():
        there = await rollout([Job(harness, t) for t in tasks], env, ScriptedPolicy(script), config)
        back = await rollout([Job(harness, t) for t in reversed(tasks)], env, ScriptedPolicy(script), config)
        prompt = prompt or next((t.calls[0].messages for t in there if t.calls), ())
        found = [*_broken(there), *_different(there, back[::-1])]
        if name in ("noise", "silence", "binary"):
            found += _unearned(there)
        findings += [Finding(kind, name, message) for kind, message in dict(found).items()]
    limit = (await _limit(harness)) * CHARS_PER_TOKEN
    size = sum(len(message["content"]) for message in prompt)
    if size > limit:
        why = f"the first prompt has {size} characters; max_prompt_tokens allows about {limit}. Show less"
        findings.append(Finding("prompt-too-long", "any policy", why))
    return Behaviour(tuple(findings), prompt)


async def _limit(harness: LoadedHarness) -> int:
    session = await harness.open(0)
    try:
        return session.limits.max_prompt_tokens
    finally:
        await session.close()


def _broken(trajectories: Sequence[Trajectory]) -> list[tuple[str, str]]:
    found = []
    for trajectory in trajectories:
        if trajectory.score.failure == "harness_error":
            found.append(("hook-error", f"{trajectory.stopped} (task {trajectory.task.id})"))
        if not trajectory.calls and trajectory.score.failure == "budget":
            found.append(("prompt-too-long", f"{trajectory.stopped}. Show less (task {trajectory.task.id})"))
        if trajectory.score.failure == "harness_violation":
            why = "it committed something the model did not say; take every committed argument from the completion"
            found.append(("violation", f"{why} (task {trajectory.task.id})"))
    return found


def _different(there: Sequence[Trajectory], back: Sequence[Trajectory]) -> list[tuple[str, str]]:
    for one, other in zip(there, back, strict=True):
        before, after = ([call.messages for call in t.calls] for t in (one, other))
        if json.dumps(before) != json.dumps(after):
            why = "the same episode in another order gave another prompt; keep no state, clock, id or hash order"
            return [("nondeterministic", f"{why} (task {one.task.id})")]
    return []


def _unearned(trajectories: Sequence[Trajectory]) -> list[tuple[str, str]]:
    earned = [trajectory.task.id for trajectory in trajectories if trajectory.reward == 1.0]
    if earned:
        return [("answers-itself", f"it solved task {earned[0]} although the model said nothing useful")]
    return []


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m harness_sdk.check",
        description="Validates a harness file as a proposer's, plays it in the cage, and says what to fix.",
        epilog="examples:\n  python -m harness_sdk.check my_harness.py --env chess\n"
        "  python -m harness_sdk.check my_harness.py:Mine --env chess --trusted",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("file", help="file.py, or file.py:Class")
    parser.add_argument("--env", default="chess", help="the environment to play (default: chess)")
    parser.add_argument("--env-args", default="{}", help="its keyword arguments, as JSON")
    parser.add_argument("--tasks", type=int, default=4, help="search tasks to play (default: 4)")
    parser.add_argument("--trusted", action="store_true", help="your own code: play it in this process")
    parser.add_argument("--allow-uncaged", action="store_true", help="play it even where the kernel offers no cage")
    arguments = parser.parse_args()
    try:
        env = handle(arguments.env, json.loads(arguments.env_args)).sealed()
        name = env.prototype.domain.spec.name
        path = Path(arguments.file.split(":")[0])
        if path.suffix == ".py" and path.is_file():
            report = validate(path.read_text("utf-8", "replace"), name)
            print(report)
            if not report.ok and not arguments.trusted:
                raise SystemExit(1)
        harness = load(arguments.file, arguments.trusted, env=name, allow_uncaged=arguments.allow_uncaged)
    except (HarnessLoadError, UnknownEnvError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    result = asyncio.run(behaviour(harness, env, env.tasks("search")[: arguments.tasks]))
    print(result)
    raise SystemExit(0 if result.ok else 1)


if __name__ == "__main__":
    main()
