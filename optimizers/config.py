"""One frozen configuration for all optimisers, and the presets. Command-line flags are generated from it.

``smoke`` proves that everything runs; ``laptop`` learns something in minutes on two cores; ``paper`` is the published
setting (arXiv 2609.00196) and wants GPUs.
"""

from __future__ import annotations

import difflib
import json
import math
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Literal

WeightSync = Literal["checkpoint", "nccl"]
Method = Literal["whale", "adaptive", "weight-only", "harness-only", "stagewise", "fst"]
Preset = Literal["smoke", "laptop", "paper"]


@dataclass(frozen=True, slots=True)
class PairedConfig:
    """How careful the paired rule is.

    Attributes:
        alpha: Chance that a whole harness phase accepts any harness that is not better than the one it replaces.
        screen: A candidate is tested again only if its first p-value is at most this. Lenient: what slips through is
            caught by the re-test, what is lost here is lost.
        rollouts: Fresh rollouts per harness and round of the re-test, at least; the fewer tasks, the more on each.
        rounds: Rounds at most; the re-test ends earlier when its result is clear.
        early: Share of the level that each round before the last may spend (Haybittle 1971, Peto et al. 1976).
        futility: A re-test ends without acceptance when a round leaves a p-value above this.
    """

    alpha: float = 0.1
    screen: float = 0.5
    rollouts: int = 192
    rounds: int = 8
    early: float = 0.05
    futility: float = 0.5

    def __post_init__(self) -> None:
        for name in ("alpha", "screen", "futility"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}; give a probability above 0 and at most 1")
        if self.rollouts < 1 or self.rounds < 1:
            raise ValueError(f"rollouts is {self.rollouts} and rounds {self.rounds}; both must be at least 1")
        if not 0 <= self.early * (self.rounds - 1) < 1:
            raise ValueError(f"early is {self.early}; {self.rounds - 1} early looks must leave some for the last")

    def samples(self, tasks: int) -> int:
        """Returns the rollouts per task, harness and round."""
        return -(-self.rollouts // max(tasks, 1))


@dataclass(frozen=True, slots=True)
class TrainerConfig:
    """How the weights are updated.

    Attributes:
        lr: Constant learning rate of AdamW.
        weight_decay: Decoupled weight decay.
        beta1: First-moment decay.
        beta2: Second-moment decay.
        max_grad_norm: Gradients are clipped to this norm.
        micro_tokens: Padded tokens in one forward and backward pass.
    """

    lr: float = 1e-7
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    max_grad_norm: float = 1.0
    micro_tokens: int = 4096


Kind = Literal["offline", "random", "anthropic", "openai", "command"]


Effort = Literal["", "low", "medium", "high", "xhigh", "max"]


@dataclass(frozen=True)
class ProposerConfig:
    """Who writes the candidates, and what a round of it may take."""

    kind: Kind = "offline"
    """offline needs no model; random draws its mechanisms without looking at scores (a control); anthropic is Claude
    (ANTHROPIC_API_KEY); openai any compatible server (OPENAI_API_KEY); command an agent's command line."""
    model: str = ""
    """Model of anthropic and openai. Empty is claude-opus-4-7 for anthropic."""
    effort: Effort = "high"
    """How much Claude thinks. Empty for models without adaptive thinking."""
    url: str = ""
    """Where the server is, such as http://localhost:8000/v1. Empty is the provider's own."""
    prices: tuple[float, ...] = ()
    """US dollars for a million tokens: in, read from the cache, written to the cache, out. Empty takes the list's."""
    command: str = ""
    """The command line, such as: my-agent --print "Do what TASK.md says"."""
    read: tuple[str, ...] = ()
    """Folders that the command may read and run besides the system's."""
    write: tuple[str, ...] = ()
    """Folders that the command may change besides its copy of the archive."""
    turns: int = 60
    """Calls of a round."""
    tokens: int = 6_000_000
    """Tokens of a round, in and out, cached ones included."""
    usd: float = 10.0
    """Dollars of a round."""
    usd_in_all: float = 100.0
    """Dollars of a run; the harness phase ends when they are spent."""
    seconds: float = 3600.0
    """Wall time of a round."""
    reply: int = 32_000
    """Tokens of one reply."""


@dataclass(frozen=True)
class WeightsConfig:
    """The weight phase: online rejection-sampling fine-tuning (RSFT)."""

    epochs: float = 0.6
    """E: how much of the train split one phase goes through (fixed schedule)."""
    prompts: int = 256
    """Tasks in one step."""
    samples: int = 8
    """G: rollouts per task."""
    minibatch: int = 64
    """Accepted rollouts in one optimiser step."""
    sft_epochs: int = 1
    """Passes over a step's accepted rollouts."""
    lr: float = 1e-7
    """Constant learning rate of AdamW."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
    micro_tokens: int = 4096
    """Padded tokens in one forward and backward pass."""
    reset_optimizer: bool = False
    """Begin each phase with fresh AdamW moments."""


@dataclass(frozen=True)
class HarnessConfig:
    """The harness phase: Meta-Harness search."""

    iterations: int = 6
    """I: scoring the incoming harness counts as the first (fixed schedule)."""
    candidates: int = 3
    """M: candidates an iteration."""
    examples: int = 256
    """Tasks of the search split that score a harness."""
    samples: int = 1
    """Rollouts per example."""
    selection: Literal["argmax", "paired"] = "argmax"
    """argmax accepts the best search reward (the paper's rule). paired accepts what a paired test on fresh rollouts
    confirms; it takes more rollouts and is hardly ever misled by luck."""
    holdout: float = 0.0
    """paired: share of the examples that only the re-test sees; shows how much of a gain is overfitting."""
    racing: bool = False
    """Stop scoring candidates that can no longer win; saves rollouts where there are 100 examples or more."""
    proposer: ProposerConfig = field(default_factory=ProposerConfig)
    allow_uncaged: bool = False
    """Run proposed code without a cage where the kernel offers none. The run's record says so."""


@dataclass(frozen=True)
class ScheduleConfig:
    """When phases end, and how many there are."""

    cycles: int = 3
    """Weight phases; harness phases stand between them."""
    window: float = 0.2
    """Adaptive: epochs over which the training reward is averaged (W)."""
    min_epochs: float = 0.2
    """Adaptive: epochs before a weight phase may end (T_min)."""
    patience: float = 0.2
    """Adaptive: epochs without a new best after which it ends (P_w)."""
    max_epochs: float = 2.0
    """Adaptive: epochs after which it ends in any case."""
    min_iterations: int = 6
    """Adaptive: iterations before a harness phase may end (J_min)."""
    iteration_patience: int = 2
    """Adaptive: iterations without a new best after which it ends (P_h)."""
    max_iterations: int = 12
    """Adaptive: iterations after which it ends in any case."""


@dataclass(frozen=True)
class EvaluationConfig:
    """mean@k on the test split."""

    tasks: int = 256
    """Tasks."""
    k: int = 8
    """Rollouts per task."""


@dataclass(frozen=True)
class AgentConfig:
    """How the model samples, and hard limits on an episode (a harness's own limits count too)."""

    temperature: float = 1.0
    """Sampling temperature."""
    top_k: int = 20
    """Keep the k likeliest tokens; 0 keeps all."""
    max_turns: int = 32
    """Model calls in an episode."""
    max_tokens: int = 8192
    """Sampled tokens in an episode (response limit)."""
    max_prompt_tokens: int = 16384
    """Tokens of one prompt."""
    concurrency: int = 256
    """Episodes at a time."""


@dataclass(frozen=True)
class BackendConfig:
    """What the model samples with."""

    kind: str = "transformers"
    """transformers: in this process, on a CPU or a small GPU, models with full attention. vllm: what vLLM serves.
    openai, anthropic: a model behind an API, with frozen weights (--method harness-only, and evaluation).
    module:function: your own, called with the model's name."""
    dtype: str = "auto"
    """What it computes in. auto: transformers takes the fastest here, measured once (bfloat16/float32 means prompts in
    the first and sampling in the second); vllm takes the checkpoint's."""
    memory: float = 0.4
    """vllm: share of the GPU's memory; training beside it needs the rest."""
    sleep: bool = False
    """vllm: give that memory to training during each update (one GPU for both)."""
    weight_sync: WeightSync = "checkpoint"
    """vllm: how new weights reach it. checkpoint: a file on the RAM disk. nccl: straight from the GPU that trains, the
    last one, to those that sample."""
    url: str = ""
    """vllm: a running server, such as http://localhost:8000, instead of an engine in this process. openai, anthropic:
    a server that speaks their protocol."""
    server: Literal["", "vllm", "sglang", "llama.cpp", "ollama"] = ""
    """openai: what kind of server stands at the URL; it decides which sampling settings are sent."""
    engine: str = "{}"
    """vllm: further arguments of its engine, as JSON, such as {"tensor_parallel_size": 2}."""


@dataclass(frozen=True)
class RunConfig:
    """Everything that decides a run."""

    env: str = "chess"
    """Environment: chess, a Gymnasium id, or my_package:MyEnv-v0."""
    env_args: str = "{}"
    """Keyword arguments of the environment, as JSON."""
    harness: str = ""
    """Harness to begin with: module:Class or file.py:Class. Empty takes the domain's h0."""
    model: str = "smollm2-135m"
    """A local directory, smollm2-135m, or a hub name."""
    method: Method = "whale"
    """whale (fixed schedule), adaptive, or a control with the same operators: weight-only, harness-only, stagewise, fst
    (harness search may change h0's prompt texts only)."""
    seed: int = 0
    """Every random choice derives from it."""
    train_tasks: int = 0
    """Use only so many tasks of the train split; 0 uses all. Defines an epoch."""
    weights: WeightsConfig = field(default_factory=WeightsConfig)
    search: HarnessConfig = field(default_factory=HarnessConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)
    backend: BackendConfig = field(default_factory=BackendConfig)


_EASY = {
    "chess": ('{"tiers": ["1", "2"]}', 3, 256),
    "math": ('{"tiers": ["1"]}', 3, 128),
    "searchqa": ('{"hops": 1}', 3, 96),
}
_EASY_ANY = ("{}", 3, 256)
"""Per domain what a model of 135 million parameters can begin on: environment, model calls, sampled tokens."""


def _domain(env: str) -> str:
    """Returns ``chess`` for ``chess`` and ``whale/Chess-v0``, and so on."""
    return env.removeprefix("whale/").removesuffix("-v0").lower()


def preset(name: Preset, env: str) -> RunConfig:
    """Returns a preset for an environment.

    Args:
        name: Which one.
        env: Name of the environment; chess has settings of its own.
    """
    domain = _domain(env)
    chess = domain == "chess"
    match name:
        case "smoke":
            return RunConfig(
                env=env,
                env_args='{"tiers": ["1"]}' if chess else _EASY.get(domain, _EASY_ANY)[0],
                train_tasks=8,
                weights=WeightsConfig(epochs=0.5, prompts=2, samples=4, lr=3e-5),
                search=HarnessConfig(iterations=3, candidates=2, examples=4, samples=2),
                schedule=ScheduleConfig(cycles=2),
                evaluation=EvaluationConfig(tasks=4, k=2),
                agent=AgentConfig(max_turns=2, max_tokens=64, max_prompt_tokens=2048, concurrency=128),
            )
        case "laptop":
            easy, max_turns, max_tokens = _EASY.get(domain, _EASY_ANY)
            return RunConfig(
                env=env,
                env_args=easy,
                train_tasks=96,
                weights=WeightsConfig(epochs=0.5, prompts=8, samples=8, lr=3e-5, micro_tokens=1024),
                search=HarnessConfig(iterations=6, candidates=3, examples=24, samples=2),
                schedule=ScheduleConfig(cycles=2),
                evaluation=EvaluationConfig(tasks=32, k=8),
                agent=AgentConfig(max_turns=max_turns, max_tokens=max_tokens, max_prompt_tokens=4096, concurrency=64),
            )
        case "paper":
            limit = 16384 if chess else 8192
            return RunConfig(
                env=env,
                model="Qwen/Qwen3.5-4B" if chess else "Qwen/Qwen3.5-2B",
                search=HarnessConfig(proposer=ProposerConfig(kind="anthropic")),
                backend=BackendConfig(kind="vllm", sleep=True),
                agent=AgentConfig(max_tokens=limit, max_prompt_tokens=32768, concurrency=1024),
            )


def baseline(domain: str) -> str:
    """Returns the reference of the harness that a domain's optimisation starts from."""
    from reference_harnesses import BASELINES

    return BASELINES.get(domain, "harness_sdk.harness:Harness")


_AT_LEAST: dict[str, float] = {
    "train_tasks": 0,
    "weights.prompts": 1,
    "weights.samples": 1,
    "weights.minibatch": 1,
    "weights.sft_epochs": 1,
    "weights.micro_tokens": 1,
    "weights.lr": 0,
    "weights.epochs": 0,
    "search.iterations": 1,
    "search.candidates": 1,
    "search.examples": 0,
    "search.samples": 1,
    "search.holdout": 0,
    "schedule.cycles": 1,
    "schedule.max_iterations": 1,
    "evaluation.tasks": 0,
    "evaluation.k": 1,
    "agent.temperature": 0,
    "agent.top_k": 0,
    "agent.max_turns": 1,
    "agent.max_tokens": 1,
    "agent.max_prompt_tokens": 1,
    "agent.concurrency": 1,
}


KINDS = ("transformers", "vllm", "openai", "anthropic")
"""Backends that are here."""
REMOTE = ("openai", "anthropic")
"""Those whose weights nobody here can change."""


def checked_backend(config: BackendConfig) -> BackendConfig:
    """Returns a backend's configuration that makes sense.

    Raises:
        ValueError: It does not; the message names the flag.
    """
    if config.kind not in KINDS and ":" not in config.kind:
        near = difflib.get_close_matches(config.kind, KINDS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"unknown --backend.kind {config.kind!r}; use {', '.join(KINDS)}, or module:function.{hint}")
    engine_arguments(config)
    return config


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


def checked(config: RunConfig) -> RunConfig:
    """Returns a configuration whose numbers make sense.

    Raises:
        ValueError: One does not; the message names the flag.
    """
    for name, least in _AT_LEAST.items():
        value = attrgetter(name)(config)
        if not least <= value < math.inf:
            raise ValueError(f"--{name.replace('_', '-')} is {value}; give at least {least:g}")
    checked_backend(config.backend)
    if config.backend.kind in REMOTE and config.method != "harness-only":
        raise ValueError(
            f"--backend.kind {config.backend.kind} takes no new weights, and --method {config.method} trains; "
            "use --method harness-only, or --backend.kind transformers or vllm"
        )
    if config.search.holdout >= 1:
        raise ValueError(f"--search.holdout is {config.search.holdout}; give a share below 1")
    return config
