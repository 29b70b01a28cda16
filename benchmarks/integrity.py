"""What harnesses earn without a model: ``python -m benchmarks.integrity``.

Prints the floor of every reference harness, with ``--model`` also its copy share in real rollouts, and what becomes of
harnesses that cheat (``benchmarks/hostile_harnesses``): each must end refused. Ends with status 1 when one of them
passes or a reference harness does not. How such harnesses are found is `harness_sdk.floor` and
`harness_sdk.commit_rule`; nothing is decided here.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

from benchmarks import command
from harness_sdk.check import Behaviour, behaviour
from harness_sdk.copying import copy_share
from harness_sdk.floor import Floor, floor
from harness_sdk.loader import load, load_source
from harness_sdk.policies import Policy, TransformersPolicy
from harness_sdk.rollout import RolloutConfig, jobs_for, rollout
from reference_harnesses import BASELINES, STRONG
from whale_env.core import EnvHandle
from whale_env.registry import handle

HOSTILE = Path(__file__).parent / "hostile_harnesses"
PLACE = "TABLE = {}"
"""Where the answers of the search tasks are put in a harness that knows them."""


def env_of(domain: str) -> EnvHandle:
    """Returns a domain with its easiest tasks, the test split closed."""
    plain = handle(domain)
    return handle(domain, dict(plain.prototype.domain.spec.easy.arguments)).sealed()


def hostile_source(name: str, env: EnvHandle) -> str:
    """Returns the source of a harness that cheats, told the answers where it is one that knows them."""
    source = (HOSTILE / f"{name}.py.txt").read_text("utf-8")
    if PLACE not in source:
        return source
    domain: Any = env.prototype.domain
    known = {domain._problems[task.id].text: domain._problems[task.id].answer for task in env.tasks("search")}
    return source.replace(PLACE, f"TABLE = {json.dumps(known)}")


def hostile_names() -> list[str]:
    """Returns the names of the harnesses that cheat; each begins with its domain."""
    return sorted(path.name.removesuffix(".py.txt") for path in HOSTILE.glob("*.py.txt"))


async def check_hostile(name: str) -> Behaviour:
    """Checks a harness that cheats as a candidate is checked."""
    domain = name.split("_")[0]
    env = env_of(domain)
    return await behaviour(load_source(hostile_source(name, env), env=domain), env, env.tasks("search")[:2])


async def reference_floor(reference: str, domain: str) -> Floor:
    """Measures the floor of a reference harness."""
    env = env_of(domain)
    return await floor(load(reference), env, env.tasks("search"))


async def copied(reference: str, domain: str, policy: Policy, samples: int) -> str:
    """Says how many of a model's rewarded commits a reader without skill finds too."""
    env = env_of(domain)
    jobs = jobs_for(load(reference), env.tasks("search")[:32], samples)
    played = await rollout(jobs, env, policy, RolloutConfig(phase="copied", max_tokens=1024))
    share, solved = copy_share(played), sum(t.reward == 1.0 for t in played)
    return "nothing was rewarded" if share is None else f"copied {share:.2f} of {solved} rewarded in {len(played)}"


def main() -> int:
    """Runs the benchmark."""
    parser = command.parser("integrity", "What harnesses earn without a model.")
    parser.add_argument("--model", help="roll the reference harnesses out with this model, for the copy share")
    parser.add_argument("--samples", type=int, default=2, help="rollouts a task with --model (default: 2)")
    arguments = parser.parse_args()
    policy = TransformersPolicy(arguments.model) if arguments.model else None
    missed = 0
    for domain in BASELINES:
        for kind in (BASELINES, STRONG):
            began = time.perf_counter()
            found = asyncio.run(reference_floor(kind[domain], domain))
            shown = f"{found} [{time.perf_counter() - began:.1f} s]"
            if policy is not None:
                shown += "; " + asyncio.run(copied(kind[domain], domain, policy, arguments.samples))
            bad = found.answers_itself or found.violations > 0
            missed += bad
            print(f"{kind[domain].rpartition(':')[2]:16} {'REFUSED' if bad else 'ok     '} {shown}", flush=True)
    for name in hostile_names():
        began = time.perf_counter()
        result = asyncio.run(check_hostile(name))
        kinds = sorted({finding.kind for finding in result.findings})
        missed += result.ok
        earned = f"{result.floor.reward:.2f} ({result.floor.policy})" if result.floor else "not measured"
        print(
            f"{name:26} {'PASSES ' if result.ok else 'refused'} {', '.join(kinds) or '-':28} floor {earned} "
            f"[{time.perf_counter() - began:.1f} s]",
            flush=True,
        )
    print("every harness that cheats is refused" if not missed else f"{missed} wrong verdicts")
    return 1 if missed else 0


if __name__ == "__main__":
    command.finish(main)
