"""The plug point of a model backend: one method, `generate`.

A backend takes a `Request` (messages, tools, sampling, limits) and returns a `Generation` (text and, where it has
them, the exact token ids and log-probabilities). How requests are batched is the backend's own business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from harness_sdk.types import Completion, Message, ToolSchema
from whale_env.errors import InputError, WhaleError


class PolicyError(WhaleError):
    """The backend failed: an infrastructure failure, never a verdict on the model."""


class PromptRefusedError(PolicyError):
    """The chat template or the backend refuses a prompt (an empty one, a prefix that it cannot continue).

    The harness's doing, unless a plain prompt is refused as well.
    """


class PromptTooLongError(WhaleError):
    """A prompt exceeds a limit: the harness's doing, counted as ``budget``.

    Attributes:
        tokens: Length of the prompt.
        limit: The limit it exceeds.
    """

    def __init__(self, tokens: int, limit: int) -> None:
        super().__init__(f"the prompt has {tokens} tokens; the limit is {limit}")
        self.tokens = tokens
        self.limit = limit


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn.

    Attributes:
        temperature: 0 is greedy.
        top_k: Keep the k likeliest tokens; 0 keeps all.
        top_p: Keep the smallest set of tokens with this mass.
        min_p: Drop tokens below this share of the likeliest one's probability.
    """

    temperature: float = 1.0
    top_k: int = 20
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self) -> None:
        if not self.temperature >= 0.0:
            raise InputError(f"temperature must be at least 0, not {self.temperature}")
        if self.top_k < 0:
            raise InputError(f"top_k must be at least 0, not {self.top_k}")
        if not 0.0 < self.top_p <= 1.0:
            raise InputError(f"top_p must be in (0, 1], not {self.top_p}")
        if not 0.0 <= self.min_p < 1.0:
            raise InputError(f"min_p must be in [0, 1), not {self.min_p}")


GREEDY = Sampling(temperature=0.0, top_k=0)


@dataclass(frozen=True, slots=True)
class Request:
    """One model call.

    Attributes:
        messages: The whole prompt; a final assistant message is a prefix to continue.
        tools: Schemas for the chat template (empty: none).
        sampling: How to draw.
        max_tokens: Sampled tokens at most.
        max_prompt_tokens: A longer prompt is refused with `PromptTooLongError`.
        stop: Texts that end the completion (they stay in it).
        seed: Seeds this call alone.
        previous: The episode's last generation, so that its ids are continued and not tokenised again.
        gate: Who else is about to ask (see `Gate`); a batching backend may wait for them.
    """

    messages: list[Message]
    tools: list[ToolSchema] = field(default_factory=list)
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int = 1024
    max_prompt_tokens: int = 16384
    stop: tuple[str, ...] = ()
    seed: int = 0
    previous: Generation | None = None
    gate: Gate | None = None


@dataclass(frozen=True, slots=True)
class Generation:
    """What one model call gave.

    Attributes:
        completion: What the harness will see.
        prompt_text: The rendered prompt.
        prompt_ids: The exact ids that went in.
        token_ids: The exact ids that were sampled, the end token included.
        logprobs: Log-probability of each sampled id under the untempered model, natural log; same length.
        weights_version: Version of the weights that sampled it.
    """

    completion: Completion
    prompt_text: str = ""
    prompt_ids: tuple[int, ...] = ()
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    weights_version: int = 0

    def __repr__(self) -> str:
        ids = f"prompt_ids={len(self.prompt_ids)}, token_ids={len(self.token_ids)}"
        return f"Generation({self.completion.text!r:.80}, {ids}, weights_version={self.weights_version})"


@dataclass(slots=True)
class Gate:
    """Counts the episodes of one rollout that are running.

    When as many requests of the rollout wait, nothing more will be asked before something is answered: a batching
    backend that starts then has batches that depend on the episodes alone and not on timing, which is what makes a
    seeded run repeatable.
    """

    running: int = 0


class Policy(Protocol):
    """A model backend."""

    async def generate(self, request: Request) -> Generation:
        """Answers one request.

        Raises:
            PromptTooLongError: The prompt exceeds the request's or the model's limit.
            PromptRefusedError: The template or the backend refuses the prompt.
            PolicyError: The backend failed.
        """
        ...


class TrainablePolicy(Policy, Protocol):
    """A backend that takes new weights while a run goes on."""

    def load_weights(self, weights: Mapping[str, Any], version: int) -> None:
        """Takes new weights and forgets every cached prefix.

        Args:
            weights: Tensors by parameter name, any dtype.
            version: Their version.
        """
        ...

    def forget(self) -> None:
        """Drops every cached prefix, so that what follows does not depend on what came before."""
        ...
