"""The contract of a domain, as checks that anybody can run on a domain of his own: ``check_domain("my_pkg:MyEnv-v0")``.

Each rule in `RULES` plays a few episodes and reports what is wrong in one line each, with the task or the value.
``python -m whale_env.testing my_pkg:MyEnv-v0`` does the same from a shell. Checks find breaches, they do not prove that
there are none: whether the verifier is *right* is for the domain's own tests. An answer is recognised by committing
what a session stores, so one that it computes, or shows in a cipher, is found only if it is named (``--secret``).
"""

from __future__ import annotations

import gc
import hashlib
import json
import math
import os
import pickle
import random
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from gymnasium import registry
from gymnasium.utils.env_checker import check_env

from whale_env.core import EnvHandle, SealedSplitError, ToolEnv
from whale_env.registry import handle
from whale_env.strict_json import is_json
from whale_env.types import FAILURES, SPLITS, Json, Observation, Task, ToolCall, ToolSpec, canonical_json

NOISE = "qzxv wkjp"
"""A text that answers nothing."""

TEXTS = (
    *("", " \n", NOISE, "\x00\x1b[0m", "\ud800", "½ﬁ²", "NaN", "-inf", "1e999", "9" * 2000, "0/0"),
    *("\\boxed{", "<answer>", "</answer>x<answer>", "(" * 500, "[[1", "{}", "__import__('os').getpid()", "%s{0}"),
)
"""Answers that a verifier must survive."""

NUMBERS = (7, 0, 1, -1, 2, 1000, 918273645, -918273645, 10**30)
"""Numbers that are committed where a number is asked for; at most one of them can be meant."""

MISFITS = ("", "two\nlines", NOISE)
"""Texts that every tool is called with: a domain refuses most of them itself."""

GIVEAWAYS = frozenset({"answer", "answers", "gold", "golden_answers", "ground_truth", "label", "reference", "solution"})
"""Names under which data sets keep their answers."""

PLAYED = 6
"""Tasks of a split that are played."""

OPENED = 200
"""Tasks of a split whose first observations are compared with those of other splits."""

REOPENED = 20
"""Tasks of a split whose first observations are compared between instances."""

CALLS = 8
"""Random calls in an episode."""


class ContractError(AssertionError):
    """A domain breaks the contract; the message lists every breach that was found."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is checked.

    Attributes:
        env: A handle on all splits.
        secrets: Texts that only the answers hold and that must occur in nothing public.
        distinct: Whether no two splits may begin with the same observation. False where the problem does not show at
            the start (a fixed map, hidden dynamics).
    """

    env: EnvHandle
    secrets: tuple[str, ...] = ()
    distinct: bool = True

    def some(self, count: int = PLAYED) -> list[Task]:
        """Returns some tasks of the train split."""
        return list(self.env.tasks("train")[:count])


Rule = Callable[[Subject], Iterator[str]]


def check_domain(
    env: EnvHandle | str,
    kwargs: Mapping[str, Json] | None = None,
    *,
    secrets: Sequence[str] = (),
    distinct: bool = True,
) -> None:
    """Checks a domain against every rule of the contract.

    Args:
        env: Its name as for ``--env``, or a handle on all splits.
        kwargs: Keyword arguments of the environment, where a name is given.
        secrets: Texts that only the answers hold: a domain with one such answer is a sharp test of custody.
        distinct: As in `Subject`.

    Raises:
        ContractError: The contract is broken; all breaches that were found are listed.
        whale_env.registry.UnknownEnvError: No environment has that name.
    """
    subject = Subject(handle(env, kwargs) if isinstance(env, str) else env, tuple(secrets), distinct)
    found = [f"{name}: {problem}" for name in RULES for problem in problems(name, subject)]
    if found:
        raise ContractError(f"{subject.env.name} breaks the contract:\n" + "\n".join(f"- {line}" for line in found))


def problems(rule: str, subject: Subject) -> list[str]:
    """Returns what one rule finds wrong.

    Args:
        rule: A name from `RULES`.
        subject: What to check.
    """
    found: list[str] = []
    try:
        for problem in RULES[rule](subject):  # one by one: what was found before an exception is kept
            found.append(problem)
    except ContractError as error:
        found.append(str(error))
    except Exception as error:  # a domain may raise anywhere, and that is a breach too
        found.append(f"raised {type(error).__name__}: {error}")
    return _grouped(found)


def _grouped(found: Sequence[str]) -> list[str]:
    """Returns the first of the findings that differ in values only, each with how many more there are."""
    kinds: dict[tuple[str, ...], list[str]] = {}
    for line in dict.fromkeys(found):
        template = re.sub(_QUOTED, " ", re.sub(r"(raised \w+): .*", r"\1", line, flags=re.DOTALL))
        words = re.findall(r"[^\W\d]{2,}", template)
        kinds.setdefault(tuple(word for word in words if word not in _VALUES), []).append(line)
    firsts = {" ".join(lines[0].splitlines())[:400]: len(lines) - 1 for lines in kinds.values()}
    return [first + (f" … and {more} more" if more else "") for first, more in firsts.items()]


_QUOTED = r"""(?<!\w)(?:'(?:[^'\\]|\\.)*(?:'|$)|"(?:[^"\\]|\\.)*(?:"|$))"""
_VALUES = frozenset({"None", "True", "False", "nan", "inf"})


def _brief(value: object, size: int = 60) -> str:
    """Returns a value's repr, cut so that its quotes still close."""
    text = repr(value)
    if len(text) <= size:
        return text
    return f"{text[:size].rstrip(chr(92))}…{text[0] if text[0] in _QUOTES else ''}"


_QUOTES = "'\""


def commit(env: ToolEnv, text: str) -> ToolCall:
    """Returns a committing call that carries a text wherever one is asked for, or the number or choice it names.

    Raises:
        ContractError: No tool commits.
    """
    tool = next((tool for tool in env.tools if tool.commits), None)
    if tool is None:
        raise ContractError("no tool commits: nothing binds the agent, so nothing can be judged")
    return _filled_call(tool, text)


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
    return _verdict_problems(env, call, task or env.tasks("train")[0], f"after committing {_brief(text)}")


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


def _gymnasium(subject: Subject) -> Iterator[str]:
    """Gymnasium's own checker, warnings included."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(replace(subject.env).prototype, skip_render_check=True)
    yield from ()  # the checker raises


def _spaces(subject: Subject) -> Iterator[str]:
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


def _seeds(subject: Subject) -> Iterator[str]:
    """The same seed gives the same episode, and different seeds different tasks."""
    env = subject.env.prototype
    for task in subject.some(3):
        if _trace(subject.env, task, 11) != _trace(subject.env, task, 11):
            yield f"task {task.id!r} played twice with the same seed and calls goes differently"
    drawn = [env.reset(seed=seed)[1]["task"] for seed in (*range(8), 0)]
    if drawn[0] != drawn[-1]:
        yield f"reset(seed=0) drew {drawn[0]!r}, then {drawn[-1]!r}"
    if len(set(drawn)) == 1 and len(subject.env.tasks("train")) > 4:
        yield f"eight seeds all drew task {drawn[0]!r}"


def _tasks(subject: Subject) -> Iterator[str]:
    """Splits are filled and disjoint; tasks are plain data, and begin alike in every instance and process."""
    owner: dict[str, str] = {}
    shown: dict[str, str] = {}
    for split in SPLITS:
        tasks = subject.env.tasks(split)
        if not tasks:
            yield f"the {split!r} split has no task"
        if list(tasks) != list(subject.env.tasks(split)):
            yield f"asked again, {split!r} has other tasks, or another order: {_SAME}"
        for task in tasks:
            if task.id in owner:
                yield f"task {task.id!r} is in {owner[task.id]!r} and in {split!r}: ids must be unique"
            owner[task.id] = split
            if task.split != split:
                yield f"task {task.id!r} of {split!r} says that it is of {task.split!r}"
            if not is_json(task.data):
                yield f"the data of task {task.id!r} are not plain JSON: {_brief(task.data, 80)}"
        for task in tasks[:OPENED]:
            text = subject.env.open(task, 0)[1].text
            if subject.distinct and shown.setdefault(text, split) != split:
                yield f"task {task.id!r} of {split!r} begins like one of {shown[text]!r}: share no problem"
                break
    here = _listing(subject.env)
    found = list(_differences(here, _listing(replace(subject.env)), "in a second instance"))
    yield from found or _differences(here, _fresh_listing(subject.env) or here, "in a fresh process")


def _sealed(subject: Subject) -> Iterator[str]:
    """A sealed handle opens no test task, whatever split the task claims."""
    sealed = subject.env.sealed()
    for task in subject.env.tasks("test")[:1]:
        try:
            sealed.open(replace(task, split="train"), 0)
        except SealedSplitError:
            continue
        yield f"a sealed handle opened test task {task.id!r}"


def _observations(subject: Subject) -> Iterator[str]:
    """Observations are text and JSON data, through whole episodes of random calls."""
    for place, task in enumerate(subject.some()):
        for observation in _trace(subject.env, task, place):
            if not subject.env.prototype.observation_space.contains(observation):
                yield f"task {task.id!r} showed what is not text with JSON data: {_brief(observation, 120)}"
        if not subject.env.open(task, 3)[1].text.strip():
            yield f"task {task.id!r} begins with an empty text"


def _episodes(subject: Subject) -> Iterator[str]:
    """Episodes that run at the same time do not touch each other."""
    tasks = subject.some(2)
    one, first = subject.env.open(tasks[0], 0)
    other, second = subject.env.open(tasks[-1], 0)
    for _ in _play(one, 5):
        pass
    if other.begin(tasks[-1], 0) != second or subject.env.open(tasks[0], 0)[1] != first:
        yield "an episode changed what another one shows: keep an episode's state in its session"


def _invalid(subject: Subject) -> Iterator[str]:
    """An invalid call is data: it says why in one line, changes nothing, and ends the episode only at the cap."""
    for place, task in enumerate(subject.some()):
        game, _ = subject.env.open(task, place)
        calls = [ToolCall("no such tool")]
        calls += [ToolCall(tool.name, arguments) for tool in game.tools for arguments in ({}, {"bogus argument": 1})]
        schema_breaking = [call for call in calls if not game.action_space.contains(call)]
        misfits = [_filled_call(tool, text) for tool in game.tools for text in MISFITS]
        spec = game.domain.spec
        yield from _broken_turns(spec.max_invalid, (_turn(game, call) for call in schema_breaking if not game.over))
        for call in misfits:
            game, _ = subject.env.open(task, place)
            yield from _broken_turns(spec.max_invalid, [_turn(game, call)])
        game, _ = subject.env.open(task, place)
        yield from _broken_turns(spec.max_invalid, _play(game, place))
        game, _ = subject.env.open(task, place)
        for _ in range(spec.max_invalid):
            game.step(ToolCall("no such tool"))
        due, many = ("illegal", spec.max_invalid) if spec.max_invalid <= spec.max_steps else ("budget", spec.max_steps)
        failure = game.score().failure if game.over else None
        if failure != due:
            yield f"{many} invalid calls did not end the episode as {due!r}, but as {failure!r}"


def _broken_turns(cap: int, turns: Iterable[_Turn]) -> Iterator[str]:
    """Says what is wrong with the invalid calls among some turns of an episode, up to its cap on them."""
    for turn in turns:
        if turn.error is None:
            continue
        cap -= 1
        if not isinstance(turn.error, str) or len(turn.error.splitlines()) != 1:
            yield f"{turn.told} is invalid, but its error is no line of text: {_brief(turn.error)}"
        if not turn.before == turn.shown == turn.after:
            yield f"the invalid call {turn.told} changed what is observed"
        if turn.reward or (turn.over and not turn.truncated and cap > 0):
            yield f"the invalid call {turn.told} ended the episode with reward {turn.reward!r}"


def _commit_rule(subject: Subject) -> Iterator[str]:
    """What the model did not say is not said; what it wrote word for word is."""
    for task in subject.some(3):
        env, _ = subject.env.open(task, 0)
        call = commit(env, "b7")
        before = (env.score(), env.over)
        for text in ("", "  \n", "Nothing to see."):
            if env.said(call, text):
                yield f"said({dict(call.arguments)}) holds for {text!r}, in which the model says nothing of the kind"
        words = "\n".join(_words(call.arguments))
        if not env.said(call, words):
            yield f"said({dict(call.arguments)}) does not hold for {words!r}: a model could never commit it"
        if (env.score(), env.over) != before:
            yield "asking said() changed the score"


def _verdicts(subject: Subject) -> Iterator[str]:
    """The verifier judges any text and any number, and credits no noise."""
    env = subject.env
    for text in TEXTS:
        yield from verdict_problems(env, text)
    blind = [call for tool in env.prototype.tools if tool.commits for call in _blind(tool)]
    shown = [f"after committing {', '.join(map(_brief, call.arguments.values()))}" for call in blind]
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
            if rewards[-1] == 1.0 and NOISE in _words(call.arguments):
                yield f"task {task.id!r} is solved by {NOISE!r}"
    if rewards and min(rewards) == 1.0:
        yield f"the verifier credits everything: {_called(blind[0])} and all else that was committed, on every task"


def _blind(tool: ToolSpec) -> list[ToolCall]:
    """Returns calls that know nothing of the task: noise, and several of each number, boolean and choice."""
    calls = (_filled_call(tool, NOISE, place) for place in range(len(NUMBERS)))
    return list({canonical_json(call.to_json()): call for call in calls}.values())


def _repeated(env: EnvHandle, task: Task, call: ToolCall) -> float:
    """Returns the reward of an episode in which a blind call is made until its end.

    A choice from a list is made once: to repeat it is a way to play, and where it is enough to hold out a good one.
    """
    game, _ = env.open(task, 0)
    is_listed = {NOISE, *map(str, NUMBERS)}.isdisjoint(_words(call.arguments))
    reward = 0.0
    for _ in range(1 if is_listed else 64):
        if game.over:
            break
        reward = game.step(call)[1]
    return reward


def _custody(subject: Subject) -> Iterator[str]:
    """Nothing public leads to the answer (finds only answers that a session stores; name others with --secret)."""
    solved: list[tuple[set[str], dict[str, str]]] = []
    for task in (
        subject.some() if not subject.secrets else [t for split in SPLITS for t in subject.env.tasks(split)[:3]]
    ):
        env, first = subject.env.open(task, 0)
        after, _, _, _, info = env.step(ToolCall("no such tool"))
        public = [task, first, after, info, env.tools, env.action_space, env.observation_space]
        public += [env.step(commit(env, NOISE)), env.score()]
        prints = {"env": repr(env), "domain": repr(env.domain), "session": repr(env._session)}
        yield from _foreign(public)
        leaves = dict(_leaves({"task": task.to_json(), "observation": first.to_json(), "info": info}))
        for path in leaves:
            name = path.rpartition(".")[2].partition("[")[0].lower()
            if name in GIVEAWAYS:
                yield f"{path} is public in task {task.id!r}: an answer must not leave the session"
        pickled = pickle.dumps(public)
        for secret in subject.secrets:
            if secret.encode("utf-8", "surrogatepass") in pickled or any(secret in text for text in leaves.values()):
                yield f"the secret {secret!r:.40} stands in what is public of task {task.id!r}"
            for name, text in prints.items():
                if secret in text:
                    yield f"the secret {secret!r:.40} stands in the repr of the {name}"
        answers = _answers(subject.env, task)
        if answers:
            solved.append((answers, {**leaves, **{f"repr of the {name}": text for name, text in prints.items()}}))
    if len({frozenset(answers) for answers, _ in solved}) < 2:
        return
    for path in set.intersection(*(set(leaves) for _, leaves in solved)):
        if all(any(_holds(path, leaves[path], answer) for answer in answers) for answers, leaves in solved):
            yield f"{path} holds the answer in each of {len(solved)} tasks"


def _holds(path: str, text: str, answer: str) -> bool:
    if path.startswith("repr"):
        return len(answer) > 3 and answer in text  # a short answer occurs in many a repr by chance
    return answer == text or (path == "task.id" and answer in re.split(r"[\W_]+", text))


RULES: Mapping[str, Rule] = {
    "gymnasium": _gymnasium,
    "spaces": _spaces,
    "seeds": _seeds,
    "tasks": _tasks,
    "sealed": _sealed,
    "observations": _observations,
    "episodes": _episodes,
    "invalid calls": _invalid,
    "commit rule": _commit_rule,
    "verdicts": _verdicts,
    "custody": _custody,
}
"""The contract: name of a rule → its check. The check's docstring is the rule."""


_SAME = "use no set order, no clock and no unseeded draw"
_CHILD = "WHALE_CONTRACT_CHILD"
_FRESH = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from whale_env.registry import handle
from whale_env.testing import _listing
listing = _listing(handle(sys.argv[2], json.loads(sys.argv[3])))
print()
print(json.dumps(listing))
"""

Listing = dict[str, list[list[str]]]
"""Split → for each task its id, and digests of the whole task and of its first observation (some tasks only)."""


def _listing(env: EnvHandle) -> Listing:
    listing: Listing = {}
    for split in SPLITS:
        tasks = env.tasks(split)
        opened = [_digest(env.open(task, 0)[1].to_json()) for task in tasks[:REOPENED]]
        opened += [""] * (len(tasks) - len(opened))
        listing[split] = [[task.id, _digest(task.to_json()), first] for task, first in zip(tasks, opened, strict=True)]
    return listing


def _digest(value: Json) -> str:
    try:
        text = canonical_json(value)
    except (TypeError, ValueError):  # no JSON: other rules say so
        return ""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _differences(here: Listing, there: Listing, where: str) -> Iterator[str]:
    for split in SPLITS:
        if [row[0] for row in here[split]] != [row[0] for row in there[split]]:
            yield f"{where} {split!r} has other tasks, or another order: {_SAME}"
            continue
        for (task_id, data, first), (_, other_data, other_first) in zip(here[split], there[split], strict=True):
            if data != other_data:
                yield f"{where} task {task_id!r} has other data: {_SAME}"
            if first != other_first:
                yield f"{where} task {task_id!r} begins otherwise with the same seed: {_SAME}"


def _fresh_listing(env: EnvHandle) -> Listing | None:
    """Returns the listing that a new interpreter with other hashes makes, or None where it does not know the name."""
    spec = registry.get(env.name)
    if _CHILD in os.environ or (":" not in env.name and not (spec and isinstance(spec.entry_point, str))):
        return None  # a module that checks itself when it is imported would start interpreters for ever
    hashes = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    try:
        done = subprocess.run(
            [sys.executable, "-c", _FRESH, json.dumps(sys.path), env.name, json.dumps(dict(env.kwargs))],
            env={**os.environ, "PYTHONHASHSEED": hashes, _CHILD: "1"},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        listing: Listing = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, OSError, TypeError, ValueError):
        return None
    return listing


@dataclass(frozen=True, slots=True)
class _Turn:
    """One call in an episode, and what could be observed before, with, and after it."""

    told: str
    before: Observation
    shown: Observation
    after: Observation
    error: Any
    reward: float
    over: bool
    truncated: bool


def _turn(game: ToolEnv, call: ToolCall) -> _Turn:
    session: Any = game._session
    before = session.observe()
    try:
        shown, reward, terminated, truncated, info = game.step(call)
    except Exception as error:
        raise ContractError(
            f"{_called(call)} raised {type(error).__name__}: {error} (apply must return an Outcome for every call that "
            "fits the schema, and refuse a bad one with Outcome(…, error=…))"
        ) from error
    return _Turn(
        _called(call), before, shown, session.observe(), info["error"], reward, terminated or truncated, truncated
    )


def _called(call: ToolCall) -> str:
    return f"{call.name}({', '.join(f'{name}={_brief(value)}' for name, value in call.arguments.items())})"


def _trace(env: EnvHandle, task: Task, seed: int) -> list[Observation]:
    """Returns what an episode of the same few random calls shows."""
    game, first = env.open(task, seed)
    return [first, *(turn.shown for turn in _play(game, seed))]


def _play(game: ToolEnv, seed: int) -> Iterator[_Turn]:
    """Makes random calls in an open episode: at first such as inform, as others may end it.

    About half of the texts in them are words that were shown: those may be what a tool knows.
    """
    space, rng = game.action_space, random.Random(seed)
    space.seed(seed)
    shown = game._session.observe() if game._session else Observation("")
    informing = {tool.name for tool in game.tools if not tool.commits}
    for place in range(CALLS):
        if game.over:
            return
        call: ToolCall = space.sample()
        while informing and place < CALLS // 2 and call.name not in informing:
            call = space.sample()
        words = [text for text in (*_words(shown.data), *re.findall(r"\w+", shown.text)) if 0 < len(text) <= 40]
        if words and rng.random() < 0.5:
            arguments = {k: rng.choice(words) if isinstance(v, str) else v for k, v in call.arguments.items()}
            repeated = ToolCall(call.name, arguments)
            call = repeated if space.contains(repeated) else call
        turn = _turn(game, call)
        shown = turn.shown if isinstance(turn.shown, Observation) else shown
        yield turn


def _required(tool: ToolSpec) -> dict[str, Mapping[str, Any]]:
    properties: Mapping[str, Mapping[str, Any]] = tool.parameters.get("properties", {})
    return {name: properties.get(name, {}) for name in tool.parameters.get("required", ()) or properties}


def _filled_call(tool: ToolSpec, text: str, place: int = 0) -> ToolCall:
    return ToolCall(tool.name, {name: _filled(schema, text, place) for name, schema in _required(tool).items()})


def _filled(schema: Mapping[str, Any], text: str, place: int = 0) -> Json:
    """Returns a value that fits a schema: the text, or the number or choice that it names, else one by its place."""
    if "enum" in schema:
        choices: Sequence[Json] = schema["enum"]
        return next((choice for choice in choices if str(choice) == text), choices[place % len(choices)])
    match schema.get("type", "string"):
        case "integer" | "number" as kind:
            number = _number(text, kind)
            return NUMBERS[place % len(NUMBERS)] if number is None else number
        case "boolean":
            return place % 2 == 0
        case "array":
            return [_filled(schema.get("items", {}), text, place)]
        case "object":
            return {name: _filled(item, text, place) for name, item in schema.get("properties", {}).items()}
        case _:
            return text


def _number(text: str, kind: str) -> float | None:
    """Returns the number that a text is, if it has one's usual length."""
    if not re.fullmatch(r"-?\d{1,40}(\.\d{1,40})?(e-?\d{1,2})?", text, re.ASCII):
        return None
    return int(text) if text.lstrip("-").isdecimal() else float(text) if kind == "number" else None


def _words(value: Json) -> Iterator[str]:
    return (text for _, text in _leaves(value))


def _leaves(value: Json, path: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)):
        for place, item in enumerate(value):
            yield from _leaves(item, f"{path}[{place}]")
    else:
        yield path, str(value)


_CODE = (type, ModuleType, FunctionType, MethodType, BuiltinFunctionType)
_PLAIN = ("builtins", "whale_env.types", "whale_env.spaces", "numpy", "_thread", "enum", "collections")


def _foreign(public: list[Any]) -> Iterator[str]:
    """Names every public object that is more than data: it could be asked for what it holds."""
    found: dict[int, Any] = {}
    todo: list[Any] = [public]
    while todo:
        item = todo.pop()
        if id(item) in found or isinstance(item, _CODE):
            continue
        found[id(item)] = item
        module = type(item).__module__
        if module in _PLAIN or module.startswith("numpy."):
            todo += gc.get_referents(item)
        else:
            yield f"a public object leads to a {module}.{type(item).__qualname__}; give out plain data only"


def _answers(env: EnvHandle, task: Task) -> set[str]:
    """Returns what a session holds, near its surface, that solves its task when it is committed."""
    game, _ = env.open(task, 0)
    found = set()
    for text in islice(dict.fromkeys(_held(game._session)), 40):
        game, _ = env.open(task, 0)
        if game.step(commit(game, text))[1] == 1.0:
            found.add(text)
    return found


def _held(session: Any) -> Iterator[str]:
    """Yields the texts and numbers that an object holds, the nearest first, three levels deep."""
    level = [session]
    for _ in range(4):
        below: list[Any] = []
        for item in level:
            if isinstance(item, (str, int, float)) and not isinstance(item, bool):
                if 0 < len(str(item)) <= 200:
                    yield str(item)
            elif isinstance(item, Mapping):
                below += islice(item.values(), 20)
            elif isinstance(item, (list, tuple, set, frozenset)):
                below += islice(item, 20)
            elif not isinstance(item, _CODE):
                slots = (name for kind in type(item).__mro__ for name in getattr(kind, "__slots__", ()))
                below += [getattr(item, name) for name in slots if hasattr(item, name)]
                below += getattr(item, "__dict__", {}).values()
        level = below[:200]
