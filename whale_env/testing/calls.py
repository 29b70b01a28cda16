"""Calls that know nothing of a task, and episodes of them: what the rules play."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from whale_env.core import EnvHandle, ToolEnv
from whale_env.json_schema import main_type
from whale_env.testing.subject import ContractError, brief, words_in
from whale_env.types import Json, Observation, Task, ToolCall, ToolSpec

NOISE = "qzxv wkjp"
"""A text that answers nothing."""

NUMBERS = (7, 0, 1, -1, 2, 1000, 918273645, -918273645, 10**30)
"""Numbers that are committed where a number is asked for; at most one of them can be meant."""

CALLS = 8
"""Random calls in an episode."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One call in an episode, and what could be observed before, with, and after it."""

    told: str
    before: Observation
    shown: Observation
    after: Observation
    error: Any
    reward: float
    over: bool
    truncated: bool


def take_turn(game: ToolEnv, call: ToolCall) -> Turn:
    """Makes one call in an open episode.

    Raises:
        ContractError: The domain raises.
    """
    session: Any = game._session
    before = session.observe()
    try:
        shown, reward, terminated, truncated, info = game.step(call)
    except Exception as error:
        raise ContractError(
            f"{called(call)} raised {type(error).__name__}: {error} (apply must return an Outcome for every call that "
            "fits the schema, and refuse a bad one with Outcome(…, error=…))"
        ) from error
    return Turn(
        called(call), before, shown, session.observe(), info["error"], reward, terminated or truncated, truncated
    )


def called(call: ToolCall) -> str:
    """Returns a call as a message shows it."""
    return f"{call.name}({', '.join(f'{name}={brief(value)}' for name, value in call.arguments.items())})"


def trace(env: EnvHandle, task: Task, seed: int) -> list[Observation]:
    """Returns what an episode of the same few random calls shows."""
    game, first = env.open(task, seed)
    return [first, *(turn.shown for turn in play(game, seed))]


def play(game: ToolEnv, seed: int) -> Iterator[Turn]:
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
        words = [text for text in (*words_in(shown.data), *re.findall(r"\w+", shown.text)) if 0 < len(text) <= 40]
        if words and rng.random() < 0.5:
            arguments = {k: rng.choice(words) if isinstance(v, str) else v for k, v in call.arguments.items()}
            repeated = ToolCall(call.name, arguments)
            call = repeated if space.contains(repeated) else call
        turn = take_turn(game, call)
        shown = turn.shown if isinstance(turn.shown, Observation) else shown
        yield turn


def commit(env: ToolEnv, text: str) -> ToolCall:
    """Returns a committing call that carries a text wherever one is asked for, or the number or choice it names.

    Raises:
        ContractError: No tool commits.
    """
    tool = next((tool for tool in env.tools if tool.commits), None)
    if tool is None:
        raise ContractError("no tool commits: nothing binds the agent, so nothing can be judged")
    return filled_call(tool, text)


def filled_call(tool: ToolSpec, text: str, place: int = 0) -> ToolCall:
    """Returns a call that gives a text wherever one is asked for, or the number or choice it names."""
    return ToolCall(tool.name, {name: _filled(schema, text, place) for name, schema in _required(tool).items()})


def _required(tool: ToolSpec) -> dict[str, Mapping[str, Any]]:
    properties: Mapping[str, Mapping[str, Any]] = tool.parameters.get("properties", {})
    return {name: properties.get(name, {}) for name in tool.parameters.get("required", ()) or properties}


def _filled(schema: Mapping[str, Any], text: str, place: int = 0) -> Json:
    """Returns a value that fits a schema: the text, or the number or choice that it names, else one by its place."""
    if "enum" in schema:
        choices: Sequence[Json] = schema["enum"]
        return next((choice for choice in choices if str(choice) == text), choices[place % len(choices)])
    match main_type(schema, "string"):
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
