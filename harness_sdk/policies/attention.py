"""Attention of the engine: packed prompts in prefill, and rows over shared trunks in decoding.

Both are reached through transformers' attention interface while `forward` runs a model. Which rows run together, and
what is kept of them, is `harness_sdk.policies.engine`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface

ATTENTION = "whale_shared_prefix"
GROWTH = 32
"""Tokens by which the room for sampled states grows."""


@dataclass(frozen=True, slots=True)
class Layer:
    """What one layer asks of attention.

    Attributes:
        index: Its number.
        scale: Factor of the scores.
        window: How many tokens back it sees, itself included; None sees all.
    """

    index: int
    scale: float
    window: int | None = None


class Prefill:
    """Attention of packed prompts: each sees its own past and itself."""

    def __init__(self, past: Sequence[Tensor | None], lengths: Sequence[int]) -> None:
        self._past, self._lengths = past, list(lengths)
        self._new: list[Tensor] = []

    def attend(self, at: Layer, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attends with one layer's queries, keys and values, ``(1, heads, tokens, head_dim)``, all prompts in a row."""
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
            mask, old = None, 0
            if past is not None:
                old = past.shape[3]
                k = torch.cat([past[at.index, 0][None].to(k.dtype), k], dim=2)
                v = torch.cat([past[at.index, 1][None].to(v.dtype), v], dim=2)
            windowed = at.window is not None and at.window < k.shape[2]
            if past is not None or windowed:
                mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril(old)
            if mask is not None and at.window is not None and windowed:
                mask = mask.triu(old - at.window + 1)
            outputs.append(
                functional.scaled_dot_product_attention(
                    q, k, v, attn_mask=mask, is_causal=mask is None, scale=at.scale, enable_gqa=True
                )
            )
        return torch.cat(outputs, dim=2)

    def collected(self) -> list[Tensor]:
        """Returns the new states per prompt, ``(layers, 2, kv_heads, length, head_dim)``."""
        return [kv.contiguous() for kv in torch.split(torch.stack(self._new), self._lengths, 3)]


class Decode:
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

    def attend(self, at: Layer, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attends with one layer's queries, keys and values, ``(rows, heads, 1, head_dim)``."""
        rows, heads, _, size = query.shape
        kv_heads = key.shape[1]
        share = heads // kv_heads
        own_k, own_v = self._own[at.index, :, :rows]  # contiguous: a slice of the tokens would be copied each time
        own_k[self._row, :, self._at] = key[:, :, 0]
        own_v[self._row, :, self._at] = value[:, :, 0]
        grouped = query[:, :, 0].view(rows, kv_heads, share, size) * at.scale
        scores = (grouped @ own_k.transpose(-1, -2)).masked_fill(self._beyond, -torch.inf)
        if at.window is not None:
            scores = scores.masked_fill(self._left_behind(at.window, own_k.shape[2], own=True), -torch.inf)
        if not self._lengths:
            alone: Tensor = _weights(scores) @ own_v
            return alone.reshape(rows, heads, 1, size)

        trunk_k, trunk_v = self._trunks[at.index]
        longest = trunk_k.shape[2]
        to_trunk = (self._by_trunk(grouped) @ trunk_k.transpose(-1, -2)).masked_fill(self._hidden, -torch.inf)
        to_trunk = self._by_row(to_trunk, rows, -torch.inf)
        if at.window is not None:
            to_trunk = to_trunk.masked_fill(self._left_behind(at.window, longest, own=False), -torch.inf)
        weights = _weights(torch.cat([to_trunk, scores], dim=-1))
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
        owned = [0 if owner is None else self._lengths[owner] for owner in self._owners]
        self._trunk_length = torch.tensor(owned, dtype=torch.long, device=device)
        columns = torch.arange(self._trunks.shape[4], device=device)
        self._hidden = (columns[None] >= lengths[:, None])[:, None, None, :]
        self._aim()

    def _aim(self) -> None:
        """Points at where each row's next states go, and hides what lies beyond."""
        self._at = torch.tensor(self._filled, device=self._own.device)
        columns = torch.arange(self._own.shape[4], device=self._own.device)
        self._beyond = (columns[None] > self._at[:, None])[:, None, None, :]

    def _left_behind(self, window: int, columns: int, *, own: bool) -> Tensor:
        """Returns what lies before each row's window, in the row's own states or in its trunk's, per row and column."""
        before = self._at if own else self._at + self._trunk_length
        distance = before[:, None] - torch.arange(columns, device=before.device)[None]
        return (distance >= window)[:, None, None, :]

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
    more = sorted(name for name in _UNKNOWN if kwargs.get(name) is not None)
    if more:
        raise ValueError(f"its attention takes {', '.join(more)}")
    scale = kwargs.get("scaling") or query.shape[-1] ** -0.5
    output = kwargs["states"].attend(Layer(module.layer_idx, scale, kwargs.get("sliding_window")), query, key, value)
    return output.transpose(1, 2).contiguous(), None


_UNKNOWN = ("softcap", "s_aux", "position_bias", "head_mask", "indices", "block_indices")
"""Arguments of attention, as transformers names them, that change what it computes and are not computed here."""

AttentionInterface.register(ATTENTION, _attention)


@contextmanager
def _shared_attention(model: Any) -> Iterator[None]:
    before = model.config._attn_implementation
    model.config._attn_implementation = ATTENTION
    try:
        yield
    finally:
        model.config._attn_implementation = before


def forward(model: Any, ids: list[int], positions: list[int], states: Prefill | Decode, *, packed: bool) -> Tensor:
    """Runs the model; one packed sequence, or one token per row. Returns the logits per row (empty when packed)."""
    shape = (1, -1) if packed else (-1, 1)
    ids_in = torch.tensor(ids, device=model.device).view(shape)
    positions_in = torch.tensor(positions, device=model.device).view(shape)
    fields = {"input_ids": ids_in, "position_ids": positions_in, "use_cache": False, "states": states}
    with _shared_attention(model):
        if packed:
            model.base_model(**fields)
            return ids_in.new_zeros(0)
        logits: Tensor = model(**fields).logits[:, -1]  # its own head: some scale or cap
    return logits
