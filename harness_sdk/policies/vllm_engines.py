"""The two ways to a vLLM engine, behind one small interface: in this process, or a running server over HTTP.

Token ids go in and out of both. What the policy does with them is `harness_sdk.policies.vllm`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlencode

from harness_sdk.policies.api import ApiClient, ApiConfig
from harness_sdk.policies.base import PolicyError


@dataclass(frozen=True, slots=True)
class Sampled:
    """What one request gave.

    Attributes:
        ids: Sampled ids.
        logprobs: Natural-log probability of each.
        finish: vLLM's finish reason.
        cached: Prompt tokens that the prefix cache saved (0 where a server does not tell).
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: str | None
    cached: int


@dataclass(frozen=True, slots=True)
class Shape:
    """What must be known of an engine.

    Attributes:
        context: Longest prompt and completion together, in tokens.
        dtype: The torch dtype it computes in.
        packs: Whether it computes with packed copies of its weights, as on a CPU (`HeadPacker`).
        workers: Processes that hold weights.
    """

    context: int
    dtype: Any
    packs: bool
    workers: int


class VLLMEngine(Protocol):
    """A vLLM engine. Every method may raise what vLLM or HTTP raises; the policy turns it into `PolicyError`."""

    shape: Shape

    async def sample(self, ids: Sequence[int], params: Mapping[str, Any]) -> Sampled:
        """Samples one completion.

        Args:
            ids: The prompt.
            params: vLLM's ``SamplingParams``.
        """
        ...

    async def pause(self) -> None:
        """Lets the requests under way end, and holds new ones."""
        ...

    async def resume(self) -> None:
        """Undoes `pause`."""
        ...

    async def checksums(self) -> Any:
        """Returns checksums of the weights, comparable to others of the same engine."""
        ...

    async def call(self, method: str, arguments: Mapping[str, Any] | None = None) -> None:
        """Calls a method of every worker (``collective_rpc``)."""
        ...

    async def forget(self) -> bool:
        """Drops all cached prefixes; returns whether none is left."""
        ...

    async def sleep(self, level: int) -> None:
        """Gives memory back; level 2 discards the weights."""
        ...

    async def wake(self, tags: list[str] | None = None) -> None:
        """Takes memory again: for all, or for ``weights`` or ``kv_cache``."""
        ...

    async def transfer(self, step: str, info: Any = None) -> None:
        """Takes a step of vLLM's weight transfer: ``init``, ``start``, ``update`` or ``finish``."""
        ...

    async def close(self) -> None:
        """Ends it, or the connections to it."""
        ...


class LocalEngine:
    """vLLM's ``AsyncLLM`` in this process (its workers are others)."""

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        """Starts an engine; call it on the event loop that is to serve it.

        Args:
            arguments: vLLM's ``AsyncEngineArgs``.
        """
        from vllm import AsyncEngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM

        packs = bool(current_platform.is_cpu())
        extension = {"worker_extension_cls": f"{__name__}.{HeadPacker.__name__}"} if packs else {}
        self._llm: Any = AsyncLLM.from_engine_args(AsyncEngineArgs(**{**extension, **arguments}))
        config, parallel = self._llm.vllm_config.model_config, self._llm.vllm_config.parallel_config
        self.shape = Shape(
            int(config.max_model_len),
            config.dtype,
            packs,
            parallel.world_size * parallel.data_parallel_size,
        )
        self._numbers = itertools.count()

    async def sample(self, ids: Sequence[int], params: Mapping[str, Any]) -> Sampled:
        """See `VLLMEngine.sample`."""
        from vllm import SamplingParams
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind

        asked = SamplingParams(**params, output_kind=RequestOutputKind.FINAL_ONLY)
        async for output in self._llm.generate(tokens_input(list(ids)), asked, f"whale-{next(self._numbers)}"):
            if output.finished:
                said = output.outputs[0]
                rows = zip(said.logprobs, said.token_ids, strict=True)
                logprobs = tuple(float(row[token].logprob) for row, token in rows)
                return Sampled(tuple(said.token_ids), logprobs, said.finish_reason, output.num_cached_tokens or 0)
        raise PolicyError("the engine gave no output")

    async def pause(self) -> None:
        """See `VLLMEngine.pause`."""
        await self._llm.pause_generation(mode="wait", clear_cache=False)

    async def resume(self) -> None:
        """See `VLLMEngine.resume`."""
        await self._llm.resume_generation()

    async def checksums(self) -> Any:
        """See `VLLMEngine.checksums`."""
        return await self._llm.compute_weight_checksums()

    async def call(self, method: str, arguments: Mapping[str, Any] | None = None) -> None:
        """See `VLLMEngine.call`."""
        await self._llm.collective_rpc(method, kwargs=dict(arguments or {}))

    async def forget(self) -> bool:
        """See `VLLMEngine.forget`."""
        return bool(await self._llm.reset_prefix_cache())

    async def sleep(self, level: int) -> None:
        """See `VLLMEngine.sleep`."""
        await self._llm.sleep(level=level)

    async def wake(self, tags: list[str] | None = None) -> None:
        """See `VLLMEngine.wake`."""
        await self._llm.wake_up(tags=tags)

    async def transfer(self, step: str, info: Any = None) -> None:
        """See `VLLMEngine.transfer`."""
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest

        match step:
            case "init":
                await self._llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info=info))
            case "start":
                await self._llm.start_weight_update()
            case "update":
                await self._llm.update_weights(WeightTransferUpdateRequest(update_info=info))
            case _:
                await self._llm.finish_weight_update()

    async def close(self) -> None:
        """See `VLLMEngine.close`."""
        llm, self._llm = self._llm, None
        llm.shutdown()


class ServerEngine:
    """A vLLM server.

    Sampling works with any. What changes the server (weights, sleep, the prefix cache) needs one that was started with
    ``VLLM_SERVER_DEV_MODE=1``, which must not be open to the world.
    """

    def __init__(self, url: str, api_key: str | None, timeout: float, concurrency: int = 1024) -> None:
        """Prepares; `connect` asks the server what it is.

        Args:
            url: Where it is, such as ``http://localhost:8000``.
            api_key: Its key; None reads ``VLLM_API_KEY``.
            timeout: Seconds for one request.
            concurrency: Requests at a time.
        """
        root = url.rstrip("/").removesuffix("/v1")
        samples = ApiConfig("openai", "VLLM_API_KEY", root, concurrency, timeout, 4)
        orders = ApiConfig("openai", "VLLM_API_KEY", root, 1, timeout, 0)  # not all can be given twice
        self._samples, self._orders = (ApiClient(config, "AsyncOpenAI", api_key) for config in (samples, orders))
        self.where = self._orders.where

    async def connect(self) -> None:
        """Learns the server's shape.

        Raises:
            PolicyError: It cannot be reached, or is not vLLM.
        """
        import torch

        models = (await self._get(self._samples, "/v1/models")).get("data")
        model = models[0] if isinstance(models, list) and models else None
        context = model.get("max_model_len") if isinstance(model, dict) else None
        if not isinstance(model, dict) or not isinstance(context, int):
            raise PolicyError(f"{self.where} does not tell its model's length: it is not a vLLM server")
        self._model = str(model.get("id"))
        try:
            config = (await self._get(self._orders, "/server_info", {"config_format": "json"}))["vllm_config"]
            kind = str(config["model_config"]["dtype"]).removeprefix("torch.")
            device = str(config["device_config"]["device"])
            workers = int((await self._get(self._orders, "/get_world_size"))["world_size"])
            self.missing = ""
        except (PolicyError, KeyError, TypeError) as error:
            kind, device, workers = "float32", "", 1
            self.missing = (
                f"{self.where} takes no orders ({type(error).__name__}: {error}); start it with "
                "VLLM_SERVER_DEV_MODE=1, closed to the world"
            )
        self.shape = Shape(context, getattr(torch, kind), device == "cpu", workers)

    async def sample(self, ids: Sequence[int], params: Mapping[str, Any]) -> Sampled:
        """See `VLLMEngine.sample`."""
        body = {"model": self._model, "prompt": list(ids), "return_token_ids": True, **params}
        answer = await self._post(self._samples, "/v1/completions", body)
        try:
            choice = answer["choices"][0]
            said = tuple(int(token) for token in choice["token_ids"])
            logprobs = tuple(float(value) for value in choice["logprobs"]["token_logprobs"])
            details = (answer.get("usage") or {}).get("prompt_tokens_details") or {}
            cached = int(details.get("cached_tokens") or 0)
            finish = choice.get("finish_reason")
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            raise PolicyError(f"{self.where}: the answer holds no completion: {answer!r:.200}") from None
        if len(logprobs) != len(said):
            raise PolicyError(f"{self.where}: {len(said)} token ids but {len(logprobs)} log-probabilities")
        return Sampled(said, logprobs, finish if isinstance(finish, str) else None, cached)

    async def pause(self) -> None:
        """See `VLLMEngine.pause`."""
        await self._order("/pause", query={"mode": "wait", "clear_cache": "false"})

    async def resume(self) -> None:
        """See `VLLMEngine.resume`."""
        await self._order("/resume")

    async def checksums(self) -> Any:
        """See `VLLMEngine.checksums`."""
        return (await self._order("/weight_checker", {"action": "checksum"})).get("checksums")

    async def call(self, method: str, arguments: Mapping[str, Any] | None = None) -> None:
        """See `VLLMEngine.call`."""
        await self._order("/collective_rpc", {"method": method, "kwargs": dict(arguments or {})})

    async def forget(self) -> bool:
        """See `VLLMEngine.forget`."""
        return bool((await self._order("/reset_prefix_cache")).get("success"))

    async def sleep(self, level: int) -> None:
        """See `VLLMEngine.sleep`."""
        await self._order("/sleep", query={"level": level})

    async def wake(self, tags: list[str] | None = None) -> None:
        """See `VLLMEngine.wake`."""
        await self._order("/wake_up", query={"tags": tags} if tags else None)

    async def transfer(self, step: str, info: Any = None) -> None:
        """See `VLLMEngine.transfer`."""
        paths = {"init": "/init_weight_transfer_engine", "start": "/start_weight_update", "update": "/update_weights"}
        body = {"init": {"init_info": info}, "update": {"update_info": info}}.get(step)
        await self._order(paths.get(step, "/finish_weight_update"), body)

    async def close(self) -> None:
        """See `VLLMEngine.close`."""
        await self._samples.close()
        await self._orders.close()

    async def _order(self, path: str, body: Any = None, query: Mapping[str, Any] | None = None) -> dict[str, Any]:
        if self.missing:
            raise PolicyError(self.missing)
        return await self._post(self._orders, path, body, query)

    @staticmethod
    async def _post(client: ApiClient, path: str, body: Any, query: Mapping[str, Any] | None = None) -> dict[str, Any]:
        async def call(sdk: Any) -> Any:
            return await sdk.post(_with(path, query), body=body, cast_to=str)

        return await client.send(call)

    @staticmethod
    async def _get(client: ApiClient, path: str, query: Mapping[str, Any] | None = None) -> dict[str, Any]:
        async def call(sdk: Any) -> Any:
            return await sdk.get(_with(path, query), cast_to=str)

        return await client.send(call)


def _with(path: str, query: Mapping[str, Any] | None) -> str:
    """Returns a path with its query; lists as the server reads them, a field for each item."""
    return f"{path}?{urlencode(query, doseq=True)}" if query else path


class HeadPacker:
    """Mixed into vLLM's workers on a CPU, where layers compute with packed copies of their weights.

    A head that is tied to the embeddings has no weights of its own in a checkpoint, so `reload_weights` does not pack
    it again (vLLM 0.32): without this, new weights would answer through the old head. A server needs the flag
    ``--worker-extension-cls harness_sdk.policies.vllm_engines.HeadPacker``.
    """

    model_runner: Any

    def pack_heads(self) -> int:
        """Packs the heads' weights anew.

        Returns:
            How many there were.
        """
        packed = 0
        for layer in self.model_runner.get_model().modules():
            # Other layers drop their plain weights once packed, and are packed by the reload.
            if hasattr(layer, "cpu_linear") and layer.weight.numel():
                layer.quant_method.process_weights_after_loading(layer)
                packed += 1
        return packed
