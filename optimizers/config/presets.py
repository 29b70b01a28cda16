"""Settings for a purpose.

``smoke`` proves that everything runs; ``laptop`` learns something in minutes on two cores; ``paper`` is the published
setting (arXiv 2609.00196) and wants GPUs.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Literal

from harness_sdk.rollout import EpisodeLimits
from optimizers.config.flags import ConfigError
from optimizers.config.settings import (
    AgentConfig,
    BackendConfig,
    BudgetConfig,
    EvaluationConfig,
    ProposerConfig,
    RunConfig,
    SearchConfig,
    TrainerConfig,
    WeightsConfig,
)
from whale_env.published import RECIPES
from whale_env.registry import declared
from whale_env.types import SPLITS, Json

Preset = Literal["smoke", "laptop", "paper"]

PUBLISHED_TEST = 7 * 256
"""Tasks of an evaluation on the seven test sets of SearchQA, in proportion; the sets together are fifty thousand."""

LONG = 16
"""Model calls that an episode's tokens are meant for where a domain does not say how many a player needs."""


def preset(name: Preset, env: str) -> RunConfig:
    """Returns a preset for an environment; what a small model can begin on is the domain's to say.

    Args:
        name: Which one.
        env: Name of the environment; chess has settings of its own.
    """
    spec = declared(env)
    easy, chess = spec.easy, spec.name == "chess"
    # An episode of unknown length: its calls are the environment's to limit, and its tokens are those of many calls.
    calls, prompt = (1, 4096) if easy.calls else (LONG, 8192)
    match name:
        case "smoke":
            return RunConfig(
                env=env,
                env_args=json.dumps(dict(easy.arguments)),
                train_tasks=8,
                weights=WeightsConfig(epochs=0.5, prompts=2, samples=4, trainer=TrainerConfig(lr=3e-5)),
                search=SearchConfig(iterations=2, candidates=2, examples=4, samples=2),
                budget=BudgetConfig(epochs=1.0, iterations=2),
                evaluation=EvaluationConfig(tasks=4, k=2),
                agent=_agent(
                    max_turns=easy.calls, max_tokens=64 * calls, max_prompt_tokens=prompt // 2, concurrency=128
                ),
            )
        case "laptop":
            trainer = TrainerConfig(lr=3e-5, micro_tokens=1024)
            weights = WeightsConfig(epochs=0.5, prompts=8, samples=8, trainer=trainer)
            search = SearchConfig(iterations=5, candidates=3, examples=24, samples=2)
            if chess:  # few rollouts are right at first, and all are short: more of them, on more tasks
                weights = replace(weights, epochs=1.0, prompts=24, samples=4)
                search = replace(search, iterations=4, examples=48)
            return RunConfig(
                env=env,
                env_args=json.dumps(dict(easy.arguments)),
                train_tasks=288 if chess else 96,
                weights=weights,
                search=search,
                budget=BudgetConfig(rollouts=2976 if chess else 1344),
                evaluation=EvaluationConfig(tasks=48 if chess else 32, k=8),
                agent=_agent(
                    max_turns=easy.calls, max_tokens=easy.tokens * calls, max_prompt_tokens=prompt, concurrency=64
                ),
            )
        case "paper":
            limit = 16384 if chess else 8192
            test = PUBLISHED_TEST if spec.name == "searchqa" else 0
            return RunConfig(
                env=env,
                env_args=json.dumps(_published(spec.name)),
                model="Qwen/Qwen3.5-4B" if chess else "Qwen/Qwen3.5-2B",
                search=SearchConfig(proposer=ProposerConfig(kind="anthropic", model="claude-opus-4-7")),
                budget=BudgetConfig(epochs=6.0, iterations=60) if spec.name == "math" else BudgetConfig(),
                evaluation=EvaluationConfig(tasks=test, k=8),
                backend=BackendConfig(kind="vllm", sleep=True, thinking="on"),
                agent=_agent(max_tokens=limit, max_prompt_tokens=32768, concurrency=1024),
            )


def _published(domain: str) -> dict[str, Json]:
    """Returns the arguments that take a domain's published data from where `require_data` says it is to be."""
    if domain not in RECIPES:
        return {}
    ending = "csv" if domain == "chess" else "jsonl"
    arguments: dict[str, Json] = {"source": {split: f"data/{domain}/{split}.{ending}.zst" for split in SPLITS}}
    return {**arguments, "retriever": "pyserini:wikipedia-dpr-100w"} if domain == "searchqa" else arguments


def require_data(config: RunConfig) -> None:
    """Checks that the published data is here where a configuration takes it.

    Raises:
        ConfigError: It is not; the message is the command that fetches it.
    """
    domain = declared(config.env).name
    if domain not in RECIPES or config.env_args != json.dumps(_published(domain)):
        return
    missing = [path for path in _published(domain)["source"].values() if not Path(path).is_file()]
    if missing:
        raise ConfigError(
            f"the published data is not here ({missing[0]}); fetch and split it: "
            f"python -m whale_env.datasets get {domain} --out data/{domain}"
        )


def _agent(**limits: int) -> AgentConfig:
    return AgentConfig(limits=EpisodeLimits(**limits))
