r"""Mathematics: run Python as often as you like, then commit one ``answer(text)`` with the result in a box.

Judged by the last ``\boxed{}`` of the committed text; nothing outside a box counts, so an answer without one is final
and wrong (``format``). Equality is `whale_env.math.verifier`'s business, the problems `whale_env.math.problems`'s, the
confinement of programs `whale_env.sandbox`'s.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import lru_cache
from typing import Any

from whale_env.commit import Named, named_verbatim, said_verbatim
from whale_env.core import DomainSpec, Easy, Outcome, ToolEnv
from whale_env.math.problems import Problem, load_problems
from whale_env.math.verifier import boxed_answer, math_equal
from whale_env.splits import Plan, Source, plan_of
from whale_env.text_files import stamp
from whale_env.types import Failure, Json, Observation, Score, Split, Task, ToolCall, ToolSpec

PYTHON = ToolSpec(
    "python",
    "Runs a Python program and returns what it prints. Nothing is kept between calls.",
    {
        "type": "object",
        "properties": {"code": {"type": "string", "description": "The program; sympy and numpy can be imported."}},
        "required": ["code"],
    },
    runs=True,
)
ANSWER = ToolSpec(
    "answer",
    r"Gives the final answer. The result must stand in \boxed{}.",
    {
        "type": "object",
        "properties": {"text": {"type": "string", "description": "The answer.", "examples": [r"\boxed{42}"]}},
        "required": ["text"],
    },
    commits=True,
)
SECONDS = 10.0
EPISODE_SECONDS = 30.0
"""For all programs of an episode: a model that repeats an endless one is not waited for 32 times."""
UNCHARGED = 0.2  # of each program, since machines are busy
MEMORY_MB = 512


def math_env(
    *,
    source: Source = None,
    tiers: Sequence[str] | None = None,
    limit: int | None = None,
    split: Split = "train",
    render_mode: str | None = None,
) -> ToolEnv:
    """Makes the mathematics environment (``whale/Math-v0``).

    Args:
        source: A file, directory, or hub name (`whale_env.rows.read_rows`), several, or a mapping from split to those,
            e.g. ``{"train": "dapo-math-17k", "search": "dapo-math-17k", "test": ["aime24", "aime25"]}``. None takes the
            generated problems.
        tiers: Keep these tiers, ``"1"`` (easiest) to ``"5"``, e.g. ``["1"]``.
        limit: Keep the first so many problems.
        split: Where ``reset()`` draws from.
        render_mode: ``"ansi"`` or None.

    Returns:
        The environment.

    Raises:
        whale_env.rows.DatasetError: A data set cannot be read, a row is bad, or nothing is left.
        InputError: A filter makes no sense.
    """
    wanted = tiers if tiers is None or isinstance(tiers, str) else tuple(map(str, tiers))
    plan = plan_of(source)
    problems = _load(plan, wanted, limit, stamp(*(name for name, _ in plan)))
    return ToolEnv(MathDomain(problems), split=split, render_mode=render_mode)


@lru_cache(maxsize=8)
def _load(plan: Plan, tiers: tuple[str, ...] | str | None, limit: int | None, files: Hashable) -> tuple[Problem, ...]:
    """Loads problems, or finds them again if the stamp of the ``files`` is the same."""
    return load_problems(plan, tiers=tiers, limit=limit)


class MathDomain:
    """Mathematics problems as a `whale_env.core.Domain`."""

    spec = DomainSpec(
        "math",
        (PYTHON, ANSWER),
        max_steps=32,
        max_invalid=8,
        blocking=True,
        easy=Easy({"tiers": ["1"]}, calls=3, tokens=128),
        baseline="reference_harnesses.math.h0:MathH0",
    )

    def __init__(self, problems: Sequence[Problem]) -> None:
        """Sorts problems into splits.

        Args:
            problems: The problems; their answers stay inside.
        """
        self._problems = {problem.id: problem for problem in problems}
        self._tasks: dict[Split, list[Task]] = {"train": [], "search": [], "test": []}
        for problem in problems:
            facts = {"tier": problem.tier, "topic": problem.topic}
            shown: dict[str, Json] = {name: value for name, value in facts.items() if value}
            self._tasks[problem.split].append(Task(problem.id, "math", problem.split, shown, problem.source))

    def tasks(self, split: Split) -> Sequence[Task]:
        """Returns the public tasks of a split, in the order of the data."""
        return self._tasks[split]

    def start(self, task: Task, seed: int) -> MathSession:
        """Opens a problem; nothing in it is random."""
        return MathSession(self._problems[task.id])


class MathSession:
    """One problem in progress."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._last: dict[str, Json] | None = None
        self._programs, self._seconds = 0, EPISODE_SECONDS
        self._score: Score | None = None

    def observe(self) -> Observation:
        """Shows the problem; after a program, what it printed."""
        data: dict[str, Any] = {"problem": self._problem.text, "last_result": self._last}
        if self._score is not None:
            return Observation("The answer has been given.", data)
        return Observation(self._problem.text if self._last is None else _shown(self._last), data)

    def apply(self, call: ToolCall) -> Outcome:
        """Runs a program, or judges the answer and ends the episode."""
        if call.name == "answer":
            self._score = self._judged(str(call.arguments["text"]))
            return Outcome(self.observe(), None, True)
        from whale_env.sandbox import run_python

        code = str(call.arguments["code"])
        if not code.strip():
            return Outcome(self.observe(), "python: the program is empty")
        if self._seconds <= 0:
            return Outcome(self.observe(), f"python: this episode's programs have run {EPISODE_SECONDS:g} s; answer")
        self._programs += 1
        result = run_python(code, timeout=min(SECONDS, self._seconds), memory_mb=MEMORY_MB)
        self._seconds -= max(0.0, result.seconds - UNCHARGED)
        self._last = {"stdout": result.stdout, "stderr": result.stderr, "status": result.status}
        return Outcome(self.observe())

    def said(self, call: ToolCall, text: str) -> bool:
        r"""Whether the text has the answer, case and white space aside.

        Of a text with a box only the box's content needs to be said: it alone is judged, and ``\boxed`` is form.
        """
        return said_verbatim(_in_box(call), text)

    def named(self, call: ToolCall, text: str) -> tuple[Named, ...]:
        """Returns the numbers that the text names, or its pieces where the answer is no number."""
        inner = _in_box(call)
        if inner is call:  # an answer without a box earns nothing: where it was said, it is as good as chosen
            given = str(call.arguments["text"])
            return (Named((given,) if said_verbatim(call, text) else (), given),)
        return named_verbatim(inner, text)

    def score(self) -> Score:
        """1 when the box of the committed answer equals the reference."""
        return self._score or Score(0.0, "budget", {"programs": float(self._programs)})

    def _judged(self, text: str) -> Score:
        boxed = boxed_answer(text)
        right = boxed is not None and math_equal(self._problem.answer, boxed)
        failure: Failure | None = None if right else "format" if boxed is None else "wrong"
        metrics = {"programs": float(self._programs), "boxed": float(boxed is not None)}
        return Score(float(right), failure, metrics)


def _in_box(call: ToolCall) -> ToolCall:
    boxed = boxed_answer(str(call.arguments["text"]))
    return ToolCall(call.name, {"text": boxed}) if boxed else call


def _shown(result: dict[str, Json]) -> str:
    parts = [str(result[name]).rstrip() for name in ("stdout", "stderr")]
    if result["status"] != "ok":
        parts.append(f"[{result['status']}]")
    return "\n".join(part for part in parts if part) or "[no output]"
