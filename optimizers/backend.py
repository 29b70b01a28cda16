"""Builds the model backend that a configuration names. The backends themselves are `harness_sdk.policies`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from harness_sdk import models
from harness_sdk.policies import (
    AnthropicPolicy,
    Generation,
    OpenAIPolicy,
    Policy,
    Request,
    TrainablePolicy,
    TransformersPolicy,
    VLLMPolicy,
)
from harness_sdk.policies.dtypes import fastest
from harness_sdk.policies.transformers import default_device
from optimizers.config import BackendConfig

REMOTE = ("openai", "anthropic")
"""Kinds whose weights nobody here can change."""


class Frozen:
    """A backend whose weights stay as they are: good for evaluation and for harness search."""

    def __init__(self, policy: Policy, name: str) -> None:
        """Wraps a backend.

        Args:
            policy: It.
            name: What to call it in messages.
        """
        self._policy, self._name = policy, name

    async def generate(self, request: Request) -> Generation:
        """Answers one request."""
        return await self._policy.generate(request)

    def require_token_ids(self) -> None:
        """Raises `ValueError`: there is nothing to train."""
        raise ValueError(
            f"{self._name} takes no new weights; use --method harness-only, or train with "
            "--backend.kind transformers or vllm"
        )

    def load_weights(self, weights: Mapping[str, Any], version: int) -> None:
        """Raises `ValueError`: there is nothing to train."""
        self.require_token_ids()

    def forget(self) -> None:
        """Nothing is cached here."""


def resolved(config: BackendConfig, model: str) -> str:
    """Returns what the backend loads a model from: a directory, a hub name, or the name on a server.

    Raises:
        harness_sdk.models.ModelNotFoundError: There is no such model.
    """
    return model if config.kind in REMOTE else models.resolve(model)


def dtype(config: BackendConfig, source: str) -> str:
    """Returns the dtype that a run is to keep: measured, if the configuration leaves it open (`fastest`)."""
    if config.kind == "transformers" and config.dtype == "auto":
        return str(fastest(source, default_device()))
    return config.dtype


@contextmanager
def opened(config: BackendConfig, source: str) -> Iterator[TrainablePolicy]:
    """Loads a model into a backend, and ends the backend afterwards.

    Args:
        config: Which backend.
        source: From `resolved`.

    Raises:
        ValueError: The backend does not run this model, or cannot be built so.
        ImportError: The backend is not installed.
        harness_sdk.policies.PolicyError: vLLM cannot load the model, a server cannot be reached, or a key is missing.
    """
    match config.kind:
        case "transformers":
            yield TransformersPolicy(source, dtype=config.dtype)
        case "vllm":
            arguments = {"dtype": config.dtype, "gpu_memory_utilization": config.memory, **engine_arguments(config)}
            with VLLMPolicy(
                source,
                url=config.url or None,
                sleeps=config.sleep,
                weight_sync=config.weight_sync,
                engine={} if config.url else arguments,
            ) as local:
                yield local
        case "openai":
            remote = OpenAIPolicy(source, server=config.server or None, base_url=config.url or None, timeout=600.0)
            yield Frozen(remote, f"{source} behind {config.url or 'OpenAI'}")
        case "anthropic":
            yield Frozen(AnthropicPolicy(source, base_url=config.url or None, timeout=600.0), source)


def engine_arguments(config: BackendConfig) -> dict[str, Any]:
    """Reads ``--backend.engine``.

    Raises:
        ValueError: It is not a JSON object.
    """
    try:
        arguments = json.loads(config.engine)
    except ValueError as error:
        arguments = str(error)
    if not isinstance(arguments, dict):
        raise ValueError(
            f"--backend.engine {config.engine!r} is not a JSON object of vLLM engine arguments; "
            """give for example '{"tensor_parallel_size": 2}'"""
        )
    return arguments


def training_device(config: BackendConfig) -> str:
    """Returns where to train beside the backend: the last GPU where weights travel between GPUs, else the first."""
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    number = torch.cuda.device_count() - 1 if config.weight_sync == "nccl" else 0
    torch.cuda.set_device(number)
    return f"cuda:{number}"
