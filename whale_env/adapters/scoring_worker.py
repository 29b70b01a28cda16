"""What runs inside the confined process that judges one answer with a reasoning-gym data set's own ``score_answer``.

Several of those evaluate the answer as Python or hand it to sympy's parser, which does the same. So nothing that this
process says is believed beyond this one verdict, and it is left no means to do anything else (`whale_env.sandbox`).
"""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import warnings
from importlib import import_module
from typing import Any


def warm() -> None:
    """Lets sympy load what it loads upon first use, once for all verdicts."""
    import sympy

    x = sympy.Symbol("x")
    sympy.simplify(sympy.diff(sympy.parse_expr("2*x**2 + sin(x)", local_dict={"x": x}), x) - 4 * x)


def main(wire: int, job: dict[str, Any]) -> None:
    """Judges what the wire brings, and writes the score there, or ``none`` if the scorer raises."""
    chunks = []
    size = int(job["size"])
    while size and (chunk := os.read(wire, size)):
        chunks.append(chunk)
        size -= len(chunk)
    name, config, entry, answer = pickle.loads(b"".join(chunks))  # written by the trusted process
    random.seed(0)
    verdict = "none"
    with contextlib.suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = import_module("reasoning_gym").create_dataset(name, **config)
        verdict = repr(float(data.score_answer(answer, entry)))
    os.write(wire, verdict.encode())
    os._exit(0)  # neither atexit functions nor finalizers run on after the verdict
