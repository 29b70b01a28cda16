"""Batched generation for agents over a Hugging Face causal language model, on a CPU or one GPU.

Rollouts of agents repeat themselves: G samples of one prompt, one system text over all prompts, a next turn that
extends the last. So a prefix is computed once (`PrefixCache`), prompts are packed end to end without padding, and in
decoding all rows of one prompt attend to one copy of its keys and values. Rows leave a batch when they are done and
others join it while the rest goes on. Plain `model.generate` repeats the prompt's cache for every sample and pads to
the longest; ``python -m benchmarks.generation`` measures the difference.

Works for models whose layers are softmax attention, over all tokens or a sliding window, behind transformers' attention
interface; others are refused here (serve those with vLLM). Each is tried on a few tokens first.
Text, chat templates and seeds are `harness_sdk.policies.transformers`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from harness_sdk.policies.attention import GROWTH, Decode, Prefill, forward
from harness_sdk.policies.base import Sampling
from harness_sdk.policies.prefix_cache import PrefixCache, common_prefix
from harness_sdk.policies.sampling import RowSampler
from whale_env.errors import InputError

PACK = 1024
"""Prompt tokens in one prefill pass."""
WORTH_SHARING = 16
"""Tokens that two prompts must share beyond what is cached for a pass of their own to pay."""
PROBE = tuple(range(7, 7 + 37 * 12, 37))
"""Token ids that a model is tried with."""
PRECISION = {torch.float64: 1e-3, torch.float32: 0.01}
"""How far log-probabilities may be from the model's own, nats; in other dtypes what is near may round far apart."""


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
            InputError: The engine does not compute what the model itself does.
        """
        kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
        if not kinds <= {"full_attention", "sliding_attention"} or not getattr(
            model, "_supports_attention_backend", False
        ):
            raise _unsupported(
                model, f"it has layers {sorted(kinds)}, not softmax attention behind transformers' interface"
            )
        self.model = model
        self.end_ids = end_ids
        self._prefill_model = model if prefill_model is None else prefill_model
        self.cache, self.batch_tokens = PrefixCache(2 * len(PROBE)), None
        self._try()
        room = None if memory is None else memory // self._token_bytes()
        self.cache = PrefixCache(cache_tokens if room is None else max(min(cache_tokens, room // 4), 1))
        # Half, since for a moment there are two copies of what grows.
        self.batch_tokens = None if room is None else (room - self.cache.capacity) // 2

    def _try(self) -> None:
        """Compares some log-probabilities with the model's own, which tells of all that is not done here."""
        config, ending = self.model.config.get_text_config(), self.end_ids
        probe = tuple(token % config.vocab_size for token in PROBE)
        row = Row(probe, 4, Sampling(0.0), 0)
        self.end_ids = frozenset()
        try:
            batch = self.start([row])
            while batch.rows:
                batch.step()
            with torch.inference_mode():
                ids = torch.tensor([(*probe, *row.ids)], device=self.model.device)
                own = self.model(input_ids=ids, use_cache=False).logits[0, len(probe) - 1 : -1].float().log_softmax(-1)
        except Exception as error:  # a model's code may fail in any way on what it was not made for
            reason = (str(error).strip().splitlines() or [""])[0]
            raise _unsupported(self.model, f"{type(error).__name__}: {reason:.200}") from error
        finally:
            self.end_ids = ending
        expected = own.gather(1, torch.tensor(row.ids, device=own.device)[:, None])[:, 0].tolist()
        off = sum(abs(a - b) for a, b in zip(row.logprobs, expected, strict=True)) / len(expected)
        if not off < max(PRECISION.get(model.dtype, 0.3) for model in (self.model, self._prefill_model)):
            raise _unsupported(self.model, f"its log-probabilities come out different here, by {off:.3g} on average")

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
        states = Prefill(past, lengths)
        forward(self._prefill_model, ids, positions, states, packed=True)
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
        config = self.model.config.get_text_config()
        heads = config.num_key_value_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return torch.zeros(
            config.num_hidden_layers, 2, heads, 0, size, dtype=self.model.dtype, device=self.model.device
        )


def _unsupported(model: Any, why: str) -> InputError:
    return InputError(
        f"{type(model).__name__} does not run in this engine: {why}. Serve it with VLLMPolicy or OpenAIPolicy."
    )


class Batch:
    """Rows being decoded together: they leave when they are done, and others join while the rest goes on.

    Attributes:
        rows: The rows that are not done.
    """

    def __init__(self, engine: Engine) -> None:
        self.rows: list[Row] = []
        self._engine = engine
        self._states = Decode(engine.empty())
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
            logits = forward(self._engine.model, last, positions, self._states, packed=False)
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
