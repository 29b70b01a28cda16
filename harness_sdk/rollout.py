"""The one rollout loop: training rollouts, candidate scoring and evaluation all go through `rollout`.

Many episodes at a time, asynchronous. The loop calls the harness's hooks, asks the policy, enforces limits and the
commit rule, and turns whatever happens into a `Trajectory`. It never raises for one bad episode. What the results are
used for is decided above; nothing above reaches back in here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Annotated, Any, get_type_hints

from annotated_types import Ge

from harness_sdk.attempts import Attempts
from harness_sdk.commit_rule import CommitRule
from harness_sdk.env_step import EnvStep
from harness_sdk.loader import LoadedHarness
from harness_sdk.policies.base import Gate, Generation, Policy, PolicyError, PromptTooLongError, Request, Sampling
from harness_sdk.randomness import derive_seed
from harness_sdk.session import HarnessError, HarnessSession, Limits
from harness_sdk.trajectory import ModelCall, Trajectory
from harness_sdk.types import Completion, Episode, Message, ParseFailure, ToolSchema, Turn
from whale_env.core import EnvHandle, ToolEnv
from whale_env.errors import InputError
from whale_env.types import Failure, Score, Task


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """What an episode may take. A harness's own limits count too; the smaller one wins.

    Attributes:
        max_turns: Model calls in an episode at most; 0 takes what the environment's own limits leave: its steps and
            its invalid calls.
        max_tokens: Sampled tokens in an episode at most (the response limit).
        max_prompt_tokens: Length of a prompt at most.
        concurrency: Episodes at a time.
        retries: How often more a model call is made, or a score asked for, that failed for no fault of the harness's.
    """

    max_turns: Annotated[int, Ge(0)] = 0
    max_tokens: Annotated[int, Ge(1)] = 8192
    max_prompt_tokens: Annotated[int, Ge(1)] = 16384
    concurrency: Annotated[int, Ge(1)] = 256
    retries: Annotated[int, Ge(0)] = 2

    def __post_init__(self) -> None:
        for name, least in _bounds().items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise InputError(f"{name} must be a whole number, not {value!r:.80}")
            if value < least:
                raise InputError(f"{name} must be at least {least}, not {value}")


@cache
def _bounds() -> dict[str, int]:
    """Returns the least value of each limit, as its field declares it."""
    hints: dict[str, Any] = get_type_hints(EpisodeLimits, include_extras=True)
    return {
        name: next(int(str(part.ge)) for part in hint.__metadata__ if isinstance(part, Ge))
        for name, hint in hints.items()
    }


@dataclass(frozen=True, slots=True)
class RolloutConfig(EpisodeLimits):
    """How episodes are run.

    Attributes:
        seed: The run's seed.
        phase: Name of the phase, part of every derived seed.
        sampling: How tokens are drawn.
    """

    seed: int = 0
    phase: str = "rollout"
    sampling: Sampling = field(default_factory=Sampling)

    @classmethod
    def within(cls, limits: EpisodeLimits, *, seed: int, phase: str, sampling: Sampling) -> RolloutConfig:
        """Returns how episodes are run under given limits."""
        return cls(**asdict(limits), seed=seed, phase=phase, sampling=sampling)


@dataclass(frozen=True, slots=True)
class Job:
    """One rollout to do: a harness on a task, and which repetition it is."""

    harness: LoadedHarness
    task: Task
    index: int = 0


def jobs_for(harness: LoadedHarness, tasks: Sequence[Task], samples: int = 1) -> list[Job]:
    """Returns ``samples`` jobs per task, those of one task next to each other."""
    return [Job(harness, task, index) for task in tasks for index in range(samples)]


async def rollout(
    jobs: Sequence[Job],
    env: EnvHandle,
    policy: Policy,
    config: RolloutConfig | None = None,
    on_done: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Runs all jobs.

    Args:
        jobs: What to run; several harnesses may be mixed.
        env: The environment; a sealed handle refuses tasks of the test split.
        policy: The model.
        config: How to run them.
        on_done: Called with each trajectory as it finishes (progress).

    Returns:
        One trajectory per job, in the order of the jobs.
    """
    config = config or RolloutConfig()
    gate = Gate()
    slots = asyncio.Semaphore(config.concurrency)

    async def one(job: Job) -> Trajectory:
        async with slots:
            gate.running += 1
            try:
                trajectory = await _Run(job, env, policy, config, gate).play()
            finally:
                gate.running -= 1
        if on_done:
            on_done(trajectory)
        return trajectory

    return list(await asyncio.gather(*(one(job) for job in jobs)))


class _EpisodeOver(Exception):
    """Ends an episode from within; the verdict travels in it."""

    def __init__(self, failure: Failure, why: str, reward: float | None = 0.0) -> None:
        super().__init__(why)
        self.failure = failure
        self.reward = reward


class _Run:
    """One episode from reset to trajectory."""

    def __init__(self, job: Job, env: EnvHandle, policy: Policy, config: RolloutConfig, gate: Gate) -> None:
        self._job, self._handle, self._policy, self._config, self._gate = job, env, policy, config, gate
        self._seed = derive_seed(config.seed, config.phase, job.task.id, job.index)
        self._calls: list[ModelCall] = []
        self._previous: Generation | None = None
        self._turns: tuple[Turn, ...] = ()
        self._env: ToolEnv | None = None
        self._rule: CommitRule | None = None
        self._attempts = Attempts(config.retries)

    async def play(self) -> Trajectory:
        session: HarnessSession | None = None
        job = self._job
        try:
            self._env, first = self._handle.open(job.task, self._seed)
            self._rule = CommitRule(self._env)
            episode = Episode(_shown(job.task), self._env.tools, first, first)
            # Seeded by what it sees and no more: a task's or a run's own seed would be a key to the task.
            session = await job.harness.open(derive_seed("harness", first.text))
            stopped = await self._loop(session, episode, self._env)
            score = self._verdict(await self._attempts.score(self._env))
        except _EpisodeOver as over:
            stopped, score = str(over), await self._ended(over)
        except HarnessError as error:
            stopped, score = str(error), Score(0.0, "harness_error")
        except PolicyError as error:
            stopped, score = f"policy: {error}", Score(None, "env_error")
        except Exception as error:  # whatever the environment or the backend raises is data, never a crash of the run
            stopped, score = f"{type(error).__name__}: {error}", Score(None, "env_error")
        finally:
            if session is not None:
                await session.close()
        if self._rule is not None:
            if self._rule.refused and score.reward is not None:
                score = replace(score, reward=0.0, failure="harness_violation")
            score = replace(score, metrics={**score.metrics, **self._rule.metrics(), **self._attempts.metrics()})
        calls = tuple(self._calls)
        return Trajectory(job.task, job.harness.id, job.index, self._seed, calls, self._turns, score, stopped)

    async def _loop(self, session: HarnessSession, episode: Episode, env: ToolEnv) -> str:
        schemas = await session.tools(env.tools)
        limits = session.limits
        spec = env.domain.spec
        max_turns = min(limits.max_turns, self._config.max_turns or spec.max_steps + spec.max_invalid)
        assert self._rule is not None
        step = EnvStep(env, episode, self._rule)
        while True:
            reason = await session.stop(episode)
            if reason is None and episode.done:
                reason = "done"
            if reason is None and len(episode.turns) >= max_turns:
                reason = f"limit: {max_turns} turns"
            if reason is None and episode.failures >= limits.max_failures:
                reason = f"limit: {limits.max_failures} failures"
            if reason is not None:
                return reason
            messages = await session.pack(episode)
            if not messages[-1]["content"].strip() and not messages[-1].get("tool_calls"):
                raise HarnessError("pack", "the last message is empty; leave it out, or say something in it")
            generation = await self._generate(self._request(session.limits, episode, messages, schemas))
            self._calls.append(
                ModelCall(
                    tuple(messages),
                    generation.prompt_ids,
                    generation.token_ids,
                    generation.logprobs,
                    generation.weights_version,
                )
            )
            self._previous = generation
            self._rule.hear(generation.completion, messages)
            turn = await self._turn(session, episode, generation.completion, step)
            self._turns = (*episode.turns, turn)
            episode = replace(episode, observation=step.last.observation, turns=self._turns, done=step.last.done)
            if turn.failure and turn.feedback is None and not episode.done:
                return f"gave up: {turn.failure.reason}"

    async def _turn(self, session: HarnessSession, episode: Episode, completion: Completion, step: EnvStep) -> Turn:
        self._turns = (*episode.turns, Turn(completion))
        parsed = await session.parse(completion, episode)
        if isinstance(parsed, ParseFailure):
            if completion.finish_reason == "length":
                parsed = replace(parsed, kind="truncated")
            return Turn(completion, (), (), parsed, await session.recover(parsed, episode))
        results: list[str] = []
        failure: ParseFailure | None = None
        feedback: str | None = None
        for call in parsed:
            try:
                results.append(await session.act(call, episode.tools, step))
            except HarnessError:
                if step.broken is None:
                    raise
            if step.broken is not None:
                raise step.broken
            if step.last.error is not None:
                failure = ParseFailure(step.last.error, str(dict(call.arguments))[:200], "illegal")
                step.last = replace(step.last, error=None)
            if step.last.done:
                break
        calls = tuple(parsed[: len(results)])
        if failure is not None and not step.last.done:
            feedback = await session.recover(failure, episode)
        return Turn(completion, calls, tuple(results), failure, feedback)

    def _request(self, limits: Limits, episode: Episode, messages: list[Message], tools: list[ToolSchema]) -> Request:
        config = self._config
        left = min(limits.max_tokens, config.max_tokens) - episode.tokens
        if left < 1:
            raise _EpisodeOver("budget", f"limit: {episode.tokens} sampled tokens")
        return Request(
            messages,
            tools,
            sampling=config.sampling,
            max_tokens=min(limits.max_tokens_per_turn, left),
            max_prompt_tokens=min(limits.max_prompt_tokens, config.max_prompt_tokens),
            stop=limits.stop_strings,
            seed=derive_seed(self._seed, len(episode.turns)),
            previous=self._previous,
            gate=self._gate,
        )

    async def _generate(self, request: Request) -> Generation:
        try:
            return await self._attempts.generation(self._policy, request)
        except PromptTooLongError as error:
            raise _EpisodeOver("budget", str(error)) from None

    async def _ended(self, over: _EpisodeOver) -> Score:
        if self._env is None:
            return Score(over.reward, over.failure)
        try:
            score = await self._attempts.score(self._env)
        except Exception:
            return Score(None, "env_error")
        return score if score.reward == 1.0 else replace(score, reward=over.reward, failure=over.failure)

    def _verdict(self, score: Score) -> Score:
        last = self._turns[-1].failure if self._turns else None
        if score.reward == 1.0 or (self._env is not None and self._env.over):
            return score
        return replace(score, reward=0.0, failure=last.kind if last else "budget")


def _shown(task: Task) -> Task:
    """The task as a harness sees it: one that knew its id, tier or split could look it up, or tell search from test."""
    return Task("task", task.env, "train")
