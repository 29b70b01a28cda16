"""Batched generation for agents over a Hugging Face causal language model, on a CPU or one GPU.

Rollouts of agents repeat themselves: G samples of one prompt, one system text over all prompts, a next turn that
extends the last. So a prefix is computed once (`PrefixCache`), prompts are packed end to end without padding, and in
decoding all rows of one prompt attend to one copy of its keys and values. Finished rows leave the batch. Plain
`model.generate` repeats the prompt's cache for every sample and pads to the longest; ``python -m
benchmarks.generation`` measures the difference.

Works for models whose layers are all full softmax attention behind transformers' attention interface; others are
refused here (serve those with vLLM). Text, chat templates and seeds are `harness_sdk.policies.transformers`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface

from harness_sdk.policies.base import Sampling
from harness_sdk.policies.prefix_cache import PrefixCache, common_prefix
from harness_sdk.policies.sampling import RowSampler

ATTENTION = "whale_shared_prefix"
PACK = 1024
"""Prompt tokens in one prefill pass."""
WORTH_SHARING = 16
"""Tokens that two prompts must share beyond what is cached for a pass of their own to pay."""


@dataclass(slots=True, eq=False)
class Row:
    """One sequence to generate.

    Attributes:
        prompt: Prompt ids.
        max_tokens: Sampled ids at most.
        sampling: How to draw.
        seed: The row's own seed.
        finished: Called after each id with the ids so far; True ends the row (stop strings).
        ids: Sampled ids so far.
        logprobs: Natural-log probability of each.
        ended: Whether the last id is an end token or ``finished`` said so; otherwise the row was cut.
    """

    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling
    seed: int
    finished: Callable[[list[int]], bool] | None = None
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ended: bool = False


class Engine:
    """Generates for batches of rows."""

    def __init__(self, model: Any, end_ids: frozenset[int], cache_tokens: int) -> None:
        """Wraps a model.

        Args:
            model: A causal language model of transformers.
            end_ids: Ids that end a row.
            cache_tokens: Tokens the prefix cache may hold.

        Raises:
            ValueError: The model has layers that are not full attention.
        """
        kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"} or not getattr(model, "_supports_attention_backend", False):
            raise ValueError(
                f"{type(model).__name__} has layers {sorted(kinds)}; this engine needs full attention "
                "behind transformers' attention interface. Serve it with VLLMPolicy or OpenAIPolicy."
            )
        self.model = model
        self.end_ids = end_ids
        self.cache = PrefixCache(cache_tokens)

    def start(self, rows: Sequence[Row]) -> Batch:
        """Prefills the rows' prompts and begins a batch."""
        with torch.inference_mode():
            return Batch(self, rows)

    def prefill(self, prompts: Sequence[tuple[int, ...]]) -> list[Tensor]:
        """Computes the states of some distinct prompts, all but each one's last token.

        Returns:
            Per prompt, shape ``(layers, 2, kv_heads, len(prompt) - 1, head_dim)``.
        """
        bodies = [prompt[:-1] for prompt in prompts]
        self._compute(self._shared(bodies))
        self._compute(bodies)
        states = []
        for body in bodies:
            length, pieces = self.cache.match(body)
            if length < len(body):  # evicted by the others: the cache is smaller than this batch
                pieces = self._run([(body, length, pieces)])[0]
            states.append(torch.cat(pieces, dim=3) if pieces else self._empty())
        return states

    def _shared(self, bodies: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Returns the prefixes that several bodies share beyond what is cached."""
        groups: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        for body in bodies:
            length, _ = self.cache.match(body)
            groups.setdefault(body[: length + WORTH_SHARING], []).append(body)
        shared = []
        for key, group in groups.items():
            if len(group) > 1:
                length = min(common_prefix(group[0], other) for other in group)
                if length >= len(key):
                    shared.append(group[0][:length])
        return shared

    def _compute(self, bodies: Sequence[tuple[int, ...]]) -> None:
        pack: list[tuple[tuple[int, ...], int, list[Tensor]]] = []
        size = 0
        for body in bodies:
            length, pieces = self.cache.match(body)
            if length == len(body):
                continue
            if pack and size + len(body) - length > PACK:
                self._run(pack)
                pack, size = [], 0
            pack.append((body, length, pieces))
            size += len(body) - length
        if pack:
            self._run(pack)

    def _run(self, pack: Sequence[tuple[tuple[int, ...], int, list[Tensor]]]) -> list[list[Tensor]]:
        past = [torch.cat(pieces, dim=3) if pieces else None for _, _, pieces in pack]
        lengths = [len(body) - length for body, length, _ in pack]
        ids = [token for body, length, _ in pack for token in body[length:]]
        positions = [position for body, length, _ in pack for position in range(length, len(body))]
        states = _Prefill(past, lengths)
        _forward(self.model, ids, positions, states, packed=True)
        new = states.collected()
        for (body, length, _), kv in zip(pack, new, strict=True):
            self.cache.insert(body, kv, length)
        return [[*pieces, kv] for (_, _, pieces), kv in zip(pack, new, strict=True)]

    def _empty(self) -> Tensor:
        config = self.model.config
        heads = config.num_key_value_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return torch.zeros(config.num_hidden_layers, 2, heads, 0, size, dtype=self.model.dtype)


class Batch:
    """Rows being decoded together. `step` until it says that nothing is left."""

    def __init__(self, engine: Engine, rows: Sequence[Row]) -> None:
        self._engine = engine
        order = sorted({row.prompt for row in rows})
        states = dict(zip(order, engine.prefill(order), strict=True))
        trunks = _trunks(order)
        self.rows = sorted(rows, key=lambda row: row.prompt)
        owners = [trunks[row.prompt][0] for row in self.rows]
        shared = {number: states[prompt][:, :, :, :length] for prompt, (number, length) in trunks.items()}
        private = [states[row.prompt][:, :, :, trunks[row.prompt][1] :] for row in self.rows]
        steps = max(row.max_tokens for row in self.rows)
        self._states = _Decode([shared[number] for number in sorted(shared)], private, owners, steps)
        self._last = [row.prompt[-1] for row in self.rows]
        self._positions = [len(row.prompt) - 1 for row in self.rows]
        self._sampler = RowSampler([row.sampling for row in self.rows], [row.seed for row in self.rows])

    def step(self) -> list[Row]:
        """Draws one token for every row.

        Returns:
            The rows that finished; they have left the batch.
        """
        with torch.inference_mode():
            logits = _forward(self._engine.model, self._last, self._positions, self._states, packed=False)
            tokens, logprobs = self._sampler.draw(logits)
        self._states.advance()
        for row, token, logprob in zip(self.rows, tokens, logprobs, strict=True):
            row.ids.append(token)
            row.logprobs.append(logprob)
            row.ended = token in self._engine.end_ids or (row.finished is not None and row.finished(row.ids))
        going = [i for i, row in enumerate(self.rows) if not row.ended and len(row.ids) < row.max_tokens]
        done = [row for i, row in enumerate(self.rows) if i not in set(going)]
        if done:
            with torch.inference_mode():
                self._remember(set(going))
                self._states.keep(going)
            self._sampler.keep(going)
            self.rows = [self.rows[i] for i in going]
        self._last = [row.ids[-1] for row in self.rows]
        self._positions = [len(row.prompt) + len(row.ids) - 1 for row in self.rows]
        return done

    def _remember(self, going: set[int]) -> None:
        """Keeps the states of finished rows for the episode's next turn."""
        for i, row in enumerate(self.rows):
            if i not in going:
                body = row.prompt[:-1]
                self._engine.cache.insert((*row.prompt, *row.ids[:-1]), self._states.own(i), len(body))


class _Prefill:
    """Attention of packed prompts: each sees its own past and itself."""

    def __init__(self, past: Sequence[Tensor | None], lengths: Sequence[int]) -> None:
        self._past, self._lengths = past, list(lengths)
        self._new: list[Tensor] = []

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        self._new.append(torch.stack([key[0], value[0]]))
        outputs = []
        segments = zip(
            self._past,
            torch.split(query, self._lengths, 2),
            torch.split(key, self._lengths, 2),
            torch.split(value, self._lengths, 2),
            strict=True,
        )
        for past, q, k, v in segments:
            mask = None
            if past is not None:
                old = past.shape[3]
                k = torch.cat([past[layer, 0][None].to(k.dtype), k], dim=2)
                v = torch.cat([past[layer, 1][None].to(v.dtype), v], dim=2)
                mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril(old)
            outputs.append(
                functional.scaled_dot_product_attention(
                    q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=True
                )
            )
        return torch.cat(outputs, dim=2)

    def collected(self) -> list[Tensor]:
        """Returns the new states per prompt, ``(layers, 2, kv_heads, length, head_dim)``."""
        return [kv.contiguous() for kv in torch.split(torch.stack(self._new), self._lengths, 3)]


def _trunks(prompts: Sequence[tuple[int, ...]]) -> dict[tuple[int, ...], tuple[int, int]]:
    """Groups sorted distinct prompts that share most of their length: a group's common prefix is held once.

    Returns:
        Per prompt the number of its group and the length of the group's prefix; the last id is never part of it.
    """
    groups: list[tuple[int, list[tuple[int, ...]]]] = []
    for prompt in prompts:
        body = len(prompt) - 1
        if groups:
            length, members = groups[-1]
            shared = min(length, common_prefix(members[0], prompt), body)
            if 2 * shared >= max(length, body):
                groups[-1] = (shared, [*members, prompt])
                continue
        groups.append((body, [prompt]))
    return {prompt: (number, length) for number, (length, members) in enumerate(groups) for prompt in members}


class _Decode:
    """Attention of one new token per row: to a shared prefix, held once per group of rows, and to the row's own rest.

    A row's own states are what its prompt has beyond the group's prefix, then what it has sampled.
    """

    def __init__(self, shared: Sequence[Tensor], private: Sequence[Tensor], owners: Sequence[int], steps: int) -> None:
        layers, _, heads, _, size = shared[0].shape
        self._dtype = shared[0].dtype
        self._lengths = torch.tensor([kv.shape[3] for kv in shared], device=shared[0].device)
        longest = max(max(kv.shape[3] for kv in shared), 1)
        self._prompts = shared[0].new_zeros(layers, 2, len(shared), heads, longest, size)
        for number, kv in enumerate(shared):
            self._prompts[:, :, number, :, : kv.shape[3]] = kv
        self._rests = torch.tensor([kv.shape[3] for kv in private], device=shared[0].device)
        self._rest = max(kv.shape[3] for kv in private)
        self._capacity = steps
        self._own = shared[0].new_zeros(layers, 2, len(owners), heads, self._rest + min(steps, 16), size)
        for row, kv in enumerate(private):
            self._own[:, :, row, :, : kv.shape[3]] = kv
        self._step = 0
        self._place(list(owners))

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        rows, heads, _, size = query.shape
        kv_heads = key.shape[1]
        share = heads // kv_heads
        here = self._rest + self._step
        now = here + 1
        self._own[layer, 0, :, :, here] = key[:, :, 0]
        self._own[layer, 1, :, :, here] = value[:, :, 0]
        own_k, own_v = self._own[layer, 0, :, :, :now], self._own[layer, 1, :, :, :now]
        prompt_k, prompt_v = self._prompts[layer]
        grouped = query[:, :, 0].view(rows, kv_heads, share, size) * scale

        slots = grouped.new_zeros(self._slots, kv_heads, share, size)
        slots[self._slot] = grouped
        wide = slots.view(len(self._lengths), -1, kv_heads, share, size).transpose(1, 2).flatten(2, 3)
        to_prompt = (wide @ prompt_k.transpose(-1, -2)).masked_fill(self._hidden, -torch.inf)
        to_own = grouped @ own_k.transpose(-1, -2)
        if self._rest:
            to_own[..., : self._rest].masked_fill_(self._gap, -torch.inf)

        prompt_scores = self._rows_of(to_prompt, share)
        weights = torch.cat([prompt_scores, to_own], dim=-1).softmax(-1, dtype=torch.float32).to(self._dtype)
        split = prompt_scores.shape[-1]
        own_part = weights[..., split:] @ own_v
        slots = weights.new_zeros(self._slots, kv_heads, share, split)
        slots[self._slot] = weights[..., :split]
        wide = slots.view(len(self._lengths), -1, kv_heads, share, split).transpose(1, 2).flatten(2, 3)
        prompt_part = self._rows_of(wide @ prompt_v, share)
        return (prompt_part + own_part).reshape(rows, heads, 1, size)

    def advance(self) -> None:
        self._step += 1
        room = self._own.shape[4] - self._rest
        if self._step == room < self._capacity:
            self._own = functional.pad(self._own, (0, 0, 0, min(self._capacity, 2 * room) - room))

    def own(self, row: int) -> Tensor:
        """Returns a row's own states, ``(layers, 2, kv_heads, steps, head_dim)``: the last prompt token's and on."""
        return self._own[:, :, row, :, self._rest : self._rest + self._step].clone()

    def keep(self, rows: Sequence[int]) -> None:
        self._own = self._own[:, :, list(rows)]
        self._rests = self._rests[list(rows)]
        owners = [self._owners[row] for row in rows]
        alive = sorted(set(owners))
        if 2 * len(alive) <= len(self._lengths):  # copying all that is left pays only now and then
            self._prompts = self._prompts[:, :, alive]
            self._lengths = self._lengths[alive]
            new = {old: number for number, old in enumerate(alive)}
            owners = [new[owner] for owner in owners]
        self._place(owners)

    def _place(self, owners: list[int]) -> None:
        """Lays the rows out as (prompt, slot), the slots of a prompt with fewer rows left empty."""
        self._owners = owners
        if not owners:
            return
        counts: dict[int, int] = {}
        seats = []
        for owner in owners:
            seats.append(counts.get(owner, 0))
            counts[owner] = seats[-1] + 1
        width = max(counts.values())
        self._slots = width * len(self._lengths)
        self._slot = torch.tensor([o * width + s for o, s in zip(owners, seats, strict=True)])
        columns = torch.arange(self._prompts.shape[4], device=self._lengths.device)
        self._hidden = (columns[None] >= self._lengths[:, None])[:, None, None, :]
        own = torch.arange(self._rest, device=self._lengths.device)
        self._gap = (own[None] >= self._rests[:, None])[:, None, None, :]

    def _rows_of(self, wide: Tensor, share: int) -> Tensor:
        """Turns ``(prompts, kv_heads, slots * share, n)`` into ``(rows, kv_heads, share, n)``."""
        prompts, kv_heads, _, n = wide.shape
        by_slot = wide.view(prompts, kv_heads, -1, share, n).transpose(1, 2).reshape(self._slots, kv_heads, share, n)
        return by_slot[self._slot]


def _attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **kwargs: Any
) -> tuple[Tensor, None]:
    scale = kwargs.get("scaling") or query.shape[-1] ** -0.5
    output = kwargs["states"].attend(module.layer_idx, query, key, value, scale)
    return output.transpose(1, 2).contiguous(), None


AttentionInterface.register(ATTENTION, _attention)


@contextmanager
def _shared_attention(model: Any) -> Iterator[None]:
    before = model.config._attn_implementation
    model.config._attn_implementation = ATTENTION
    try:
        yield
    finally:
        model.config._attn_implementation = before


def _forward(model: Any, ids: list[int], positions: list[int], states: Any, *, packed: bool) -> Tensor:
    """Runs the model; one packed sequence, or one token per row. Returns the logits per row (empty when packed)."""
    shape = (1, -1) if packed else (-1, 1)
    ids_in = torch.tensor(ids, device=model.device).view(shape)
    positions_in = torch.tensor(positions, device=model.device).view(shape)
    with _shared_attention(model):
        body = model.base_model(input_ids=ids_in, position_ids=positions_in, use_cache=False, states=states)
    if packed:
        return ids_in.new_zeros(0)
    logits: Tensor = model.get_output_embeddings()(body.last_hidden_state[:, -1])
    return logits
