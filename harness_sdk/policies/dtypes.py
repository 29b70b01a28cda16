"""Which dtype `TransformersPolicy` computes in when it may choose: the one that a short measurement finds faster here.

Processors differ: with bfloat16 instructions both halves of generation are about twice as fast in it, without them a
prompt may still be faster while drawing tokens is several times slower. So both are timed, on the model itself, once
for a kind of machine and a shape of model; the choice is remembered (``dtypes.json`` in the cache directory), since
equal runs must compute alike. A run also keeps its choice in its journal. Delete the file to measure anew, or name a
dtype to measure nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from harness_sdk import models
from whale_env.errors import InputError
from whale_env.wording import first_line

PROMPT, ROWS, STEPS = 256, 32, 3
"""What is timed: a prompt of so many tokens, and so many steps of so many rows."""
WORTH_A_COPY = 1.25
"""How much faster prompts must be in the other dtype for a second copy of the weights to pay."""
WORTH_PRECISION = 1.1
"""How much faster bfloat16 must be than float32 to be preferred."""


@dataclass(frozen=True, slots=True)
class Dtypes:
    """Names of torch dtypes.

    Attributes:
        prefill: For prompts.
        decode: For drawing tokens, and for what is kept of prompts.
    """

    prefill: str
    decode: str

    def __str__(self) -> str:
        return self.decode if self.prefill == self.decode else f"{self.prefill}/{self.decode}"


@dataclass(frozen=True, slots=True)
class Seconds:
    """What a dtype took.

    Attributes:
        prefill: For the prompt.
        decode: For a step.
    """

    prefill: float
    decode: float


def read(name: str) -> Dtypes:
    """Reads ``float32``, or ``bfloat16/float32`` (prompts in the first).

    Raises:
        InputError: One is not a floating-point dtype of torch.
    """
    import torch

    prefill, _, decode = name.partition("/")
    for part in (prefill, decode or prefill):
        dtype = getattr(torch, part, None)
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise InputError(
                f"unknown dtype {part!r}; use auto, float32, bfloat16, float16, or two with a slash between them "
                "(prompts in the first, sampling in the second)"
            )
    return Dtypes(prefill, decode or prefill)


def choose(float32: Seconds, bfloat16: Seconds) -> Dtypes:
    """Returns the faster dtypes: bfloat16 only for a clear gain, two only where the second copy pays."""
    decode = "bfloat16" if bfloat16.decode * WORTH_PRECISION < float32.decode else "float32"
    if decode == "float32" and bfloat16.prefill * WORTH_A_COPY < float32.prefill:
        return Dtypes("bfloat16", "float32")
    return Dtypes(decode, decode)


def fastest(source: str, device: str) -> Dtypes:
    """Returns the dtypes for a model on a device; measures at most once.

    A GPU is not measured: where it has bfloat16 in hardware nothing else comes near.

    Args:
        source: A directory or hub name.
        device: A torch device.

    Raises:
        harness_sdk.models.ModelNotFoundError: transformers cannot load the model.
        InputError: The engine does not run its architecture.
    """
    import torch

    if device.startswith("cuda"):
        name = "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
        return Dtypes(name, name)
    key = _key(source)
    known = _remembered()
    with contextlib.suppress(KeyError, TypeError, ValueError):
        return read("{prefill}/{decode}".format(**known[key]["chosen"]))
    print("timing float32 and bfloat16 on this machine (once, some seconds)", file=sys.stderr)
    times = measure(source)
    chosen = choose(*times)
    seconds = {name: asdict(taken) for name, taken in zip(("float32", "bfloat16"), times, strict=True)}
    _remember({**known, key: {"chosen": asdict(chosen), "seconds": seconds}})
    return chosen


def measure(source: str) -> tuple[Seconds, Seconds]:
    """Times a model in float32 and in bfloat16 on the CPU, the best of three rounds each."""
    import torch

    from harness_sdk.policies.loading import load

    model = load(source, torch.float32).eval().requires_grad_(False)
    float32 = _timed(model)
    return float32, _timed(model.to(torch.bfloat16))


def _timed(model: Any) -> Seconds:
    from harness_sdk.policies.base import Sampling
    from harness_sdk.policies.engine import Engine, Row

    vocabulary = model.config.vocab_size
    prompt = tuple(number * 7919 % vocabulary for number in range(PROMPT))
    prefill, decode = [], []
    for _ in range(3):
        engine = Engine(model, frozenset(), 2 * PROMPT)
        began = time.perf_counter()
        engine.prefill([prompt])
        prefilled = time.perf_counter()
        batch = engine.start([Row(prompt, 2 * STEPS + 1, Sampling(), seed) for seed in range(ROWS)])
        batch.step()
        started = time.perf_counter()
        for _ in range(STEPS):
            batch.step()
        prefill.append(prefilled - began)
        decode.append((time.perf_counter() - started) / STEPS)
    return Seconds(min(prefill), min(decode))


def _key(source: str) -> str:
    """Names a kind of machine and a shape of model."""
    import torch
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise models.ModelNotFoundError(f"cannot load model {source!r}: {first_line(error)}") from error
    names = ("model_type", "hidden_size", "num_hidden_layers", "intermediate_size", "vocab_size")
    shape = " ".join(str(getattr(config, name, "?")) for name in names)
    instructions = [
        name for name in ("avx512_bf16", "amx_tile") if getattr(torch.cpu, f"_is_{name}_supported", lambda: False)()
    ]
    machine = f"{platform.machine()} {_processor()} {torch.backends.cpu.get_cpu_capability()} {'+'.join(instructions)}"
    return f"{machine}, {torch.get_num_threads()} threads, torch {torch.__version__}, {shape}"


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _file() -> Path:
    return models.cache_dir() / "dtypes.json"


def _remembered() -> dict[str, Any]:
    """Returns what was measured before; an unreadable file is as good as none."""
    with contextlib.suppress(OSError, ValueError):
        known = json.loads(_file().read_text("utf-8"))
        if isinstance(known, dict):
            return known
    return {}


def _remember(known: dict[str, Any]) -> None:
    """Replaces the file at once; where it cannot be written, the next process measures again."""
    with contextlib.suppress(OSError):
        _file().parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=_file().parent, delete=False, encoding="utf-8") as file:
            json.dump(known, file, indent=1, sort_keys=True)
        os.replace(file.name, _file())
