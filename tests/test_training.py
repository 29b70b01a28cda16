"""The weight update and RSFT: the exact token mean, fp32 masters, and a tiny model that learns to copy."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from test_rollout import play
from tiny import tiny_llama

from harness_sdk import Completion, Episode, Harness, Message, ParseFailure, RolloutConfig, ToolCall, jobs_for
from harness_sdk.loader import LoadedHarness
from harness_sdk.policies import Sampling, TransformersPolicy
from harness_sdk.session import LocalSession
from harness_sdk.trajectory import Sample, Trajectory
from optimizers.config import ConfigError, TrainerConfig, WeightsConfig
from optimizers.record.played import play as roll_out
from optimizers.run.outcomes import WeightStep
from optimizers.weights.build import build
from optimizers.weights.prompts import PromptSampler
from optimizers.weights.protocol import DivergedError, IdleUpdate, NoTokenIdsError, UpdateStats
from optimizers.weights.rsft import RSFTUpdate
from optimizers.weights.trainer import Trainer
from whale_env import DomainSpec, Observation, Outcome, Score, Task, ToolEnv, ToolSpec
from whale_env.core import EnvHandle
from whale_env.types import Split

LETTERS = "abcd"


class Copying:
    """Copy the letter that is shown, up to its place modulo four: chance is one in four."""

    spec = DomainSpec(
        "copying",
        (ToolSpec("say", "Says a letter.", {"type": "object", "properties": {"letter": {"type": "string"}}}, True),),
    )

    def tasks(self, split: Split) -> Sequence[Task]:
        return [Task(f"{split}-{letter}", "copying", split) for letter in LETTERS]

    def start(self, task: Task, seed: int) -> CopySession:
        return CopySession(task.id[-1])


class CopySession:
    def __init__(self, letter: str) -> None:
        self._letter, self._said = letter, None

    def observe(self) -> Observation:
        return Observation(self._letter)

    def apply(self, call: ToolCall) -> Outcome:
        self._said = call.arguments["letter"]
        return Outcome(self.observe(), done=True)

    def said(self, call: ToolCall, text: str) -> bool:
        return str(call.arguments["letter"]) in text

    def score(self) -> Score:
        if self._said is not None and ord(self._said) % 4 == ord(self._letter) % 4:
            return Score(1.0)
        return Score(0.0, "wrong")


class OneLetter(Harness):
    max_tokens_per_turn = 1
    max_turns = 1

    def pack(self, episode: Episode) -> list[Message]:
        return [{"role": "user", "content": "copy"}, {"role": "assistant", "content": episode.first.text}]

    def parse(self, completion: Completion, episode: Episode) -> list[ToolCall] | ParseFailure:
        if completion.text:
            return [ToolCall("say", {"letter": completion.text[0]})]
        return ParseFailure("nothing was said")


async def opened(seed: int) -> LocalSession:
    return LocalSession(OneLetter())


HARNESS = LoadedHarness("one-letter", "OneLetter", "", True, opened)


def copying_env() -> EnvHandle:
    if "tests/Copying-v0" not in gym.registry:
        gym.register("tests/Copying-v0", entry_point=lambda **kw: ToolEnv(Copying(), **kw))
    return EnvHandle("tests/Copying-v0", {})


def collect(
    env: EnvHandle, policy: TransformersPolicy, tasks: Sequence[Task], samples: int, config: RolloutConfig
) -> list[Trajectory]:
    return asyncio.run(roll_out(jobs_for(HARNESS, tasks, samples), env, policy, config)).trajectories


@pytest.mark.parametrize(("update", "lr"), [("rsft", 3e-3), ("grpo:GRPO", 1e-3)])
def test_an_update_teaches_a_tiny_model_to_copy(update: str, lr: float) -> None:
    env = copying_env()
    model, tokenizer = tiny_llama(hidden=64)
    config = WeightsConfig(update, prompts=4, samples=32, minibatch=128, trainer=TrainerConfig(lr=lr))
    learner = build(config, model)
    rollout_model, _ = tiny_llama(hidden=64)
    policy = TransformersPolicy(rollout_model, tokenizer=tokenizer)
    sampler = PromptSampler(env.tasks("train"), 4, seed=0)
    rewards = []
    for step in range(60):
        run = RolloutConfig(phase=f"step {step}", sampling=Sampling(1.0, top_k=0))
        played = collect(env, policy, sampler.batch(step), config.samples, run)
        rewards.append(WeightStep.of(played, learner.update(played, step)).reward)
        policy.load_weights(learner.weights(), step + 1)
        if step >= 5 and min(rewards[-3:]) > 0.95:
            break
    assert rewards[0] < 0.4
    greedy = RolloutConfig(phase="test", sampling=Sampling(0.0))
    test = collect(env, policy, env.tasks("test"), 1, greedy)
    assert sum(t.reward or 0 for t in test) / len(test) > 0.9


@pytest.mark.parametrize(
    ("update", "words"),
    [
        ("rsf", "use rsft, or module:Class"),
        ("nowhere:Update", "No module named"),
        ("json:JSONDecoder", "no method update"),
    ],
)
def test_an_update_that_is_none_is_refused(update: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build(WeightsConfig(update), None)


def samples() -> list[Sample]:
    torch.manual_seed(0)
    made = []
    for length, said in ((9, 3), (14, 5), (9, 1), (30, 12)):
        ids = tuple(torch.randint(3, 200, (length,)).tolist())
        mask = (0,) * (length - said) + (1,) * said
        made.append(Sample(ids, mask, (0.0,) * length))
    return made


def gradients(batch: list[Sample], micro_tokens: int) -> dict[str, torch.Tensor]:
    model, _ = tiny_llama()
    trainer = Trainer(model, TrainerConfig(lr=0.0, micro_tokens=micro_tokens, max_grad_norm=1e9))
    trainer._mixed = False
    trainer.step(batch)
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("micro_tokens", [1, 30, 60])
def test_micro_batches_do_not_change_the_gradient(micro_tokens: int) -> None:
    whole, parts = gradients(samples(), 10_000), gradients(samples(), micro_tokens)
    assert whole and whole.keys() == parts.keys()
    for name in whole:
        torch.testing.assert_close(whole[name], parts[name], rtol=1e-4, atol=1e-6)


def test_repeats_weigh_as_often_as_they_come_and_every_token_counts_the_same() -> None:
    one, two = samples()[0], samples()[3]
    model, _ = tiny_llama()
    total = 0.0
    for sample in (one, two, two):
        ids = torch.tensor([sample.ids])
        logits = model(ids).logits[0, :-1].log_softmax(-1)
        taken = logits.gather(1, ids[0, 1:, None])[:, 0]
        total = total - (taken * torch.tensor(sample.mask[1:])).sum()
    tokens = sum(one.mask) + 2 * sum(two.mask)
    (total / tokens).backward()
    ours = gradients([one, two, two], 10_000)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(ours[name], parameter.grad, rtol=1e-4, atol=1e-6)


def test_log_probs_of_stored_ids_are_those_of_the_rollout() -> None:
    env = copying_env()
    model, tokenizer = tiny_llama()
    policy = TransformersPolicy(model, tokenizer=tokenizer)
    played = collect(env, policy, env.tasks("train"), 2, RolloutConfig())
    trainer = Trainer(tiny_llama()[0], TrainerConfig())
    assert played
    for trajectory in played:
        (sample,) = trajectory.samples()
        stored = [p for p, m in zip(sample.logprobs, sample.mask, strict=True) if m]
        assert trainer.log_probs(sample).tolist() == pytest.approx(stored, abs=1e-3)


def test_the_papers_learning_rate_moves_fp32_masters() -> None:
    model, _ = tiny_llama()
    trainer = Trainer(model, TrainerConfig(lr=1e-7))
    before = {name: weight.clone() for name, weight in trainer.weights().items()}
    trainer.step(samples())
    moved = sum(int((before[name] != weight).sum()) for name, weight in trainer.weights().items())
    # A bfloat16 master would keep all of these: a step of 1e-7 is far below half an ulp of a typical weight.
    assert moved > 1000
    assert all(torch.equal(w.bfloat16(), before[n].bfloat16()) for n, w in trainer.weights().items() if "norm" in n)


def test_saving_and_loading_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    folder = tmp_path
    straight, resumed = (Trainer(tiny_llama()[0], TrainerConfig(lr=1e-2)) for _ in range(2))
    straight.step(samples())
    straight.save(folder)
    straight.step(samples()[:2])
    resumed.load(folder)
    resumed.step(samples()[:2])
    for name, weight in straight.weights().items():
        assert torch.equal(weight, resumed.weights()[name])


def learner(**trainer: Any) -> RSFTUpdate:
    return RSFTUpdate(tiny_llama()[0], WeightsConfig(trainer=TrainerConfig(**trainer)))


def test_a_gradient_that_is_not_finite_is_skipped_and_a_few_in_a_row_end_it() -> None:
    trainer = Trainer(tiny_llama()[0], TrainerConfig(lr=1e-2, max_bad_steps=2))
    before = {name: weight.clone() for name, weight in trainer.weights().items()}
    bad = [float("nan")] * len(samples())
    for _ in range(2):
        assert trainer.step(samples(), bad).skipped
    assert all(torch.equal(before[name], weight) for name, weight in trainer.weights().items())
    assert not trainer.step(samples()).skipped  # a good one in between: counting begins anew
    for _ in range(2):
        trainer.step(samples(), [float("inf")] * len(bad))
    with pytest.raises(DivergedError, match=r"3 optimiser steps in a row; lower --weights\.lr"):
        trainer.step(samples(), bad)


def test_skipped_steps_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    update = learner(lr=1e-2)
    solved = play_copying()
    embedding = update.trainer.model.get_input_embeddings().weight
    monkeypatch.setattr(update.trainer, "_log_likelihood", lambda batch, weights: embedding.sum() * float("nan"))
    stats = update.update(solved, 0)
    assert (stats.updates, stats.skipped, stats.loss, stats.grad_norm) == (0, 1, None, None) and stats.accepted


def play_copying() -> list[Trajectory]:
    model, tokenizer = tiny_llama()
    policy = TransformersPolicy(model, tokenizer=tokenizer)
    run = RolloutConfig(sampling=Sampling(1.0, top_k=0))
    env = copying_env()
    played = collect(env, policy, env.tasks("train"), 1, run)
    return [replace(t, score=Score(1.0)) for t in played]


def test_the_learning_rate_rises_over_the_warm_up_and_a_resumed_one_goes_on(tmp_path: Path) -> None:
    trainer = Trainer(tiny_llama()[0], TrainerConfig(lr=4e-3, warmup_steps=4))
    rates = []
    for step in range(6):
        trainer.step(samples())
        rates.append(trainer.optimizer.param_groups[0]["lr"])
        if step == 1:
            trainer.save(tmp_path)
            trainer = Trainer(tiny_llama()[0], TrainerConfig(lr=4e-3, warmup_steps=4))
            trainer.load(tmp_path)
    assert rates == pytest.approx([1e-3, 2e-3, 3e-3, 4e-3, 4e-3, 4e-3])


def test_an_update_sees_all_rollouts_of_a_step() -> None:
    played = play_copying()
    mixed = [replace(played[0], score=Score(0.0, "wrong")), *played[1:]]
    idle = IdleUpdate(tiny_llama()[0], WeightsConfig())
    assert idle.update(mixed, 0) == UpdateStats() and idle.seen == mixed
    assert learner().update(mixed, 0).accepted == len(mixed) - 1


def test_unknown_rewards_and_failures_are_not_learnt_from() -> None:
    lost = [replace(t, score=Score(None, "env_error")) for t in play_copying()]
    step = WeightStep.of(lost, learner().update(lost, 0))
    assert step.stats == UpdateStats() and (step.reward, step.rollouts) == (0.0, len(lost))
    assert WeightStep.from_json(step.to_json()) == step


def test_no_prompt_comes_twice_within_an_epoch() -> None:
    tasks = copying_env().tasks("train")
    sampler = PromptSampler(tasks, 3, seed=1)
    stream = [task.id for step in range(16) for task in sampler.batch(step)]
    epochs = [stream[begin : begin + len(tasks)] for begin in range(0, len(stream), len(tasks))]
    assert all(sorted(epoch) == sorted(t.id for t in tasks) for epoch in epochs) and epochs[0] != epochs[1]
    assert PromptSampler(tasks, 3, seed=1).batch(4) == sampler.batch(4)  # whichever step is asked for first


@pytest.mark.parametrize(("count", "steps"), [(18_946, 74), (17_917, 70), (16_384, 64)])
def test_an_epoch_is_full_batches_only(count: int, steps: int) -> None:
    tasks = [Task(str(number), "toy", "train") for number in range(count)]
    sampler = PromptSampler(tasks, 256, seed=3)
    assert sampler.steps_per_epoch == steps
    batches = [{task.id for task in sampler.batch(step)} for step in range(2 * steps)]
    assert {len(batch) for batch in batches} == {256}  # over the end of an epoch too, and no task twice


def test_small_splits_fill_their_batches() -> None:
    for count, size in ((5, 4), (7, 3), (3, 8), (1, 1)):
        tasks = [Task(str(number), "toy", "train") for number in range(count)]
        sampler = PromptSampler(tasks, size, seed=0)
        assert {len({task.id for task in sampler.batch(step)}) for step in range(40)} == {min(size, count)}


def test_text_without_token_ids_is_never_trained_on() -> None:
    solved = play(Harness, ["<answer>2</answer>"])[0]
    solved = replace(solved, calls=tuple(replace(call, token_ids=(), logprobs=()) for call in solved.calls))
    with pytest.raises(NoTokenIdsError, match="exact ids only"):
        learner().update([solved], 0)
