"""`TransformersPolicy`: a Hugging Face model in this process, for a laptop's CPU or one small GPU.

Collects the requests of all running episodes into a running batch of `harness_sdk.policies.engine`, and takes new
weights between batches. Messages become ids in `harness_sdk.policies.chat`. For large models use vLLM.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness_sdk import models
from harness_sdk.policies import dtypes
from harness_sdk.policies.base import Gate, Generation, PolicyError, Request
from harness_sdk.policies.chat import ChatEncoder
from harness_sdk.policies.loading import as_set, default_device, device_memory, load, load_tokenizer, release_memory
from harness_sdk.types import Message, ToolSchema

if TYPE_CHECKING:
    from harness_sdk.policies.engine import Batch, Row


@dataclass(slots=True, eq=False)
class _Pending:
    request: Request
    prompt_text: str
    prompt_ids: tuple[int, ...]
    future: asyncio.Future[Generation]


class TransformersPolicy:
    """A causal language model of transformers, with batched, prefix-sharing generation.

    Attributes:
        model: The rollout model. Trainers keep their own master weights and call `load_weights`.
        tokenizer: Its tokenizer.
        dtype: What it computes in, ``decode`` or ``prefill/decode``.
        weights_version: Version of the weights it samples with.
    """

    def __init__(
        self,
        model: str | Any = "smollm2-135m",
        *,
        tokenizer: Any = None,
        dtype: str = "auto",
        device: str = "auto",
        max_rows: int = 128,
        cache_tokens: int = 32768,
        memory: float | None = None,
        thinking: bool | None = None,
    ) -> None:
        """Loads a model.

        Args:
            model: A name for `harness_sdk.models.resolve`, or a loaded model (then give its tokenizer).
            tokenizer: A loaded tokenizer; None loads the one beside the model.
            dtype: A dtype's name, two with a slash between them (prompts in the first, sampling in the second, which
                keeps two copies of the weights), or ``auto``: the fastest, measured once (`dtypes`).
            device: ``auto`` (a GPU if there is one), or a torch device.
            max_rows: Sequences decoded at once.
            cache_tokens: Tokens the prefix cache may hold.
            memory: Bytes that cached prefixes and running sequences may take; None takes a quarter of the device's.
                What does not fit waits, or is computed again.
            thinking: Whether the chat template lets the model think; None leaves it to the template.

        Raises:
            harness_sdk.models.ModelNotFoundError: There is no such model.
            InputError: The model's architecture is not supported by the engine.
        """
        import torch

        from harness_sdk.policies.engine import Engine

        place = default_device() if device == "auto" else device
        second = None
        if isinstance(model, str):
            source = models.resolve(model)
            chosen = dtypes.fastest(source, place) if dtype == "auto" else dtypes.read(dtype)
            model = load(source, getattr(torch, chosen.decode))
            if chosen.prefill != chosen.decode:
                second = load(source, getattr(torch, chosen.prefill)).to(place).eval().requires_grad_(False)
            tokenizer = tokenizer or load_tokenizer(source)
        self.model = model.to(place).eval().requires_grad_(False)
        self._models = [self.model] if second is None else [self.model, second]
        self.dtype = "/".join(str(one.dtype).removeprefix("torch.") for one in reversed(self._models))
        self.tokenizer = tokenizer
        self.weights_version = 0
        self.max_rows = max_rows
        self._chat = ChatEncoder(
            tokenizer, {tokenizer.eos_token_id, *as_set(model.generation_config.eos_token_id)}, thinking
        )
        budget = device_memory(place) // 4 if memory is None else int(memory)
        self._engine = Engine(model, self._chat.end_ids, cache_tokens, memory=budget, prefill_model=second)
        self._context = int(getattr(model.config, "max_position_embeddings", 0) or 2**31)
        self._pending: list[_Pending] = []
        self._active: dict[int, tuple[Row, _Pending]] = {}
        self._worker: asyncio.Task[None] | None = None

    async def generate(self, request: Request) -> Generation:
        """Answers one request, batched with those of the other running episodes.

        Raises:
            PromptTooLongError: The prompt exceeds the request's or the model's limit.
            PolicyError: Generation failed.
        """
        text, ids = self._chat.encode_request(request, self._context)
        loop = asyncio.get_running_loop()
        pending = _Pending(request, text, ids, loop.create_future())
        self._pending.append(pending)
        if self._worker is None or self._worker.done() or self._worker.get_loop() is not loop:
            self._worker = loop.create_task(self._serve())
        return await pending.future

    def load_weights(self, weights: Mapping[str, Any], version: int) -> None:
        """Takes new weights and forgets every cached prefix.

        Args:
            weights: Tensors by parameter name, any dtype.
            version: Their version.

        Raises:
            ValueError: A parameter is missing.
        """
        import torch

        missing = sorted({name for name, _ in self.model.named_parameters()} - set(weights))
        if missing:
            raise ValueError(f"weights lack {len(missing)} parameters, the first {missing[0]!r}")
        with torch.no_grad():
            for model in self._models:
                for name, parameter in model.named_parameters():
                    parameter.copy_(weights[name])
        self.forget()
        self.weights_version = version

    def forget(self) -> None:
        """Drops every cached prefix and gives the memory back.

        What is cached decides how prompts are computed, and so the last bits of low-precision results. Work that must
        repeat exactly, after a restart too, begins from an empty cache.
        """
        self._engine.cache.clear()
        release_memory()

    def encode(
        self, messages: list[Message], tools: list[ToolSchema], previous: Generation | None = None
    ) -> tuple[str, tuple[int, ...]]:
        """Turns a prompt into text and exact ids (see `ChatEncoder.encode`)."""
        return self._chat.encode(messages, tools, previous)

    async def _serve(self) -> None:
        """Answers until nothing is asked: rows leave the batch when done, and what is asked meanwhile joins it.

        Joining waits until every running episode has either asked or ended (`_settle`), so that batches depend on the
        episodes alone and not on timing. It costs a wait and a small prefill, so it is done once a fifth of the rows
        could be new.
        """
        while self._pending:
            self._active = {}
            try:
                await self._serve_batch(self._engine.start())
            except Exception as error:
                failed = [item for _, item in self._active.values()]
                if not failed:
                    failed, self._pending = self._pending, []
                for item in failed:
                    if not item.future.done():
                        item.future.set_exception(PolicyError(f"{type(error).__name__}: {error}"))
                await asyncio.sleep(0)

    async def _serve_batch(self, batch: Batch) -> None:
        fresh = 0  # rows that may have come to wait since others joined
        while self._pending or batch.rows:
            if 4 * fresh >= len(batch.rows):
                await self._settle()
                self._admit(batch)
                fresh = len(self._pending)
            done = batch.step()
            fresh += len(done)
            for row in done:
                _, item = self._active.pop(id(row))
                if not item.future.done():
                    item.future.set_result(self._generation(item, row))
            await asyncio.sleep(0)

    async def _settle(self) -> None:
        """Waits until every running episode has asked."""
        quiet = spins = 0
        while quiet < 3:
            await asyncio.sleep(0 if spins < 50 else 0.001)
            spins += 1
            asked: dict[int, int] = {}
            gates: dict[int, Gate] = {}
            for item in [*self._pending, *(item for _, item in self._active.values())]:
                if item.request.gate is not None:
                    gates[id(item.request.gate)] = item.request.gate
                    asked[id(item.request.gate)] = asked.get(id(item.request.gate), 0) + 1
            quiet = quiet + 1 if all(asked[key] >= gate.running for key, gate in gates.items()) else 0

    def _admit(self, batch: Batch) -> None:
        """Moves what waits into the batch, as far as there is room."""
        from harness_sdk.policies.engine import Row

        self._pending.sort(key=lambda item: (item.prompt_ids, item.request.seed))
        rows = []
        for item in self._pending[: self.max_rows - len(batch.rows)]:
            request = item.request
            longest = min(request.max_tokens, self._context - len(item.prompt_ids))
            rows.append(Row(item.prompt_ids, longest, request.sampling, request.seed, self._chat.stopper(request.stop)))
        rows = rows[: batch.fits(rows)]
        joining, self._pending = self._pending[: len(rows)], self._pending[len(rows) :]
        self._active |= {id(row): (row, item) for row, item in zip(rows, joining, strict=True)}
        batch.add(rows)

    def _generation(self, item: _Pending, row: Any) -> Generation:
        ids = tuple(row.ids)
        completion = self._chat.completion(ids, "stop" if row.ended else "length", item.request.tools)
        return Generation(completion, item.prompt_text, item.prompt_ids, ids, tuple(row.logprobs), self.weights_version)
