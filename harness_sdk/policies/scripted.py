"""`ScriptedPolicy`: a policy that is a Python function, for tests, behaviour checks and overhead benchmarks.

It tokenises as bytes, so that trajectories carry real ids that extend and fork as a model's do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness_sdk.policies.base import Generation, PromptTooLongError, Request
from harness_sdk.types import Completion, Message

END = 256
"""Id of the end token; ids below it are bytes."""

Script = Callable[[Sequence[Message]], str]


class ScriptedPolicy:
    """Answers by a function of the messages, or from a list of replies in order.

    Attributes:
        prompts: Every message list it was asked with, in order.
    """

    def __init__(self, script: Script | Sequence[str], *, tokens: bool = True) -> None:
        """Builds the policy.

        Args:
            script: A function of the messages, or replies by model call of an episode (the last one repeats).
            tokens: Whether generations carry ids and log-probabilities (0.0: a script is certain).
        """
        self._script = script
        self._tokens = tokens
        self.prompts: list[list[Message]] = []

    async def generate(self, request: Request) -> Generation:
        """Answers one request; cut at ``max_tokens`` bytes as a model would be."""
        self.prompts.append(request.messages)
        data = self._reply(request.messages).encode("utf-8", "replace")
        cut = len(data) >= request.max_tokens
        data = data[: request.max_tokens]
        text = data.decode("utf-8", "ignore")
        completion = Completion(text, "length" if cut else "stop", (), len(data) + (not cut))
        if not self._tokens:
            return Generation(completion)
        prompt = render(request.messages)
        prompt_ids = encode(request.messages)
        if len(prompt_ids) > request.max_prompt_tokens:
            raise PromptTooLongError(len(prompt_ids), request.max_prompt_tokens)
        ids = tuple(data) if cut else (*data, END)
        return Generation(completion, prompt, prompt_ids, ids, (0.0,) * len(ids))

    def _reply(self, messages: Sequence[Message]) -> str:
        if callable(self._script):
            return self._script(messages)
        asked = sum(message["role"] == "assistant" for message in messages)
        return self._script[min(asked, len(self._script) - 1)]


def render(messages: Sequence[Message]) -> str:
    """Returns the prompt as plain text."""
    return "".join(_open(message["role"]) + message["content"] for message in messages) + _tail(messages)


def encode(messages: Sequence[Message]) -> tuple[int, ...]:
    """Returns the prompt's ids: bytes, with `END` after each finished assistant message."""
    ids: list[int] = []
    for message in messages:
        ids += (_open(message["role"]) + message["content"]).encode("utf-8", "replace")
        if message["role"] == "assistant":
            ids.append(END)
    if messages and messages[-1]["role"] == "assistant":
        ids.pop()
    return (*ids, *_tail(messages).encode())


def _open(role: str) -> str:
    return f"\n{role}: "


def _tail(messages: Sequence[Message]) -> str:
    return "" if messages and messages[-1]["role"] == "assistant" else _open("assistant")
