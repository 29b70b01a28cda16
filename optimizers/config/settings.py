"""The settings of a run, one declaration each: frozen dataclasses that the rooms take as they are.

`RunConfig` composes them and the command line's flags are generated from it, so a new setting is one new field. Bounds
stand on the fields (``Annotated[int, Ge(1)]``); `optimizers.config.flags` reads them, `checked` below adds the rules
that join several settings. Values for a purpose are `optimizers.config.presets`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import tyro
from annotated_types import Ge, Gt, Le, Lt

from harness_sdk.policies.base import Sampling
from harness_sdk.rollout import EpisodeLimits, RolloutConfig
from optimizers.config.flags import ConfigError, require_bounds
from whale_env.wording import did_you_mean

Inline = tyro.conf.arg(name="")
"""Marks settings whose flags stand among those of the group that holds them: ``--agent.temperature``."""

WeightSync = Literal["checkpoint", "nccl"]
Method = Literal["whale", "adaptive", "weight-only", "harness-only", "stagewise", "fst"]


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

    alpha: Annotated[float, Gt(0), Le(1)] = 0.1
    screen: Annotated[float, Gt(0), Le(1)] = 0.5
    rollouts: Annotated[int, Ge(1)] = 192
    rounds: Annotated[int, Ge(1)] = 8
    early: Annotated[float, Ge(0)] = 0.05
    futility: Annotated[float, Gt(0), Le(1)] = 0.5

    def __post_init__(self) -> None:
        require_bounds(self)
        if self.early * (self.rounds - 1) >= 1:
            raise ConfigError(f"early is {self.early}; {self.rounds - 1} early looks must leave some for the last")

    def samples(self, tasks: int) -> int:
        """Returns the rollouts per task, harness and round."""
        return -(-self.rollouts // max(tasks, 1))


@dataclass(frozen=True, slots=True)
class TrainerConfig:
    """One optimiser step: AdamW on fp32 master weights."""

    lr: Annotated[float, Ge(0)] = 1e-7
    """Learning rate of AdamW, constant after the warm-up."""
    warmup_steps: Annotated[int, Ge(0)] = 0
    """Optimiser steps over which the learning rate rises to it."""
    weight_decay: Annotated[float, Ge(0)] = 0.0
    """Decoupled weight decay."""
    beta1: Annotated[float, Ge(0), Lt(1)] = 0.9
    """First-moment decay."""
    beta2: Annotated[float, Ge(0), Lt(1)] = 0.999
    """Second-moment decay."""
    max_grad_norm: Annotated[float, Gt(0)] = 1.0
    """Gradients are clipped to this norm."""
    micro_tokens: Annotated[int, Ge(1)] = 4096
    """Padded tokens in one forward and backward pass."""
    max_bad_steps: Annotated[int, Ge(1)] = 3
    """Steps in a row that may be skipped because their gradient is not finite; one more ends the run."""


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
    turns: Annotated[int, Ge(1)] = 60
    """Calls of a round."""
    tokens: Annotated[int, Ge(1)] = 6_000_000
    """Tokens of a round, in and out, cached ones included."""
    usd: Annotated[float, Gt(0)] = 10.0
    """Dollars of a round."""
    usd_in_all: Annotated[float, Ge(0)] = 100.0
    """Dollars of a run; the harness phase ends when they are spent."""
    seconds: Annotated[float, Gt(0)] = 3600.0
    """Wall time of a round."""
    reply: Annotated[int, Ge(1)] = 32_000
    """Tokens of one reply."""


@dataclass(frozen=True)
class WeightsConfig:
    """The weight phase: rollouts of a batch of tasks, and what is learnt from them."""

    update: str = "rsft"
    """What learns from a step's rollouts. rsft: rejection-sampling fine-tuning on those that were accepted.
    module:Class: your own (`optimizers.weights.protocol`)."""
    epochs: Annotated[float, Ge(0)] = 0.6
    """E: how much of the train split one phase goes through (fixed schedule)."""
    prompts: Annotated[int, Ge(1)] = 256
    """Tasks in one step."""
    samples: Annotated[int, Ge(1)] = 8
    """G: rollouts per task."""
    minibatch: Annotated[int, Ge(1)] = 64
    """Accepted rollouts in one optimiser step."""
    sft_epochs: Annotated[int, Ge(1)] = 1
    """Passes over a step's accepted rollouts."""
    trainer: Annotated[TrainerConfig, Inline] = field(default_factory=TrainerConfig)
    """How an optimiser step is taken."""
    reset_optimizer: bool = False
    """Begin each phase with fresh AdamW moments."""


@dataclass(frozen=True)
class SearchConfig:
    """The harness phase: Meta-Harness search, or another."""

    method: str = "meta-harness"
    """meta-harness, or module:Class: a search of your own (optimizers.search.protocol.HarnessSearch)."""
    iterations: Annotated[int, Ge(1)] = 6
    """I: rounds of the proposer in one phase, besides scoring the incoming harness (fixed schedule)."""
    candidates: Annotated[int, Ge(1)] = 3
    """M: candidates an iteration."""
    examples: Annotated[int, Ge(0)] = 256
    """Tasks of the search split that score a harness."""
    samples: Annotated[int, Ge(1)] = 1
    """Rollouts per example."""
    selection: Literal["argmax", "paired"] = "argmax"
    """argmax accepts the best search reward (the paper's rule). paired accepts what a paired test on fresh rollouts
    confirms; it takes more rollouts and is hardly ever misled by luck."""
    holdout: Annotated[float, Ge(0), Lt(1)] = 0.0
    """paired: share of the examples that only the re-test sees; shows how much of a gain is overfitting."""
    paired: PairedConfig = field(default_factory=PairedConfig)
    """How careful the paired rule is."""
    racing: bool = False
    """Stop scoring candidates that can no longer win; saves rollouts where there are 100 examples or more."""
    proposer: ProposerConfig = field(default_factory=ProposerConfig)
    allow_uncaged: bool = False
    """Run proposed code without a cage where the kernel offers none. The run's record says so."""


@dataclass(frozen=True)
class ScheduleConfig:
    """When adaptive phases end."""

    window: Annotated[float, Gt(0)] = 0.2
    """Adaptive: epochs over which the training reward is averaged (W)."""
    min_epochs: Annotated[float, Ge(0)] = 0.2
    """Adaptive: epochs before a weight phase may end (T_min)."""
    patience: Annotated[float, Gt(0)] = 0.2
    """Adaptive: epochs without a new best after which it ends (P_w)."""
    max_epochs: Annotated[float, Gt(0)] = 2.0
    """Adaptive: epochs after which it ends in any case."""
    min_iterations: Annotated[int, Ge(1)] = 6
    """Adaptive: iterations before a harness phase may end, besides scoring the incoming harness (J_min)."""
    iteration_patience: Annotated[int, Ge(1)] = 2
    """Adaptive: iterations without a new best after which it ends (P_h)."""
    max_iterations: Annotated[int, Ge(1)] = 15
    """Adaptive: iterations after which it ends in any case."""


@dataclass(frozen=True)
class BudgetConfig:
    """What a run spends in all, the same for every method; evaluation comes on top."""

    epochs: Annotated[float, Ge(0)] = 4.0
    """Epochs of all weight phases together."""
    iterations: Annotated[int, Ge(0)] = 40
    """Iterations of all harness phases together, besides scoring the incoming harnesses."""
    rollouts: Annotated[int, Ge(0)] = 0
    """In place of both: rollouts of the agent, training and scoring together. Methods that train and search share them
    out as the fixed schedule would, the others spend them all on their one side; 0 is no such total."""


@dataclass(frozen=True)
class EvaluationConfig:
    """mean@k on the test split."""

    tasks: Annotated[int, Ge(0)] = 256
    """Tasks."""
    k: Annotated[int, Ge(1)] = 8
    """Rollouts per task."""


@dataclass(frozen=True)
class AgentConfig:
    """How the model samples, and hard limits on an episode (a harness's own limits count too)."""

    sampling: Annotated[Sampling, Inline] = field(default_factory=Sampling)
    """How tokens are drawn."""
    limits: Annotated[EpisodeLimits, Inline] = field(default_factory=EpisodeLimits)
    """What an episode may take."""

    def rollouts(self, seed: int, phase: str) -> RolloutConfig:
        """Returns how a phase of a run rolls out."""
        return RolloutConfig.within(self.limits, seed=seed, phase=phase, sampling=self.sampling)


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
    thinking: Literal["", "on", "off"] = ""
    """transformers, vllm: what the chat template is told as enable_thinking. Empty leaves it to the template."""
    memory: Annotated[float, Gt(0), Le(1)] = 0.4
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
    train_tasks: Annotated[int, Ge(0)] = 0
    """Use only so many tasks of the train split; 0 uses all. Defines an epoch."""
    weights: WeightsConfig = field(default_factory=WeightsConfig)
    search: SearchConfig = field(default_factory=SearchConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)
    backend: BackendConfig = field(default_factory=BackendConfig)


KINDS = ("transformers", "vllm", "openai", "anthropic")
"""Backends that are here."""
REMOTE = ("openai", "anthropic")
"""Those whose weights nobody here can change."""


def checked_backend(config: BackendConfig) -> BackendConfig:
    """Returns a backend's configuration that makes sense.

    Raises:
        ConfigError: It does not; the message names the flag.
    """
    if config.kind not in KINDS and ":" not in config.kind:
        hint = did_you_mean(config.kind, KINDS)
        raise ConfigError(f"unknown --backend.kind {config.kind!r}; use {', '.join(KINDS)}, or module:function.{hint}")
    if config.thinking and config.kind not in ("transformers", "vllm"):
        raise ConfigError(
            f"--backend.thinking {config.thinking} is for chat templates that are rendered here; leave it out with "
            f"--backend.kind {config.kind}"
        )
    engine_arguments(config)
    return config


def engine_arguments(config: BackendConfig) -> dict[str, Any]:
    """Reads ``--backend.engine``.

    Raises:
        ConfigError: It is not a JSON object.
    """
    try:
        arguments = json.loads(config.engine)
    except ValueError as error:
        arguments = str(error)
    if not isinstance(arguments, dict):
        raise ConfigError(
            f"--backend.engine {config.engine!r} is not a JSON object of vLLM engine arguments; "
            """give for example '{"tensor_parallel_size": 2}'"""
        )
    return arguments


def checked(config: RunConfig) -> RunConfig:
    """Returns a configuration whose settings make sense, alone and together.

    Raises:
        ConfigError: One does not; the message names the flag.
    """
    require_bounds(config, "--")
    checked_backend(config.backend)
    if config.budget.rollouts and config.search.selection == "paired":
        raise ConfigError(
            "--budget.rollouts cannot hold what re-tests of --search.selection paired take; "
            "give --budget.rollouts 0 with --budget.epochs and --budget.iterations"
        )
    if config.backend.kind in REMOTE and config.method != "harness-only":
        raise ConfigError(
            f"--backend.kind {config.backend.kind} takes no new weights, and --method {config.method} trains; "
            "use --method harness-only, or --backend.kind transformers or vllm"
        )
    return config
