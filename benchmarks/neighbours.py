"""What a busy neighbour does to decoding: ``python -m benchmarks.neighbours``.

A step of 32 rows of SmolLM2-135M is timed in a process of its own, once on the machine as it is and once while another
process keeps every core busy with PyTorch, for three settings of libgomp's spin count: none (0), ours (1000), and
libgomp's own (unset). Ends with status 1 when, with ours, the busy step takes more than `BOUND` times the calm one, or
the calm one more than `PRICE` times libgomp's own. Rounds are interleaved, medians shown.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks import command
from whale_env.openmp import SETTINGS, SPIN

SPINS = {"none": "0", "ours": SPIN, "libgomp's own": ""}
BOUND = 2.5
"""How many times its calm duration a step may take beside a busy neighbour."""
PRICE = 1.15
"""How many times libgomp's own duration a step may take on a calm machine."""
ROWS, TOKENS = 32, 24

BUSY = """
import torch
a = torch.randn(512, 512)
print("busy", flush=True)
while True:
    torch.tanh(a @ a)
"""


def environment(spin: str) -> dict[str, str]:
    """Returns the environment of a process with a spin count; empty leaves libgomp its own."""
    clean = {name: value for name, value in os.environ.items() if name not in SETTINGS}
    return {**clean, "GOMP_SPINCOUNT": spin} if spin else clean


@contextmanager
def neighbour() -> Iterator[None]:
    """Keeps every core busy with a process that computes with PyTorch as it comes."""
    process = subprocess.Popen([sys.executable, "-c", BUSY], stdout=subprocess.PIPE, env=environment(""))
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.communicate()


def measured(spin: str, model: str) -> float:
    """Returns the seconds of a step in a process of its own."""
    # PyTorch comes first, so that libgomp's own setting is what it is without us.
    code = f"import torch; from benchmarks.neighbours import step_seconds; print(step_seconds({model!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(spin), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"the process that decodes failed:\n{done.stderr.strip()}")
    return float(done.stdout.splitlines()[-1])


def step_seconds(model: str) -> float:
    """Decodes in this process and returns the seconds of a step, the prompt's share left out."""
    from benchmarks.generation import without_end
    from harness_sdk import models
    from harness_sdk.policies import Request, Sampling
    from harness_sdk.types import Message

    policy = without_end(models.resolve(model), "auto")
    chats: list[list[Message]] = [
        [{"role": "user", "content": f"Tell me about number {row % 4}."}] for row in range(ROWS)
    ]

    async def play(tokens: int) -> None:
        requests = [Request(chat, [], Sampling(), tokens, seed=row) for row, chat in enumerate(chats)]
        await asyncio.gather(*map(policy.generate, requests))

    def seconds(tokens: int) -> float:
        began = time.perf_counter()
        asyncio.run(play(tokens))
        return time.perf_counter() - began

    seconds(2)
    short, long = seconds(2), seconds(2 + TOKENS)
    return max(long - short, 1e-9) / TOKENS


def main() -> int:
    """Prints the table; returns the exit status."""
    parser = command.parser("neighbours", "Decoding beside a busy process, by spin count.")
    parser.add_argument("--model", default="smollm2-135m", help="what decodes")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each setting")
    flags = parser.parse_args()
    calm: dict[str, list[float]] = {name: [] for name in SPINS}
    busy: dict[str, list[float]] = {name: [] for name in SPINS}
    for _ in range(flags.rounds):
        for name, spin in SPINS.items():
            calm[name].append(measured(spin, flags.model))
            with neighbour():
                busy[name].append(measured(spin, flags.model))
    print(f"{'spin count':<16}{'calm ms':>10}{'busy ms':>10}{'busy/calm':>11}")
    ratio = {}
    for name in SPINS:
        quiet, loud = statistics.median(calm[name]), statistics.median(busy[name])
        ratio[name] = loud / quiet
        print(f"{name:<16}{quiet * 1000:>10.1f}{loud * 1000:>10.1f}{ratio[name]:>11.2f}")
    price = statistics.median(calm["ours"]) / statistics.median(calm["libgomp's own"])
    failed = ratio["ours"] > BOUND or price > PRICE
    print(
        f"ours: busy/calm {ratio['ours']:.2f} (bound {BOUND}), calm against libgomp's own {price:.2f} (bound {PRICE})"
    )
    return int(failed)


if __name__ == "__main__":
    command.finish(main)
