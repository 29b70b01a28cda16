"""Batched generation for agents over a Hugging Face causal language model, on a CPU or one GPU.

Rollouts of agents repeat themselves: G samples of one prompt, one system text over all prompts, a next turn that
extends the last. So a prefix is computed once (`PrefixCache`), prompts are packed end to end without padding, and in
decoding all rows of one prompt attend to one copy of its keys and values. Rows leave a batch when they are done and
others join it while the rest goes on. Plain `model.generate` repeats the prompt's cache for every sample and pads to
the longest; ``python -m benchmarks.generation`` measures the difference.

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
GROWTH = 32
"""Tokens by which the room for sampled states grows."""
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

    @property
    def done(self) -> bool:
        """Whether nothing more is to be sampled."""
        return self.ended or len(self.ids) >= self.max_tokens


class Engine:
    """Generates for batches of rows."""

    def __init__(
        self,
        model: Any,
        end_ids: frozenset[int],
        cache_tokens: int,
        *,
        memory: int | None = None,
        prefill_model: Any = None,
    ) -> None:
        """Wraps a model.

        Args:
            model: A causal language model of transformers.
            end_ids: Ids that end a row.
            cache_tokens: Tokens the prefix cache may hold.
            memory: Bytes that keys and values may take, the prefix cache a quarter of them; None sets no bound.
            prefill_model: The same model in another dtype, to compute prompts with.

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
        self._prefill_model = model if prefill_model is None else prefill_model
        room = None if memory is None else memory // self._token_bytes()
        self.cache = PrefixCache(cache_tokens if room is None else max(min(cache_tokens, room // 4), 1))
        # Half, since for a moment there are two copies of what grows.
        self.batch_tokens = None if room is None else (room - self.cache.capacity) // 2

    def start(self, rows: Sequence[Row] = ()) -> Batch:
        """Begins a batch; rows can be added at any time."""
        batch = Batch(self)
        batch.add(rows)
        return batch

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
            states.append(torch.cat(pieces, dim=3) if pieces else self.empty())
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
        _forward(self._prefill_model, ids, positions, states, packed=True)
        new = [kv.to(self.model.dtype) for kv in states.collected()]
        for (body, length, _), kv in zip(pack, new, strict=True):
            self.cache.insert(body, kv, length)
        return [[*pieces, kv] for (_, _, pieces), kv in zip(pack, new, strict=True)]

    def _token_bytes(self) -> int:
        """Returns the bytes of a token's keys and values."""
        layers, both, heads, _, size = self.empty().shape
        return int(layers * both * heads * size * self.model.dtype.itemsize)

    def empty(self) -> Tensor:
        """Returns the states of no tokens, ``(layers, 2, kv_heads, 0, head_dim)``."""
        config = self.model.config
        heads = config.num_key_value_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return torch.zeros(
            config.num_hidden_layers, 2, heads, 0, size, dtype=self.model.dtype, device=self.model.device
        )


class Batch:
    """Rows being decoded together: they leave when they are done, and others join while the rest goes on.

    Attributes:
        rows: The rows that are not done.
    """

    def __init__(self, engine: Engine) -> None:
        self.rows: list[Row] = []
        self._engine = engine
        self._states = _Decode(engine.empty())
        self._sampler = RowSampler()

    def fits(self, rows: Sequence[Row]) -> int:
        """Returns how many of some rows, the first in the order of their prompts, there is memory for.

        A batch without rows takes one of any length.
        """
        budget = self._engine.batch_tokens
        if budget is None or self._needed(rows) <= budget:
            return len(rows)
        fitting, beyond = 0, len(rows)
        while fitting + 1 < beyond:
            middle = (fitting + beyond) // 2
            if self._needed(rows[:middle]) <= budget:
                fitting = middle
            else:
                beyond = middle
        return fitting if self.rows else max(fitting, 1)

    def _needed(self, rows: Sequence[Row]) -> int:
        """Returns the tokens to hold if some rows join: all get the room of the longest, a shared part is held once."""
        if not rows:
            return 0
        trunks = _trunks([row.prompt for row in rows])
        width = self._states.longest([row.max_tokens - len(row.ids) for row in self.rows])
        width = max(width, *(len(row.prompt) - trunks[row.prompt][1] + row.max_tokens for row in rows)) + GROWTH
        shared = {number: length for number, length in trunks.values() if length}
        return self._states.size(len(self.rows) + len(rows), width, list(shared.values()))

    def add(self, rows: Sequence[Row]) -> None:
        """Prefills the rows' prompts and takes them in."""
        if not rows:
            return
        # Sorted, so that what is computed does not depend on the order in which the rows were asked for.
        rows = sorted(rows, key=lambda row: (row.prompt, row.seed))
        with torch.inference_mode():
            prompts = sorted({row.prompt for row in rows})
            states = dict(zip(prompts, self._engine.prefill(prompts), strict=True))
            trunks = _trunks([row.prompt for row in rows])
            shared: dict[int, Tensor] = {}
            for prompt, (number, length) in trunks.items():
                if length:
                    shared.setdefault(number, states[prompt][:, :, :, :length])
            lanes = {number: lane for lane, number in enumerate(shared)}
            private = [states[row.prompt][:, :, :, trunks[row.prompt][1] :] for row in rows]
            self._states.add(list(shared.values()), private, [lanes.get(trunks[row.prompt][0]) for row in rows])
        self._sampler.add([row.sampling for row in rows], [row.seed for row in rows])
        self.rows = [*self.rows, *rows]

    def step(self) -> list[Row]:
        """Draws one token for every row.

        Returns:
            The rows that finished; they have left the batch.
        """
        last = [row.ids[-1] if row.ids else row.prompt[-1] for row in self.rows]
        positions = [len(row.prompt) + len(row.ids) - 1 for row in self.rows]
        with torch.inference_mode():
            logits = _forward(self._engine.model, last, positions, self._states, packed=False)
            tokens, logprobs = self._sampler.draw(logits)
            self._states.advance()
        for row, token, logprob in zip(self.rows, tokens, logprobs, strict=True):
            row.ids.append(token)
            row.logprobs.append(logprob)
            row.ended = token in self._engine.end_ids or (row.finished is not None and row.finished(row.ids))
        finished = [row for row in self.rows if row.done]
        if finished:
            going = _filled_up([not row.done for row in self.rows])
            with torch.inference_mode():
                for i, row in enumerate(self.rows):
                    if row.done:  # kept for the episode's next turn
                        self._engine.cache.insert(
                            (*row.prompt, *row.ids[:-1]), self._states.own(i), len(row.prompt) - 1
                        )
                self._states.keep(going)
            self._sampler.keep(going)
            self.rows = [self.rows[i] for i in going]
        return finished


def _filled_up(going: Sequence[bool]) -> list[int]:
    """Returns the places that go on, in an order that moves few: the last ones fill the holes."""
    left = sum(going)
    spare = [place for place in range(left, len(going)) if going[place]]
    return [place if going[place] else spare.pop() for place in range(left)]


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
    """Groups sorted prompts, one per row, that share most of their length: a group's common prefix is held once.

    Returns:
        Per prompt the number of its group and the length of the group's prefix, 0 for a row that is alone; the last id
        is never part of it.
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
    return {
        prompt: (number, length if len(members) > 1 else 0)
        for number, (length, members) in enumerate(groups)
        for prompt in members
    }


class _Decode:
    """Attention of one new token per row: to a trunk, held once for all rows that share it, and to the row's own rest.

    A row's own states are what its prompt has beyond the trunk, then what it has sampled; rows may be of any length.
    """

    def __init__(self, empty: Tensor) -> None:
        """Begins without rows.

        Args:
            empty: States of no tokens, ``(layers, 2, kv_heads, 0, head_dim)``.
        """
        self._trunks = self._own = empty[:, :, None][:, :, :0]
        self._lengths: list[int] = []
        self._owners: list[int | None] = []
        self._begun: list[int] = []
        self._filled: list[int] = []

    def add(self, trunks: Sequence[Tensor], private: Sequence[Tensor], owners: Sequence[int | None]) -> None:
        """Takes rows in.

        Args:
            trunks: States that several of the rows share.
            private: Each row's states beyond its trunk.
            owners: Which of the trunks each row begins with, or None.
        """
        known, rows = len(self._lengths), len(self._filled)
        if trunks:
            longest = max(self._trunks.shape[4], *(kv.shape[3] for kv in trunks))
            self._trunks = _resized(self._trunks, known, known + len(trunks), longest)
            _write(self._trunks, trunks, known)
        width = max(*self._filled, *(kv.shape[3] for kv in private), 0) + GROWTH
        if rows + len(private) > self._own.shape[2] or not width <= self._own.shape[4] <= 2 * width:
            self._own = _resized(self._own, rows, rows + len(private), width)
        _write(self._own, private, rows)
        self._lengths += [kv.shape[3] for kv in trunks]
        self._owners += [None if owner is None else known + owner for owner in owners]
        self._begun += [kv.shape[3] for kv in private]
        self._filled += [kv.shape[3] for kv in private]
        self._place()

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        rows, heads, _, size = query.shape
        kv_heads = key.shape[1]
        share = heads // kv_heads
        own_k, own_v = self._own[layer, :, :rows]  # contiguous: a slice of the tokens would be copied each time
        own_k[self._row, :, self._at] = key[:, :, 0]
        own_v[self._row, :, self._at] = value[:, :, 0]
        grouped = query[:, :, 0].view(rows, kv_heads, share, size) * scale
        scores = (grouped @ own_k.transpose(-1, -2)).masked_fill(self._beyond, -torch.inf)
        if not self._lengths:
            alone: Tensor = _weights(scores) @ own_v
            return alone.reshape(rows, heads, 1, size)

        trunk_k, trunk_v = self._trunks[layer]
        longest = trunk_k.shape[2]
        to_trunk = (self._by_trunk(grouped) @ trunk_k.transpose(-1, -2)).masked_fill(self._hidden, -torch.inf)
        weights = _weights(torch.cat([self._by_row(to_trunk, rows, -torch.inf), scores], dim=-1))
        from_trunk = self._by_trunk(weights[..., :longest]) @ trunk_v
        output: Tensor = self._by_row(from_trunk, rows, 0.0) + weights[..., longest:] @ own_v
        return output.reshape(rows, heads, 1, size)

    def advance(self) -> None:
        """Goes on to the next token; call it once all layers have attended."""
        self._filled = [filled + 1 for filled in self._filled]
        if max(self._filled) == self._own.shape[4]:
            rows = len(self._filled)
            self._own = _resized(self._own, rows, rows, max(self._filled) + GROWTH)
        self._aim()

    def longest(self, left: Sequence[int]) -> int:
        """Returns how long the longest row can become if each gets so many tokens more."""
        return max((filled + more for filled, more in zip(self._filled, left, strict=True)), default=0)

    def size(self, rows: int, width: int, trunks: Sequence[int]) -> int:
        """Returns the tokens held with so many rows of a width, and with further trunks of some lengths."""
        own = max(rows * width, self._own.shape[2] * self._own.shape[4])
        return own + (len(self._lengths) + len(trunks)) * max(self._trunks.shape[4], *trunks, 0)

    def own(self, row: int) -> Tensor:
        """Returns what a row has added, ``(layers, 2, kv_heads, steps, head_dim)``: its last prompt token and on."""
        return self._own[:, :, row, :, self._begun[row] : self._filled[row]].clone()

    def keep(self, rows: Sequence[int]) -> None:
        """Goes on with these rows only, in this order; a row stays or takes the place of one that leaves."""
        for place, row in enumerate(rows):
            if place != row:
                self._own[:, :, place] = self._own[:, :, row]
        self._begun = [self._begun[row] for row in rows]
        self._filled = [self._filled[row] for row in rows]
        self._owners = [self._owners[row] for row in rows]
        alive = sorted({owner for owner in self._owners if owner is not None})
        if 2 * len(alive) <= len(self._lengths):  # copying all that is left pays only now and then
            self._lengths = [self._lengths[trunk] for trunk in alive]
            self._trunks = self._trunks[:, :, alive, :, : max(self._lengths, default=0)]
            new = {old: number for number, old in enumerate(alive)}
            self._owners = [None if owner is None else new[owner] for owner in self._owners]
        if rows:
            self._place()

    def _place(self) -> None:
        """Lays rows out as (trunk, seat), the seats of a trunk with fewer rows left empty."""
        device = self._own.device
        counts: dict[int, int] = {}
        sitting: list[int] = []
        seats: list[tuple[int, int]] = []
        for row, owner in enumerate(self._owners):
            if owner is not None:
                seats.append((owner, counts.get(owner, 0)))
                counts[owner] = seats[-1][1] + 1
                sitting.append(row)
        self._seats = max(counts.values(), default=0)
        self._seat = torch.tensor(
            [owner * self._seats + seat for owner, seat in seats], dtype=torch.long, device=device
        )
        self._sitting = torch.tensor(sitting, dtype=torch.long, device=device)
        self._row = torch.arange(len(self._owners), device=device)
        lengths = torch.tensor(self._lengths, dtype=torch.long, device=device)
        columns = torch.arange(self._trunks.shape[4], device=device)
        self._hidden = (columns[None] >= lengths[:, None])[:, None, None, :]
        self._aim()

    def _aim(self) -> None:
        """Points at where each row's next states go, and hides what lies beyond."""
        self._at = torch.tensor(self._filled, device=self._own.device)
        columns = torch.arange(self._own.shape[4], device=self._own.device)
        self._beyond = (columns[None] > self._at[:, None])[:, None, None, :]

    def _by_trunk(self, rows: Tensor) -> Tensor:
        """Turns ``(rows, kv_heads, share, n)`` into ``(trunks, kv_heads, seats * share, n)``."""
        _, kv_heads, share, n = rows.shape
        laid = rows.new_zeros(len(self._lengths) * self._seats, kv_heads, share, n)
        laid[self._seat] = rows[self._sitting]
        return laid.view(len(self._lengths), -1, kv_heads, share, n).transpose(1, 2).flatten(2, 3)

    def _by_row(self, laid: Tensor, rows: int, missing: float) -> Tensor:
        """Undoes `_by_trunk`; rows without a trunk get ``missing``."""
        trunks, kv_heads, places, n = laid.shape
        share = places // self._seats
        seats = laid.view(trunks, kv_heads, -1, share, n).transpose(1, 2).reshape(-1, kv_heads, share, n)
        if len(self._sitting) == rows:
            return seats[self._seat]
        found = laid.new_full((rows, kv_heads, share, n), missing)
        found[self._sitting] = seats[self._seat]
        return found


def _resized(held: Tensor, rows: int, places: int, tokens: int) -> Tensor:
    """Returns the first rows of states, ``(layers, 2, rows, kv_heads, tokens, head_dim)``, with room for others."""
    layers, _, _, heads, before, size = held.shape
    kept = min(before, tokens)
    resized = held.new_zeros(layers, 2, places, heads, tokens, size)
    resized[:, :, :rows, :, :kept] = held[:, :, :rows, :, :kept]
    return resized


def _write(states: Tensor, new: Sequence[Tensor], first: int) -> None:
    for row, kv in enumerate(new, first):
        states[:, :, row, :, : kv.shape[3]] = kv


def _weights(scores: Tensor) -> Tensor:
    return scores.softmax(-1, dtype=torch.float32).to(scores.dtype)


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
