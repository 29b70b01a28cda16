"""Playing a harness against policies that say nothing useful, and judging what it did."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence

from harness_sdk.check.listening import Notes, heard
from harness_sdk.check.report import Behaviour, Finding
from harness_sdk.check.scripted import policies
from harness_sdk.floor import Floor, floor, picks
from harness_sdk.loader import LoadedHarness
from harness_sdk.rollout import Job, RolloutConfig, rollout
from harness_sdk.trajectory import Trajectory
from harness_sdk.types import Message
from whale_env.core import EnvHandle
from whale_env.types import Task

CHARS_PER_TOKEN = 4
"""Characters of English prose in a token, roughly: a prompt longer than this many per allowed token is too long."""

SECONDS = 60.0
"""For the scripted policies. An honest harness takes a few; one whose hooks or programs never end is not waited for."""

FLOOR_SECONDS = 300.0
"""For the floor: some 300 episodes, more of them than a harness with short hooks needs on a busy machine."""


async def behaviour(
    harness: LoadedHarness,
    env: EnvHandle,
    tasks: Sequence[Task],
    *,
    h0: LoadedHarness | None = None,
    seconds: float = SECONDS,
    with_floor: bool = True,
) -> Behaviour:
    """Plays a harness against scripted policies and, if it is sound so far, measures its floor.

    The scripted policies end with the first play that shows that it is too slow to go on.

    Args:
        harness: The harness; an untrusted one plays in the cage.
        env: The environment.
        tasks: A handful of tasks; the floor is measured on those of the search split.
        h0: The starting harness, which the floor is compared with; None takes the domain's own.
        seconds: How long the scripted policies may take in all.
        with_floor: Whether the floor is measured too, which takes some hundred episodes.

    Returns:
        What is wrong, the first prompt, and the floor.

    Raises:
        HarnessError: It cannot begin an episode at all.
        ConfinementError: It is untrusted and cannot be confined here.
    """
    found: dict[tuple[str, str], tuple[str, list[str]]] = {}
    notes = Notes(env.prototype.tools)
    listened = heard(harness, notes)
    prompt: tuple[Message, ...] = ()
    config = RolloutConfig(phase="check", max_turns=12, max_tokens=20_000, max_prompt_tokens=10**6)
    try:
        async with asyncio.timeout(seconds) as allowed:
            for name, policy in policies(notes.tools).items():
                there = await rollout([Job(listened, t) for t in tasks], env, policy, config)
                back = await rollout([Job(listened, t) for t in reversed(tasks)], env, policy, config)
                prompt = prompt or next((t.calls[0].messages for t in there if t.calls), ())
                wrong = [*_broken(there), *_different(there, back[::-1])]
                if name == "an echo":  # names many values in broken tags, and may be read in more than one way
                    wrong = [item for item in wrong if item[0] != "violation"]
                if name in ("noise", "silence", "binary"):
                    wrong += _unearned(there)
                first: dict[str, Wrong] = {}
                for item in wrong:
                    first.setdefault(item[0], item)
                for kind, message, task in first.values():
                    found.setdefault((kind, message), (task, []))[1].append(name)
                if any(_endless(trajectory) for trajectory in (*there, *back)):
                    break
    except TimeoutError:
        if not allowed.expired():
            raise
        why = f"it could not be played within {seconds:g} s in all; do less in the hooks"
        found[("too-slow", why)] = (tasks[0].id, ["any policy"])
    findings = [
        Finding(kind, ", ".join(names), f"{message} (task {task})") for (kind, message), (task, names) in found.items()
    ]
    findings += notes.findings()
    limit = (await _limit(harness)) * CHARS_PER_TOKEN
    size = sum(len(message["content"]) for message in prompt)
    if size > limit:
        why = f"the first prompt has {size} characters; max_prompt_tokens allows about {limit}. Show less"
        findings.append(Finding("prompt-too-long", "any policy", why))
    measured = None
    if with_floor and not findings and prompt:
        try:
            async with asyncio.timeout(FLOOR_SECONDS) as allowed:
                measured = await floor(harness, env, env.tasks("search"), h0=h0)
            findings += _answering(measured)
        except TimeoutError:
            if not allowed.expired():
                raise
            why = f"its floor could not be measured within {FLOOR_SECONDS:g} s; do less in the hooks"
            findings.append(Finding("too-slow", "policies without skill", why))
    return Behaviour(tuple(findings), prompt, notes.offered, notes.right > 0, measured)


def _answering(measured: Floor) -> list[Finding]:
    """What the policies without skill found: a reward that is the harness's own, or a commit that is."""
    found = []
    if measured.answers_itself:
        why = (
            f"it earns {measured.reward:.2f} on {measured.tasks} tasks although the model knows nothing; the starting "
            f"harness earns {measured.h0:.2f} so, a plain one {measured.chance:.2f}, and from {measured.limit:.2f} on "
            "that is no chance. Show what the environment shows, and leave the choice to the model"
        )
        found.append(Finding("answers-itself", measured.policy, why))
    if measured.picks and measured.example is not None:
        refused = next(text for turn in measured.example.turns for text in (*turn.results, "") if "refused" in text)
        found.append(Finding("violation", "a policy without skill", f"{refused} (task {measured.example.task.id})"))
    return found


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
        if picks(trajectory):
            why = "it committed something the model did not say; take every committed argument from the completion"
            found.append(("violation", why, task))
    return found


def _endless(trajectory: Trajectory) -> bool:
    return trajectory.score.failure == "harness_error" and ": timeout: " in trajectory.stopped


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
