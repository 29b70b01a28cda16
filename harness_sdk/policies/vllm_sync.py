"""How new weights reach vLLM: as a checkpoint on the RAM disk, or by vLLM's own transfer from GPU to GPU.

When to send, and whether what was sent has arrived, is `harness_sdk.policies.vllm`.
"""

from __future__ import annotations

import hashlib
import shutil
import socket
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from harness_sdk.policies.base import PolicyError
from harness_sdk.policies.vllm_engines import VLLMEngine
from whale_env.errors import InputError

RAM_DISK = Path("/dev/shm")

Weights = Mapping[str, Any]
"""Tensors by their names in the checkpoint that vLLM was built from."""
Run = Callable[[Coroutine[Any, Any, Any]], Any]
"""Does something on the engine's event loop and waits for it."""


class WeightSync(Protocol):
    """Brings weights to an engine that is paused."""

    def send(self, weights: Weights) -> None:
        """Returns once every worker has them.

        Raises:
            PolicyError: They cannot be sent.
        """
        ...

    def close(self) -> None:
        """Ends connections."""
        ...


def fingerprint(weights: Weights, dtype: Any) -> str:
    """Returns a hash of what weights are in a dtype; computed where they lie, a number per tensor."""
    import torch

    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().to(dtype).contiguous()
        columns = tensor.view(whole).reshape(-1, tensor.shape[-1] if tensor.ndim else 1).sum(0, dtype=torch.int64)
        odd = 2 * torch.arange(len(columns), device=columns.device) + 1
        digest.update(f"{name} {tuple(tensor.shape)} {int((columns * odd).sum())}\n".encode())
    return digest.hexdigest()


class CheckpointSync:
    """Writes a checkpoint that vLLM reloads: for any number of GPUs, and for a CPU."""

    def __init__(self, engine: VLLMEngine, run: Run, source: str) -> None:
        """Prepares.

        Args:
            engine: What takes the weights.
            run: Its event loop.
            source: The checkpoint that it was built from.
        """
        self._engine, self._run, self._source = engine, run, Path(source)

    def send(self, weights: Weights) -> None:
        """See `WeightSync.send`."""
        target = Path(tempfile.mkdtemp(prefix="whale-weights-", dir=RAM_DISK if RAM_DISK.is_dir() else None))
        try:
            self._write(weights, target)
            self._run(self._engine.call("reload_weights", {"weights_path": str(target)}))
        finally:
            shutil.rmtree(target, ignore_errors=True)

    def close(self) -> None:
        """Nothing is open."""

    def _write(self, weights: Weights, target: Path) -> None:
        from safetensors.torch import save_file

        dtype = self._engine.shape.dtype
        size = sum(tensor.numel() for tensor in weights.values()) * dtype.itemsize
        free = shutil.disk_usage(target).free
        if size > free:
            raise PolicyError(f"the weights take {size / 1e9:.1f} GB; {target.parent} has {free / 1e9:.1f} GB free")
        # Tied parameters share storage, which the format refuses: each is copied.
        tensors = {name: tensor.detach().to("cpu", dtype, copy=True) for name, tensor in weights.items()}
        save_file(
            {name: tensor.contiguous() for name, tensor in tensors.items()},
            target / "model.safetensors",
            {"format": "pt"},
        )
        config = self._source / "config.json"
        if config.is_file():
            shutil.copy(config, target)


class TransferSync:
    """Sends weights through one of vLLM's weight-transfer engines (``nccl``: from GPU to GPUs).

    vLLM calls the methods named after its own on the side that trains (its ``VLLMWeightSyncClient``).
    """

    def __init__(self, engine: VLLMEngine, run: Run, backend: str) -> None:
        """Prepares; the connection is made with the first weights.

        Args:
            engine: What takes the weights, built with `transfer_arguments`.
            run: Its event loop.
            backend: A name in `START`.
        """
        self._engine, self._run, self._backend = engine, run, backend
        self._source: Any = None
        self._trainer: Any = None

    def send(self, weights: Weights) -> None:
        """See `WeightSync.send`."""
        if self._trainer is None:
            from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

            self._source = _source(self._engine.shape.dtype)
            self._source.weights = weights
            start = START[self._backend](self._engine.shape.workers)
            self._trainer = WeightTransferTrainerFactory.trainer_init(start, client=self, source=self._source)
        self._source.weights = weights
        try:
            self._trainer.send_weights()
        finally:
            self._source.weights = {}

    def close(self) -> None:
        """See `WeightSync.close`."""
        if self._trainer is not None:
            self._trainer.shutdown()

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Lets the workers connect."""
        self._run(self._engine.transfer("init", init_info))

    def start_weight_update(self) -> None:
        """Lets the workers prepare."""
        self._run(self._engine.transfer("start"))

    def update_weights(self, update_info: Any) -> None:
        """Lets the workers receive."""
        self._run(self._engine.transfer("update", update_info))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Lets the workers use what they received."""
        self._run(self._engine.transfer("finish"))


def transfer_arguments(backend: str) -> dict[str, Any]:
    """Returns the engine arguments that a transfer needs.

    Raises:
        InputError: There is no such backend.
    """
    if backend not in START:
        raise InputError(f"unknown weight_sync {backend!r}; use checkpoint or {' or '.join(START)}")
    return {"weight_transfer_config": {"backend": backend}}


def _nccl(workers: int) -> Any:
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return NCCLTrainerInitInfo(rank=0, master_address="127.0.0.1", master_port=port, world_size=1 + workers)


START: dict[str, Callable[[int], Any]] = {"nccl": _nccl}
"""Backend → what vLLM's trainer side starts from, given the number of workers. Others can be added."""


def _source(dtype: Any) -> Any:
    """Returns a ``WeightSource`` of vLLM over the tensors in its attribute ``weights``."""
    import torch
    from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

    class Source(WeightSource):  # type: ignore[misc]
        weights: Weights = {}  # noqa: RUF012

        def metadata(self) -> list[Any]:
            return [ParamMeta(name, dtype, tuple(tensor.shape)) for name, tensor in self.weights.items()]

        def __iter__(self) -> Iterator[tuple[str, Any]]:
            place = torch.accelerator.current_accelerator() or torch.device("cpu")
            for name, tensor in self.weights.items():
                yield name, tensor.detach().to(place, dtype).contiguous()

    return Source()
