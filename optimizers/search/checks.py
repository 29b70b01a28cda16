"""Judging a source as a candidate: the validator first, then the behaviour checks in the cage.

The report is written for whoever wrote the source. What a harness is worth is not judged here.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness_sdk.check import behaviour
from harness_sdk.loader import HarnessLoadError, load_source
from harness_sdk.session import HarnessError
from optimizers.proposers.protocol import Check, ProposerSetupError, Verdict
from whale_env.core import EnvHandle
from whale_env.sandbox import ConfinementError
from whale_env.types import Task


def checker(env: EnvHandle, tasks: Sequence[Task], *, allow_uncaged: bool = False) -> Check:
    """Makes the check of a run.

    Args:
        env: The environment.
        tasks: A handful of search tasks to play.
        allow_uncaged: Whether sources may play without a cage where the kernel has none.

    Returns:
        The check. It remembers what was sound, so that a source that is checked and then handed in is validated and
        played once. It raises `ProposerSetupError` where sources cannot be confined.
    """
    name = env.prototype.domain.spec.name
    known: dict[str, Verdict] = {}

    async def check(source: str) -> Verdict:
        if source in known:
            return known[source]
        try:
            harness = load_source(source, env=name, allow_uncaged=allow_uncaged)
        except HarnessLoadError as error:
            return Verdict(False, str(error))
        try:
            result = await behaviour(harness, env, tasks)
        except HarnessError as error:
            return Verdict(False, f"valid, but it cannot begin an episode: {error}", harness)
        except ConfinementError as error:
            raise ProposerSetupError(str(error)) from None
        if not result.ok:
            return Verdict(False, f"valid, but not sound in play; repair this:\n{result}", harness)
        if not result.prompt:  # sound only because it never played
            return Verdict(False, "valid, but it could not be played: it packed no prompt", harness)
        known[source] = Verdict(True, f"valid, and sound in play\n{result}", harness)
        return known[source]

    return check
