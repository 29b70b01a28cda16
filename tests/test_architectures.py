"""Tiny random models of many architectures: policy and trainer give the model's own log-probabilities, or refuse it."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
import torch
import transformers
from tiny import tiny_tokenizer

from harness_sdk.policies import Request, Sampling, TransformersPolicy
from harness_sdk.policies.engine import Engine, Row
from harness_sdk.trajectory import Sample
from optimizers.weights.trainer import Trainer, TrainerConfig

TOKENIZER = tiny_tokenizer()
VOCABULARY = len(TOKENIZER)
WINDOW = 8

PLAIN = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": TOKENIZER.eos_token_id,
    "pad_token_id": TOKENIZER.pad_token_id,
}
MIXED = ["sliding_attention", "full_attention"]

COMPUTED: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "qwen2": ("Qwen2", {}),
    "qwen2-window": ("Qwen2", {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "olmo2": ("Olmo2", {}),
    "granite": ("Granite", {"logits_scaling": 4.0, "attention_multiplier": 0.5, "residual_multiplier": 0.7}),
    "cohere": ("Cohere", {"logit_scale": 0.25}),
    "cohere2": ("Cohere2", {"logit_scale": 0.25, "sliding_window": WINDOW, "layer_types": MIXED}),
    "gemma": ("Gemma", {"head_dim": 16}),
    "gemma2-plain-attention": (
        "Gemma2",
        {"head_dim": 16, "final_logit_softcapping": 1.5, "attn_logit_softcapping": None, "sliding_window": WINDOW},
    ),
    "gemma3": ("Gemma3Text", {"head_dim": 16, "sliding_window": WINDOW, "layer_types": MIXED}),
    "gemma3-cap": ("Gemma3Text", {"head_dim": 16, "sliding_window": WINDOW, "final_logit_softcapping": 1.5}),
    "mistral": ("Mistral", {"sliding_window": WINDOW}),
    "mistral-full": ("Mistral", {"sliding_window": None}),
    "phi3": ("Phi3", {"sliding_window": WINDOW}),
    "mixtral": ("Mixtral", {"sliding_window": WINDOW, "num_local_experts": 2}),
    "starcoder2": ("Starcoder2", {"sliding_window": WINDOW}),
}

REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma2": ("Gemma2", {"head_dim": 16, "sliding_window": WINDOW, "attn_logit_softcapping": 5.0}),
    "deepseek-v3": ("DeepseekV3", {"n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2,
        "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16,
        "moe_intermediate_size": 16, "first_k_dense_replace": 1}),
    "gpt-oss": ("GptOss", {"head_dim": 16, "num_local_experts": 2, "sliding_window": WINDOW}),
    "mamba2": ("Mamba2", {"num_heads": 8, "head_dim": 8, "n_groups": 1}),
    "qwen3-next": ("Qwen3Next", {"head_dim": 16, "layer_types": ["linear_attention", "full_attention"]}),
}  # fmt: skip


def built(kind: str, **settings: Any) -> Any:
    config = getattr(transformers, f"{kind}Config")(**{**PLAIN, **settings})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return getattr(transformers, f"{kind.removesuffix('Text')}ForCausalLM")(config).eval().requires_grad_(False)


def own_log_probs(model: Any, ids: tuple[int, ...], start: int) -> list[float]:
    with torch.no_grad():
        logits = model(torch.tensor([ids]), use_cache=False).logits[0].log_softmax(-1)
    return [float(logits[i - 1, ids[i]]) for i in range(start, len(ids))]


def prompts() -> list[tuple[int, ...]]:
    """Some that share a trunk, one alone, all longer than a window."""
    rng = random.Random(1)
    trunk = [rng.randrange(3, VOCABULARY) for _ in range(40)]
    tails = [[rng.randrange(3, VOCABULARY) for _ in range(n)] for n in (1, 4, 13)]
    return [*(tuple(trunk + tail) for tail in tails), tuple(rng.randrange(3, VOCABULARY) for _ in range(20))]


@pytest.mark.parametrize("name", COMPUTED)
def test_log_probs_are_the_models_own(name: str) -> None:
    kind, settings = COMPUTED[name]
    model = built(kind, **settings)
    engine = Engine(model, frozenset([TOKENIZER.eos_token_id]), 10_000)
    for _ in range(2):  # the second time from the cache
        rows = [Row(prompt, 12, Sampling(top_k=0), seed) for prompt in prompts() for seed in (1, 2)]
        batch = engine.start(rows)
        while batch.rows:
            batch.step()
        for row in rows:
            own = own_log_probs(model, (*row.prompt, *row.ids), len(row.prompt))
            assert row.logprobs == pytest.approx(own, abs=2e-3)
    row = rows[0]
    ids = (*row.prompt, *row.ids)
    mask = (0,) * len(row.prompt) + (1,) * len(row.ids)
    learnt = Trainer(model, TrainerConfig()).log_probs(Sample(ids, mask, (0.0,) * len(ids)))
    assert learnt.tolist() == pytest.approx(own_log_probs(model, ids, len(row.prompt)), abs=2e-3)


@pytest.mark.parametrize("name", ["granite", "cohere", "gemma2-plain-attention"])
def test_the_gradient_is_the_models_own(name: str) -> None:
    kind, settings = COMPUTED[name]
    ids = prompts()[0]
    mask = (0,) * 30 + (1,) * (len(ids) - 30)
    model = built(kind, **settings)
    trainer = Trainer(model, TrainerConfig(lr=0.0, max_grad_norm=1e9))
    trainer._mixed = False  # in one precision throughout
    trainer.step([Sample(ids, mask, (0.0,) * len(ids))])
    given = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    logits = model(torch.tensor([ids]), use_cache=False).logits[0].log_softmax(-1)
    loss = -torch.stack([logits[i - 1, ids[i]] for i in range(30, len(ids))]).mean()
    loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(given[name], parameter.grad, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_computed_is_refused_at_load(name: str) -> None:
    kind, settings = REFUSED[name]
    with pytest.raises(ValueError, match=f"{kind}ForCausalLM does not run in this engine: .*VLLMPolicy") as caught:
        Engine(built(kind, **settings), frozenset(), 100)
    assert "\n" not in str(caught.value)


OLD = {
    "gpt2": lambda: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=128)
    ),
    "gpt-neox": lambda: transformers.GPTNeoXForCausalLM(
        transformers.GPTNeoXConfig(
            vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48
        )
    ),
    "opt": lambda: transformers.OPTForCausalLM(
        transformers.OPTConfig(
            vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=48,
            word_embed_proj_dim=32, max_position_embeddings=128,
        )
    ),
    "bloom": lambda: transformers.BloomForCausalLM(
        transformers.BloomConfig(vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OLD)
def test_older_architectures_run_right_or_are_refused(name: str) -> None:
    model = OLD[name]().eval().requires_grad_(False)
    try:
        engine = Engine(model, frozenset(), 1000)
    except ValueError as refused:
        assert "does not run in this engine" in str(refused) and "VLLMPolicy" in str(refused)
        return
    row = Row(prompts()[0], 8, Sampling(top_k=0), 1)
    batch = engine.start([row])
    while batch.rows:
        batch.step()
    assert row.logprobs == pytest.approx(own_log_probs(model, (*row.prompt, *row.ids), len(row.prompt)), abs=2e-3)


def test_the_policy_goes_beyond_a_window_in_several_turns() -> None:
    kind, settings = COMPUTED["mistral"]
    model = built(kind, **settings)
    policy = TransformersPolicy(model, tokenizer=TOKENIZER)
    messages: list[Any] = [{"role": "user", "content": "Find the best move of all that there are."}]
    first = asyncio.run(policy.generate(Request(messages, max_tokens=10, seed=1)))
    messages += [{"role": "assistant", "content": first.completion.text}, {"role": "user", "content": "Go on."}]
    second = asyncio.run(policy.generate(Request(messages, max_tokens=10, seed=2, previous=first)))
    for got in (first, second):
        ids = (*got.prompt_ids, *got.token_ids)
        assert list(got.logprobs) == pytest.approx(own_log_probs(model, ids, len(got.prompt_ids)), abs=2e-3)
