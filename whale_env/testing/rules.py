"""The rules of the contract by name, and those that are about the environment and its tasks."""

from __future__ import annotations

import json
import pickle
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from gymnasium.utils.env_checker import check_env

from whale_env.core import DomainSpec, SealedSplitError
from whale_env.strict_json import is_json
from whale_env.testing.calls import NOISE, Turn, filled_call, play, take_turn, trace
from whale_env.testing.custody import check_custody
from whale_env.testing.listing import SAME, differences, list_in_fresh_process, list_tasks
from whale_env.testing.subject import Rule, Subject, brief
from whale_env.testing.verdicts import check_commit_rule, check_verdicts
from whale_env.types import SPLITS, ToolCall

OPENED = 200
"""Tasks of a split whose first observations are compared with those of other splits."""

MISFITS = ("", "two\nlines", NOISE)
"""Texts that every tool is called with: a domain refuses most of them itself."""


def _check_gymnasium(subject: Subject) -> Iterator[str]:
    """Gymnasium's own checker, warnings included."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(replace(subject.env).prototype, skip_render_check=True)
    yield from ()  # the checker raises


def _check_spaces(subject: Subject) -> Iterator[str]:
    """Spaces sample what they contain, from their seed, and survive JSON and pickle."""
    env = subject.env.prototype
    names = [tool.name for tool in env.tools]
    if len(set(names)) != len(names):
        yield f"two tools share a name: {', '.join(names)}"
    spaces: tuple[Any, ...] = (env.action_space, env.observation_space)
    for space in spaces:
        space.seed(7)
        first = [space.sample() for _ in range(20)]
        space.seed(7)
        if first != [space.sample() for _ in range(20)]:
            yield f"{space} samples differently from the same seed"
        if not all(space.contains(item) for item in first):
            yield f"{space} does not contain what it samples"
        if space.from_jsonable(json.loads(json.dumps(space.to_jsonable(first)))) != first:
            yield f"{space} does not survive a JSON round trip"
        if pickle.loads(pickle.dumps(space)) != space:
            yield f"{space} does not survive pickling"


def _check_seeds(subject: Subject) -> Iterator[str]:
    """The same seed gives the same episode, and different seeds different tasks."""
    env = subject.env.prototype
    for task in subject.some(3):
        if trace(subject.env, task, 11) != trace(subject.env, task, 11):
            yield f"task {task.id!r} played twice with the same seed and calls goes differently"
    drawn = [env.reset(seed=seed)[1]["task"] for seed in (*range(8), 0)]
    if drawn[0] != drawn[-1]:
        yield f"reset(seed=0) drew {drawn[0]!r}, then {drawn[-1]!r}"
    if len(set(drawn)) == 1 and len(subject.env.tasks("train")) > 4:
        yield f"eight seeds all drew task {drawn[0]!r}"


def _check_tasks(subject: Subject) -> Iterator[str]:
    """Splits are filled and disjoint; tasks are plain data, and begin alike in every instance and process."""
    owner: dict[str, str] = {}
    shown: dict[str, str] = {}
    for split in SPLITS:
        tasks = subject.env.tasks(split)
        if not tasks:
            yield f"the {split!r} split has no task"
        if list(tasks) != list(subject.env.tasks(split)):
            yield f"asked again, {split!r} has other tasks, or another order: {SAME}"
        for task in tasks:
            if task.id in owner:
                yield f"task {task.id!r} is in {owner[task.id]!r} and in {split!r}: ids must be unique"
            owner[task.id] = split
            if task.split != split:
                yield f"task {task.id!r} of {split!r} says that it is of {task.split!r}"
            if not is_json(task.data):
                yield f"the data of task {task.id!r} are not plain JSON: {brief(task.data, 80)}"
        for task in tasks[:OPENED]:
            text = subject.env.open(task, 0)[1].text
            if subject.distinct and shown.setdefault(text, split) != split:
                yield f"task {task.id!r} of {split!r} begins like one of {shown[text]!r}: share no problem"
                break
    here = list_tasks(subject.env)
    found = list(differences(here, list_tasks(replace(subject.env)), "in a second instance"))
    yield from found or differences(here, list_in_fresh_process(subject.env) or here, "in a fresh process")


def _check_sealed(subject: Subject) -> Iterator[str]:
    """A sealed handle opens no test task, whatever split the task claims."""
    sealed = subject.env.sealed()
    for task in subject.env.tasks("test")[:1]:
        try:
            sealed.open(replace(task, split="train"), 0)
        except SealedSplitError:
            continue
        yield f"a sealed handle opened test task {task.id!r}"


def _check_observations(subject: Subject) -> Iterator[str]:
    """Observations are text and JSON data, through whole episodes of random calls."""
    for place, task in enumerate(subject.some()):
        for observation in trace(subject.env, task, place):
            if not subject.env.prototype.observation_space.contains(observation):
                yield f"task {task.id!r} showed what is not text with JSON data: {brief(observation, 120)}"
        if not subject.env.open(task, 3)[1].text.strip():
            yield f"task {task.id!r} begins with an empty text"


def _check_episodes(subject: Subject) -> Iterator[str]:
    """Episodes that run at the same time do not touch each other."""
    tasks = subject.some(2)
    one, first = subject.env.open(tasks[0], 0)
    other, second = subject.env.open(tasks[-1], 0)
    for _ in play(one, 5):
        pass
    if other.begin(tasks[-1], 0) != second or subject.env.open(tasks[0], 0)[1] != first:
        yield "an episode changed what another one shows: keep an episode's state in its session"


def _check_invalid_calls(subject: Subject) -> Iterator[str]:
    """An invalid call is data: it says why in one line, changes nothing, and ends the episode only at the cap."""
    for place, task in enumerate(subject.some()):
        game, _ = subject.env.open(task, place)
        calls = [ToolCall("no such tool")]
        calls += [ToolCall(tool.name, arguments) for tool in game.tools for arguments in ({}, {"bogus argument": 1})]
        schema_breaking = [call for call in calls if not game.action_space.contains(call)]
        misfits = [filled_call(tool, text) for tool in game.tools for text in MISFITS]
        spec = game.domain.spec
        yield from _broken_turns(spec.max_invalid, (take_turn(game, call) for call in schema_breaking if not game.over))
        for call in misfits:
            game, _ = subject.env.open(task, place)
            yield from _broken_turns(spec.max_invalid, [take_turn(game, call)])
        game, _ = subject.env.open(task, place)
        yield from _broken_turns(spec.max_invalid, play(game, place))
        game, _ = subject.env.open(task, place)
        for _ in range(spec.max_invalid):
            game.step(ToolCall("no such tool"))
        failure = game.score().failure if game.over else None
        if failure != "illegal":
            yield f"{spec.max_invalid} invalid calls did not end the episode as 'illegal', but as {failure!r}"


def _broken_turns(cap: int, turns: Iterable[Turn]) -> Iterator[str]:
    """Says what is wrong with the invalid calls among some turns of an episode, up to its cap on them."""
    for turn in turns:
        if turn.error is None:
            continue
        cap -= 1
        if not isinstance(turn.error, str) or len(turn.error.splitlines()) != 1:
            yield f"{turn.told} is invalid, but its error is no line of text: {brief(turn.error)}"
        if not turn.before == turn.shown == turn.after:
            yield f"the invalid call {turn.told} changed what is observed"
        if turn.reward or (turn.over and not turn.truncated and cap > 0):
            yield f"the invalid call {turn.told} ended the episode with reward {turn.reward!r}"


def _check_writing(subject: Subject) -> Iterator[str]:
    """What commits can be written in tags, and the first observation or the tool says so, unless a baseline does."""
    spec = subject.env.prototype.domain.spec
    if spec.baseline != DomainSpec(spec.name, spec.tools).baseline:
        return
    committing = [tool for tool in spec.tools if tool.commits]
    for task in subject.some() if committing else ():
        _, shown = subject.env.open(task, 0)
        told = " ".join((shown.text, *(tool.description for tool in spec.tools)))
        if not any(f"<{tool.name}>" in told for tool in committing):
            name = committing[0].name
            yield (
                f"neither the first observation of {brief(task.id)} nor a tool's description says how to write an "
                f"action; add for example 'Write <{name}>…</{name}>.' to the observation"
            )


RULES: Mapping[str, Rule] = {
    "gymnasium": _check_gymnasium,
    "spaces": _check_spaces,
    "seeds": _check_seeds,
    "tasks": _check_tasks,
    "sealed": _check_sealed,
    "observations": _check_observations,
    "writing": _check_writing,
    "episodes": _check_episodes,
    "invalid calls": _check_invalid_calls,
    "commit rule": check_commit_rule,
    "verdicts": check_verdicts,
    "custody": check_custody,
}
"""The contract: name of a rule → its check. The check's docstring is the rule."""
