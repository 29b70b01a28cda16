"""Model backends behind one method, `Policy.generate`. Heavy ones are imported when first asked for."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from harness_sdk.policies.base import (
    GREEDY,
    Gate,
    Generation,
    Policy,
    PolicyError,
    PromptRefusedError,
    PromptTooLongError,
    Request,
    Sampling,
    TrainablePolicy,
)
from harness_sdk.policies.scripted import ScriptedPolicy

if TYPE_CHECKING:
    from harness_sdk.policies.anthropic import AnthropicPolicy
    from harness_sdk.policies.openai import OpenAIPolicy
    from harness_sdk.policies.transformers import TransformersPolicy
    from harness_sdk.policies.vllm import VLLMPolicy

__all__ = [
    "GREEDY",
    "AnthropicPolicy",
    "Gate",
    "Generation",
    "OpenAIPolicy",
    "Policy",
    "PolicyError",
    "PromptRefusedError",
    "PromptTooLongError",
    "Request",
    "Sampling",
    "ScriptedPolicy",
    "TrainablePolicy",
    "TransformersPolicy",
    "VLLMPolicy",
]

_LAZY = {
    "AnthropicPolicy": "harness_sdk.policies.anthropic",
    "OpenAIPolicy": "harness_sdk.policies.openai",
    "TransformersPolicy": "harness_sdk.policies.transformers",
    "VLLMPolicy": "harness_sdk.policies.vllm",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
