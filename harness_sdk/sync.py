"""`rollout_sync`: `rollout` for those who do not write ``await``: scripts, notebooks, the Python prompt."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from threading import Thread
from typing import Any, TypeVar

from harness_sdk.policies.base import Policy
from harness_sdk.rollout import Job, RolloutConfig, rollout
from harness_sdk.trajectory import Trajectory
from whale_env.core import EnvHandle

T = TypeVar("T")


def rollout_sync(
    jobs: Sequence[Job],
    env: EnvHandle,
    policy: Policy,
    config: RolloutConfig | None = None,
    on_done: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Runs all jobs and waits for them; see `harness_sdk.rollout` for the arguments.

    Where an event loop is running already, as in a notebook, the rollout runs in a thread with a loop of its own, and
    ``on_done`` is called there. Ctrl-C ends it in both cases.

    Returns:
        One trajectory per job, in the order of the jobs.
    """
    return wait_for(rollout(jobs, env, policy, config, on_done))


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine to its end, in a thread where an event loop is running already; Ctrl-C ends it in both cases."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    result: Future[T] = Future()
    loop = asyncio.new_event_loop()
    task = loop.create_task(work)

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            try:
                result.set_result(runner.run(_awaited(task)))
            except BaseException as error:
                result.set_exception(error)

    thread = Thread(target=contextvars.copy_context().run, args=(run,), name="rollout")
    thread.start()
    try:
        return result.result()
    except KeyboardInterrupt:
        if not result.done():
            loop.call_soon_threadsafe(task.cancel)
        raise
    finally:
        thread.join()


async def _awaited(task: asyncio.Task[T]) -> T:
    return await task
