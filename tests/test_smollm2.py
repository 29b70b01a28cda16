"""End to end with the real SmolLM2-135M: rollouts, exact log-probabilities, and an update that helps."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from harness_sdk import RolloutConfig, jobs_for, load, rollout
from harness_sdk.models import ModelNotFoundError, resolve
from harness_sdk.policies import TransformersPolicy
from harness_sdk.policies.loading import load as load_model
from optimizers.config import TrainerConfig
from optimizers.weights.trainer import Trainer
from whale_env import handle


@pytest.fixture(scope="module")
def source() -> str:
    try:
        return resolve("smollm2-135m")
    except ModelNotFoundError as error:
        pytest.skip(f"SmolLM2-135M cannot be had here: {error}")


def test_it_plays_chess_and_learns(source: str) -> None:
    import torch

    env = handle("chess", {"tiers": ["1"]}).sealed()
    policy = TransformersPolicy(source, dtype="float32")
    jobs = jobs_for(load("reference_harnesses.chess:ChessStrong"), env.tasks("train")[:6], 8)

    def play() -> list[Any]:
        return asyncio.run(rollout(jobs, env, policy, RolloutConfig(seed=3)))

    done = play()
    rewards = [t.reward for t in done]
    assert None not in rewards and {t.score.failure for t in done} <= {None, "wrong", "format", "truncated", "budget"}
    assert sum(rewards) > 0, "the strong harness solves about one easy puzzle in ten before any training"
    policy.forget()
    assert [t.to_json() for t in play()] == [t.to_json() for t in done]

    trainer = Trainer(load_model(source, torch.float32), TrainerConfig(lr=3e-5))
    trainer._mixed = False
    accepted = [sample for t in done if t.reward == 1.0 for sample in t.samples()]
    sample = accepted[0]
    stored = [p for p, m in zip(sample.logprobs, sample.mask, strict=True) if m]
    assert trainer.log_probs(sample).tolist() == pytest.approx(stored, abs=1e-3)
    before = float(trainer.log_probs(sample).sum())
    trainer.step(accepted)
    assert float(trainer.log_probs(sample).sum()) > before
