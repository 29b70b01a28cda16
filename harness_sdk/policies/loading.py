"""What is loaded and where: models and tokenizers of transformers, what a checkpoint says of itself, devices, memory.

Names of models become places in `harness_sdk.models`; which dtype is fastest is measured in
`harness_sdk.policies.dtypes`; nothing is generated here.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
from pathlib import Path
from typing import Any

from harness_sdk import models
from whale_env.wording import first_line


def release_memory() -> None:
    """Gives freed memory back to the system. glibc keeps it otherwise, in pieces between what is still used."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError, TypeError):  # another C library has no such call
        ctypes.CDLL(None).malloc_trim(0)


def load(source: str, dtype: Any) -> Any:
    """Loads a causal language model quietly.

    Args:
        source: A local directory or a hub name.
        dtype: A torch dtype.

    Raises:
        harness_sdk.models.ModelNotFoundError: transformers cannot load it.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        return AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
    except (OSError, ValueError) as error:
        raise models.ModelNotFoundError(f"cannot load model {source!r}: {first_line(error)}") from error


def load_tokenizer(source: str) -> Any:
    """Loads a tokenizer.

    Raises:
        harness_sdk.models.ModelNotFoundError: transformers cannot load it.
    """
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError) as error:
        raise models.ModelNotFoundError(f"cannot load the tokenizer of {source!r}: {first_line(error)}") from error


def end_ids(source: str) -> set[int]:
    """Returns the ids that end a completion, as a model's settings say."""
    from transformers import AutoConfig, GenerationConfig

    try:
        settings: Any = GenerationConfig.from_pretrained(source)
    except OSError:  # a model need not have any
        settings = AutoConfig.from_pretrained(source)
    return as_set(settings.eos_token_id)


def has_inner_model(source: str) -> bool:
    """Whether a checkpoint keeps the language model one level down, as models that also read images do."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(source)
    return config.get_text_config() is not config


def as_set(value: Any) -> set[int]:
    """Returns ids that a setting names: one, several, or none."""
    return set() if value is None else {value} if isinstance(value, int) else set(value)


def default_device() -> str:
    """Returns the GPU if there is one."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def device_memory(device: str) -> int:
    """Returns the bytes of memory of a device: a GPU's, or the machine's (a container's, if that is less)."""
    import torch

    if device.startswith("cuda"):
        return int(torch.cuda.get_device_properties(device).total_memory)
    found = [8 << 30]
    with contextlib.suppress(ValueError, OSError, AttributeError):  # no such figures on this platform
        found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with contextlib.suppress(ValueError, OSError):
        found.append(int(Path("/sys/fs/cgroup/memory.max").read_text("ascii")))
    return min(found)


def has_bfloat16(device: str) -> bool:
    """Whether a device computes bfloat16 in hardware."""
    import torch

    if device.startswith("cuda"):
        return bool(torch.cuda.is_bf16_supported())
    has_avx = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
    has_amx = getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    return bool(has_avx() or has_amx())
