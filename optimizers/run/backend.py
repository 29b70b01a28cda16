"""Builds the model backend that a configuration names. The backends themselves are `harness_sdk.policies`."""

from __future__ import annotations

import pkgutil
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
from harness_sdk.policies.loading import default_device
from optimizers.config import BackendConfig, ConfigError, checked_backend, engine_arguments

_THINKING = {"": None, "on": True, "off": False}


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
        """Raises `ConfigError`: there is nothing to train."""
        raise ConfigError(
            f"{self._name} takes no new weights; use --method harness-only, or train with "
            "--backend.kind transformers or vllm"
        )

    def load_weights(self, weights: Mapping[str, Any], version: int) -> None:
        """Raises `ConfigError`: there is nothing to train."""
        self.require_token_ids()

    def forget(self) -> None:
        """Nothing is cached here."""


def require_token_ids(policy: Policy) -> None:
    """Checks before any rollout that a policy can be trained on.

    Raises:
        harness_sdk.policies.PolicyError or InputError: It gives no token ids, or takes no new weights; the message says
            what to use instead.
    """
    check = getattr(policy, "require_token_ids", None)
    if check is not None:
        check()


def resolved(config: BackendConfig, model: str) -> str:
    """Returns what the backend loads a model from: a directory or hub name where this project loads it, else its name.

    Raises:
        harness_sdk.models.ModelNotFoundError: There is no such model.
    """
    return models.resolve(model) if config.kind in ("transformers", "vllm") else model


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
        ConfigError: The backend does not run this model, or cannot be built so.
        ImportError: The backend is not installed.
        harness_sdk.policies.PolicyError: vLLM cannot load the model, a server cannot be reached, or a key is missing.
    """
    match checked_backend(config).kind:
        case "transformers":
            yield TransformersPolicy(source, dtype=config.dtype, thinking=_THINKING[config.thinking])
        case "vllm":
            arguments = {"dtype": config.dtype, "gpu_memory_utilization": config.memory, **engine_arguments(config)}
            with VLLMPolicy(
                source,
                url=config.url or None,
                sleeps=config.sleep,
                weight_sync=config.weight_sync,
                engine={} if config.url else arguments,
                thinking=_THINKING[config.thinking],
            ) as local:
                yield local
        case "openai":
            remote = OpenAIPolicy(source, server=config.server or None, base_url=config.url or None, timeout=600.0)
            yield Frozen(remote, f"{source} behind {config.url or 'OpenAI'}")
        case "anthropic":
            yield Frozen(AnthropicPolicy(source, base_url=config.url or None, timeout=600.0), source)
        case reference:
            yield _own(reference, source)


def _own(reference: str, model: str) -> TrainablePolicy:
    """Builds a backend of the user's; one that takes no weights is `Frozen`."""
    try:
        make = pkgutil.resolve_name(reference)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"cannot import --backend.kind {reference!r}: {error}") from error
    policy = make(model)
    if not callable(getattr(policy, "generate", None)):
        raise ConfigError(f"--backend.kind {reference!r} made a {type(policy).__name__}, which has no method generate")
    trains = all(callable(getattr(policy, name, None)) for name in ("load_weights", "forget"))
    return policy if trains else Frozen(policy, reference)


def training_device(config: BackendConfig) -> str:
    """Returns where to train beside the backend: the last GPU where weights travel between GPUs, else the first."""
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    number = torch.cuda.device_count() - 1 if config.weight_sync == "nccl" else 0
    torch.cuda.set_device(number)
    return f"cuda:{number}"
