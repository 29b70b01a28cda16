"""`EnvStep`: the environment as the hooks of one episode may step it, under the commit rule."""

from __future__ import annotations

from harness_sdk.commit_rule import CommitRule
from harness_sdk.session import HarnessError
from harness_sdk.types import Episode, StepResult
from whale_env.core import CallError, ToolEnv
from whale_env.types import ToolCall


class EnvStep:
    """The `harness_sdk.session.Step` of one episode: enforces the commit rule, then steps the environment.

    Attributes:
        blocking: Whether a call may take long.
        last: What the last call gave, or the first observation.
        broken: What the environment, or a call that breaks it, raised.
    """

    def __init__(self, env: ToolEnv, episode: Episode, rule: CommitRule) -> None:
        self._env, self._rule = env, rule
        self.blocking = env.domain.spec.blocking
        self.last = StepResult(episode.first)
        self.broken: Exception | None = None

    def __call__(self, call: ToolCall) -> StepResult:
        """Runs the call, or refuses it."""
        try:
            return self._step(call)
        except Exception as error:  # remembered: on its way out it passes through the harness, not always to blame
            self.broken = error
            raise

    def _step(self, call: ToolCall) -> StepResult:
        unsaid = self._rule.unsaid
        if call in self._env.action_space:  # others do nothing: step says why
            refused = self._rule.refusal(call)
            if refused is not None:
                return StepResult(self.last.observation, self.last.done, refused)
        try:
            observation, _, terminated, truncated, info = self._env.step(call)
        except CallError as error:
            if self._rule.unsaid > unsaid:
                raise HarnessError("act", str(error)) from error
            return self._failed(str(error))
        self.last = StepResult(observation, terminated or truncated, info["error"])
        return self.last

    def _failed(self, why: str) -> StepResult:
        self.last = StepResult(self.last.observation, self.last.done, why)
        return self.last
