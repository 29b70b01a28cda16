"""Whether anything public leads to an answer. An answer is recognised by committing what a session stores."""

from __future__ import annotations

import gc
import pickle
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from whale_env.core import EnvHandle
from whale_env.testing.calls import NOISE, commit
from whale_env.testing.subject import Subject, leaves
from whale_env.types import SPLITS, Task, ToolCall

GIVEAWAYS = frozenset({"answer", "answers", "gold", "golden_answers", "ground_truth", "label", "reference", "solution"})
"""Names under which data sets keep their answers."""


def check_custody(subject: Subject) -> Iterator[str]:
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
        yield from _find_foreign(public)
        shown = dict(leaves({"task": task.to_json(), "observation": first.to_json(), "info": info}))
        for path in shown:
            name = path.rpartition(".")[2].partition("[")[0].lower()
            if name in GIVEAWAYS:
                yield f"{path} is public in task {task.id!r}: an answer must not leave the session"
        pickled = pickle.dumps(public)
        for secret in subject.secrets:
            if secret.encode("utf-8", "surrogatepass") in pickled or any(secret in text for text in shown.values()):
                yield f"the secret {secret!r:.40} stands in what is public of task {task.id!r}"
            for name, text in prints.items():
                if secret in text:
                    yield f"the secret {secret!r:.40} stands in the repr of the {name}"
        answers = _find_answers(subject.env, task)
        if answers:
            solved.append((answers, {**shown, **{f"repr of the {name}": text for name, text in prints.items()}}))
    if len({frozenset(answers) for answers, _ in solved}) < 2:
        return
    for path in set.intersection(*(set(shown) for _, shown in solved)):
        if all(any(_holds(path, shown[path], answer) for answer in answers) for answers, shown in solved):
            yield f"{path} holds the answer in each of {len(solved)} tasks"


def _holds(path: str, text: str, answer: str) -> bool:
    if path.startswith("repr"):
        return len(answer) > 3 and answer in text  # a short answer occurs in many a repr by chance
    return answer == text or (path == "task.id" and answer in re.split(r"[\W_]+", text))


_CODE = (type, ModuleType, FunctionType, MethodType, BuiltinFunctionType)
_PLAIN = ("builtins", "whale_env.types", "whale_env.spaces", "numpy", "_thread", "enum", "collections")


def _find_foreign(public: list[Any]) -> Iterator[str]:
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


def _find_answers(env: EnvHandle, task: Task) -> set[str]:
    """Returns what a session holds, near its surface, that solves its task when it is committed."""
    game, _ = env.open(task, 0)
    found = set()
    for text in islice(dict.fromkeys(_walk_held(game._session)), 40):
        game, _ = env.open(task, 0)
        if game.step(commit(game, text))[1] == 1.0:
            found.add(text)
    return found


def _walk_held(session: Any) -> Iterator[str]:
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
