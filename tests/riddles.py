"""A toy domain as another package would write it: sums, one informing and one committing tool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import gymnasium as gym

from whale_env import DomainSpec, Observation, Outcome, Score, Task, ToolCall, ToolEnv, ToolSpec, said_verbatim
from whale_env.types import Split

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
TOOLS = (
    ToolSpec("answer", "Gives the final answer, written <answer>…</answer>.", TEXT, commits=True),
    ToolSpec("hint", "Gives a hint.", {"type": "object", "properties": {}}),
)


class Riddles:
    def __init__(self, max_steps: int = 8) -> None:
        self.spec = replace(DomainSpec("riddles", TOOLS), max_steps=max_steps)

    def tasks(self, split: Split) -> Sequence[Task]:
        return [Task(f"{split}-{i}", "riddles", split) for i in range(10)]

    def start(self, task: Task, seed: int) -> Riddle:
        return Riddle(int(task.id.rsplit("-", 1)[1]))


class Riddle:
    def __init__(self, number: int) -> None:
        self._number, self._given, self._hint = number, None, ""

    def observe(self) -> Observation:
        return Observation(f"What is {self._number} + {self._number}?{self._hint}", {"number": self._number})

    def apply(self, call: ToolCall) -> Outcome:
        if call.name == "hint":
            self._hint = " It is even."
            return Outcome(self.observe())
        self._given = call.arguments["text"]
        return Outcome(self.observe(), done=True)

    def said(self, call: ToolCall, text: str) -> bool:
        return said_verbatim(call, text)

    def score(self) -> Score:
        if self._given is None:
            return Score(0.0, "budget")
        return Score(1.0) if self._given == str(2 * self._number) else Score(0.0, "wrong")


def riddle_env(split: Split = "train", render_mode: str | None = None) -> ToolEnv:
    return ToolEnv(Riddles(), split=split, render_mode=render_mode)


if "riddles/Riddles-v0" not in gym.registry:
    gym.register("riddles/Riddles-v0", entry_point="riddles:riddle_env")
