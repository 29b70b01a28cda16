"""Whether a verifier survives anything, credits no noise, and whether the commit rule holds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

from whale_env.core import EnvHandle
from whale_env.testing.calls import NOISE, NUMBERS, called, commit, filled_call
from whale_env.testing.subject import ContractError, Subject, brief, words_in
from whale_env.types import FAILURES, Task, ToolCall, ToolSpec, canonical_json

TEXTS = (
    *("", " \n", NOISE, "\x00\x1b[0m", "\ud800", "½ﬁ²", "NaN", "-inf", "1e999", "9" * 2000, "0/0"),
    *("\\boxed{", "<answer>", "</answer>x<answer>", "(" * 500, "[[1", "{}", "__import__('os').getpid()", "%s{0}"),
)
"""Answers that a verifier must survive."""


def check_commit_rule(subject: Subject) -> Iterator[str]:
    """What the model did not say is not said; what it wrote word for word is."""
    for task in subject.some(3):
        env, _ = subject.env.open(task, 0)
        call = commit(env, "b7")
        before = (env.score(), env.over)
        for text in ("", "  \n", "Nothing to see."):
            if env.said(call, text):
                yield f"said({dict(call.arguments)}) holds for {text!r}, in which the model says nothing of the kind"
        words = "\n".join(words_in(call.arguments))
        if not env.said(call, words):
            yield f"said({dict(call.arguments)}) does not hold for {words!r}: a model could never commit it"
        if (env.score(), env.over) != before:
            yield "asking said() changed the score"


def verdict_problems(env: EnvHandle, text: str, task: Task | None = None) -> list[str]:
    """Commits any text on a task and returns what is wrong with the verdict; for property tests with any text.

    Args:
        env: The environment.
        text: What the model says.
        task: Which task; the first of the train split if None.
    """
    try:
        call = commit(env.prototype, text)
    except ContractError as error:
        return [str(error)]
    return _verdict_problems(env, call, task or env.tasks("train")[0], f"after committing {brief(text)}")


def _verdict_problems(env: EnvHandle, call: ToolCall, task: Task, shown: str) -> list[str]:
    try:
        game, _ = env.open(task, 0)
        _, reward, *_ = game.step(call)
        score = game.score()
        json.dumps(score.to_json(), allow_nan=False)
    except Exception as error:
        return [f"{shown} it raised {type(error).__name__}: {error}"]
    found = []
    if reward not in (0.0, 1.0) or score.reward not in (0.0, 1.0):
        found.append(f"{shown} the reward is {reward!r} and the score {score.reward!r}; only 0.0 and 1.0 are verdicts")
    if score.failure not in (*FAILURES, None) or (score.reward == 1.0) != (score.failure is None):
        found.append(f"{shown} the score is {score.reward!r} with failure {score.failure!r}; 1.0 goes with None")
    if not all(math.isfinite(value) for value in score.metrics.values()):
        found.append(f"{shown} a metric is not finite: {dict(score.metrics)}")
    return found


def check_verdicts(subject: Subject) -> Iterator[str]:
    """The verifier judges any text and any number, and credits no noise."""
    env = subject.env
    for text in TEXTS:
        yield from verdict_problems(env, text)
    blind = [call for tool in env.prototype.tools if tool.commits for call in _blind(tool)]
    shown = [f"after committing {', '.join(map(brief, call.arguments.values()))}" for call in blind]
    for call, after in zip(blind, shown, strict=True):
        yield from _verdict_problems(env, call, env.tasks("train")[0], after)
    rewards = []
    for task in subject.some(12):
        for call, after in zip(blind, shown, strict=True):
            try:
                rewards.append(_repeated(env, task, call))
            except Exception as error:
                yield f"{after} it raised {type(error).__name__}: {error}"
                continue
            # Where only listed choices can be said there is no noise, and a blind choice may be right.
            if rewards[-1] == 1.0 and NOISE in words_in(call.arguments):
                yield f"task {task.id!r} is solved by {NOISE!r}"
    if rewards and min(rewards) == 1.0:
        yield f"the verifier credits everything: {called(blind[0])} and all else that was committed, on every task"


def _blind(tool: ToolSpec) -> list[ToolCall]:
    """Returns calls that know nothing of the task: noise, and several of each number, boolean and choice."""
    calls = (filled_call(tool, NOISE, place) for place in range(len(NUMBERS)))
    return list({canonical_json(call.to_json()): call for call in calls}.values())


def _repeated(env: EnvHandle, task: Task, call: ToolCall) -> float:
    """Returns the reward of an episode in which a blind call is made until its end.

    A choice from a list is made once: to repeat it is a way to play, and where it is enough to hold out a good one.
    """
    game, _ = env.open(task, 0)
    is_listed = {NOISE, *map(str, NUMBERS)}.isdisjoint(words_in(call.arguments))
    reward = 0.0
    for _ in range(1 if is_listed else 64):
        if game.over:
            break
        reward = game.step(call)[1]
    return reward
