"""`Attempts`: model calls and verdicts, asked for again when they fail for no fault of the harness's."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from harness_sdk.policies.base import (
    Generation,
    Policy,
    PolicyError,
    PromptRefusedError,
    PromptTooLongError,
    Request,
)
from harness_sdk.session import HarnessError
from harness_sdk.types import Message
from whale_env.core import ToolEnv
from whale_env.types import Score

FIRST_WAIT = 0.1
"""Seconds before the first retry; each further wait is twice as long."""

PLAIN: list[Message] = [{"role": "user", "content": "Hello."}]
"""A prompt that every backend takes, to find out whether it was another prompt that one refused."""


class Attempts:
    """Tries a bounded number of times, and counts.

    Attributes:
        retried: How many attempts failed and were followed by another.
    """

    def __init__(self, retries: int) -> None:
        """Sets the bound.

        Args:
            retries: Further attempts after a first one.
        """
        self.retried = 0
        self._retries = retries

    async def generation(self, policy: Policy, request: Request) -> Generation:
        """Makes a model call.

        Args:
            policy: The model.
            request: What it is asked.

        Returns:
            Its answer.

        Raises:
            PromptTooLongError: The prompt exceeds a limit.
            HarnessError: The prompt is refused, a plain one is not.
            PolicyError: The backend failed each time.
        """
        for attempt in range(self._retries + 1):
            try:
                return await policy.generate(request)
            except PromptRefusedError as error:
                if await _answers(policy, request):
                    raise HarnessError("pack", f"the prompt is refused: {error}") from error
                raise
            except PolicyError:
                if attempt == self._retries:
                    raise
            await self._wait(attempt)
        raise AssertionError("unreachable")

    async def score(self, env: ToolEnv) -> Score:
        """Asks for the verdict; a judge may be away for a moment. What the last attempt raises is raised."""
        for attempt in range(self._retries):
            try:
                return env.score()
            except Exception:
                await self._wait(attempt)
        return env.score()

    def metrics(self) -> dict[str, float]:
        """Returns ``retries``, where there were some."""
        return {"retries": float(self.retried)} if self.retried else {}

    async def _wait(self, attempt: int) -> None:
        self.retried += 1
        await asyncio.sleep(FIRST_WAIT * 2**attempt)


async def _answers(policy: Policy, request: Request) -> bool:
    """Whether the model answers a plain prompt instead of the request's."""
    try:
        await policy.generate(replace(request, messages=PLAIN, tools=[], previous=None, max_tokens=1, gate=None))
    except (PolicyError, PromptTooLongError):
        return False
    return True
