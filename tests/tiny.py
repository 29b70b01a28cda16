"""A random two-layer Llama with a real byte-level BPE tokenizer and a ChatML template, made on the spot.

Shared by tests. It says nothing sensible; what it says is the same for the same seed.
"""

from __future__ import annotations

from typing import Any

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

CHATML = (
    "{% if tools %}{{ '<|im_start|>system\n' + (tools | tojson) + '<|im_end|>\n' }}{% endif %}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_CORPUS = [
    "system user assistant move answer search python tool the of and to in is that it was for on as with",
    "You are a helpful assistant. Find the best move. Write <move>e2e4</move> and <answer>42</answer>.",
    "aaaa abab abcabc 0123456789 00 11 22 33",
]


def tiny_tokenizer(merges: int = 64, template: str = CHATML) -> Any:
    """Returns a byte-level BPE tokenizer: 3 control tokens, 256 bytes, some merges. Any text survives a round trip."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=len(SPECIALS) + 256 + merges,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(_CORPUS, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = template
    return tokenizer


def tiny_llama(
    seed: int = 0, *, hidden: int = 32, heads: int = 4, kv_heads: int = 2, context: int = 2048, template: str = CHATML
) -> tuple[Any, Any]:
    """Returns a random Llama (2 layers, grouped-query attention, float32, eval) and its tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = tiny_tokenizer(template=template)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=context,
        initializer_range=0.3,  # the default makes all tokens almost equally likely
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    return model.eval(), tokenizer
