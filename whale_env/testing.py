"""The contract of a domain, as checks that anybody can run on a domain of his own: ``check_domain("my_pkg:MyEnv-v0")``.

Each rule in `RULES` plays a few episodes and reports what is wrong in one line each, with the task or the value.
``python -m whale_env.testing my_pkg:MyEnv-v0`` does the same from a shell. Checks find breaches, they do not prove that
there are none: whether the verifier is *right* is for the domain's own tests, and an answer that is hidden in a cipher
is not found.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from gymnasium.utils.env_checker import check_env

from whale_env.core import EnvHandle, SealedSplitError, ToolEnv
from whale_env.registry import UnknownEnvError, handle
from whale_env.spaces import is_json
from whale_env.types import FAILURES, SPLITS, Json, Observation, Task, ToolCall, ToolSpec

NOISE = "qzxv wkjp"
"""A text that answers nothing."""

TEXTS = (
    *("", " \n", NOISE, "\x00\x1b[0m", "\ud800", "½ﬁ²", "NaN", "-inf", "1e999", "9" * 2000, "0/0"),
    *("\\boxed{", "<answer>", "</answer>x<answer>", "(" * 500, "[[1", "{}", "__import__('os').getpid()", "%s{0}"),
)
"""Answers that a verifier must survive."""

GIVEAWAYS = frozenset({"answer", "answers", "gold", "golden_answers", "ground_truth", "label", "reference", "solution"})
"""Names under which data sets keep their answers."""

PLAYED = 6
"""Tasks of a split that are played."""

OPENED = 200
"""Tasks of a split whose first observations are compared."""


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
        found += RULES[rule](subject)
    except Exception as error:  # a domain may raise anywhere, and that is a breach too
        found.append(f"raised {type(error).__name__}: {error}")
    return list(dict.fromkeys(found))


def commit(env: ToolEnv, text: str) -> ToolCall:
    """Returns a committing call that carries a text wherever a text of any kind is asked for.

    Raises:
        ContractError: No tool commits.
    """
    tool = next((tool for tool in env.tools if tool.commits), None)
    if tool is None:
        raise ContractError("no tool commits: nothing binds the agent, so nothing can be judged")
    return ToolCall(tool.name, {name: _filled(schema, text) for name, schema in _required(tool).items()})


def verdict_problems(env: EnvHandle, text: str, task: Task | None = None) -> list[str]:
    """Commits any text on a task and returns what is wrong with the verdict; for property tests with any text.

    Args:
        env: The environment.
        text: What the model says.
        task: Which task; the first of the train split if None.
    """
    shown = f"after committing {text!r:.60}"
    try:
        game, _ = env.open(task or env.tasks("train")[0], 0)
        _, reward, *_ = game.step(commit(game, text))
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
    """Splits are filled and disjoint; tasks are plain data, the same in every instance."""
    again = replace(subject.env)
    owner: dict[str, str] = {}
    shown: dict[str, str] = {}
    for split in SPLITS:
        tasks = subject.env.tasks(split)
        if not tasks:
            yield f"the {split!r} split has no task"
        if [task.id for task in tasks] != [task.id for task in again.tasks(split)]:
            yield f"a second instance lists other tasks, or another order, for {split!r}: use no set order and no clock"
        for task in tasks:
            if task.id in owner:
                yield f"task {task.id!r} is in {owner[task.id]!r} and in {split!r}: ids must be unique"
            owner[task.id] = split
            if task.split != split:
                yield f"task {task.id!r} of {split!r} says that it is of {task.split!r}"
            if not is_json(task.data):
                yield f"the data of task {task.id!r} are not plain JSON: {task.data!r:.80}"
        for task in tasks[:OPENED]:
            text = subject.env.open(task, 0)[1].text
            if subject.distinct and shown.setdefault(text, split) != split:
                yield f"task {task.id!r} of {split!r} begins like one of {shown[text]!r}: share no problem"
                break


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
    for task in subject.some():
        for observation in _trace(subject.env, task, 3):
            if not subject.env.prototype.observation_space.contains(observation):
                yield f"task {task.id!r} showed what is not text with JSON data: {observation!r:.120}"
        if not subject.env.open(task, 3)[1].text.strip():
            yield f"task {task.id!r} begins with an empty text"


def _episodes(subject: Subject) -> Iterator[str]:
    """Episodes that run at the same time do not touch each other."""
    tasks = subject.some(2)
    one, first = subject.env.open(tasks[0], 0)
    other, second = subject.env.open(tasks[-1], 0)
    for call in _calls(one, 5):
        one.step(call)
    if other.begin(tasks[-1], 0) != second or subject.env.open(tasks[0], 0)[1] != first:
        yield "an episode changed what another one shows: keep an episode's state in its session"


def _invalid(subject: Subject) -> Iterator[str]:
    """An invalid call is data: it says why in one line, changes nothing, and ends the episode only at the cap."""
    for task in subject.some(2):
        env, before = subject.env.open(task, 0)
        space: Any = env.action_space
        calls = [ToolCall("no such tool")]
        calls += [ToolCall(tool.name, arguments) for tool in env.tools for arguments in ({}, {"bogus argument": 1})]
        for call in [call for call in calls if not space.contains(call)][: env.domain.spec.max_invalid - 1]:
            after, reward, terminated, truncated, info = env.step(call)
            if not isinstance(info.get("error"), str) or "\n" in info["error"]:
                yield f"{call.name}({dict(call.arguments)}) is invalid, but info['error'] is {info.get('error')!r:.80}"
            if after != before or reward or terminated or truncated:
                yield f"the invalid call {call.name}({dict(call.arguments)}) changed or ended the episode"
        for _ in range(env.domain.spec.max_invalid):
            env.step(ToolCall("no such tool"))
        if not env.over or env.score().failure != "illegal":
            yield f"{env.domain.spec.max_invalid} invalid calls did not end the episode as 'illegal'"


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
    """The verifier judges any text, and credits no noise."""
    for text in TEXTS:
        yield from verdict_problems(subject.env, text)
    for task in subject.some(12):
        env, _ = subject.env.open(task, 0)
        noise = commit(env, NOISE)
        # Where only listed choices can be said there is no noise, and a blind choice may be right.
        if NOISE in _words(noise.arguments) and env.step(noise)[1] == 1.0:
            yield f"task {task.id!r} is solved by {NOISE!r}"


def _custody(subject: Subject) -> Iterator[str]:
    """Nothing public leads to the answer: no object, no name, no text, no pickle."""
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
        exact = not path.startswith("repr")  # a short answer occurs in many a repr by chance
        held = [
            any(answer == leaves[path] if exact else len(answer) > 3 and answer in leaves[path] for answer in answers)
            for answers, leaves in solved
        ]
        if all(held):
            yield f"{path} holds the answer in each of {len(solved)} tasks"


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


def _trace(env: EnvHandle, task: Task, seed: int) -> list[Observation]:
    """Returns what an episode of the same few random calls shows."""
    game, first = env.open(task, seed)
    return [first, *(game.step(call)[0] for call in _calls(game, seed) if not game.over)]


def _calls(env: ToolEnv, seed: int, count: int = 5) -> list[ToolCall]:
    env.action_space.seed(seed)
    return [env.action_space.sample() for _ in range(count)]


def _required(tool: ToolSpec) -> dict[str, Mapping[str, Any]]:
    properties: Mapping[str, Mapping[str, Any]] = tool.parameters.get("properties", {})
    return {name: properties.get(name, {}) for name in tool.parameters.get("required", ()) or properties}


def _filled(schema: Mapping[str, Any], text: str) -> Json:
    if "enum" in schema:
        return text if text in schema["enum"] else schema["enum"][0]
    match schema.get("type", "string"):
        case "integer" | "number":
            return 7
        case "boolean":
            return True
        case "array":
            return [_filled(schema.get("items", {}), text)]
        case "object":
            return {name: _filled(item, text) for name, item in schema.get("properties", {}).items()}
        case _:
            return text


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


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m whale_env.testing",
        description="Checks a domain against the contract, and says what to fix.",
        epilog="example:\n  python -m whale_env.testing my_pkg:MyEnv-v0 --env-args '{\"tier\": 1}'",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("env", help="the environment, as for --env of the optimisers")
    parser.add_argument("--env-args", default="{}", help="its keyword arguments, as JSON")
    parser.add_argument("--secret", action="append", default=[], help="a text that only an answer holds; repeatable")
    parser.add_argument("--same-openings", action="store_true", help="tasks of two splits may begin alike")
    arguments = parser.parse_args()
    try:
        subject = Subject(
            handle(arguments.env, json.loads(arguments.env_args)), tuple(arguments.secret), not arguments.same_openings
        )
    except (UnknownEnvError, ValueError, TypeError) as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    broken = 0
    for name, rule in RULES.items():
        found = problems(name, subject)
        broken += bool(found)
        print(f"{'FAILED' if found else 'kept  '}  {name}: {rule.__doc__}")
        for problem in found:
            print(f"        - {problem}")
    raise SystemExit(1 if broken else 0)


if __name__ == "__main__":
    main()
