"""A weight-transfer engine for vLLM that passes a file, so that `benchmarks.vllm_check` can try the path without GPUs.

Everything around it is what NCCL uses too: the handshake, the trainer's side driving the workers through
`TransferSync`, vLLM's layerwise reload. Only how bytes travel differs. Importing this registers the engine as ``file``,
in the process that trains and, through `Worker`, in vLLM's.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from safetensors.torch import load_file, save_file
from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from harness_sdk.policies import vllm_sync
from harness_sdk.policies.vllm_engines import HeadPacker

NAME = "file"


class Worker(HeadPacker):
    """Mixed into vLLM's workers, which import this module for it."""


@dataclass
class Start(TrainerInitInfo):  # type: ignore[misc]
    """The trainer's side needs nothing."""

    backend: ClassVar[str] = NAME


@dataclass
class Init(WeightTransferInitInfo):  # type: ignore[misc]
    """The folder to expect files in."""

    folder: str


@dataclass
class Update(WeightTransferUpdateInfo):  # type: ignore[misc]
    """The file with the weights, and what must be in it."""

    file: str
    names: list[str]


class Sender(TrainerWeightTransferEngine):  # type: ignore[misc]
    """The side that trains."""

    init_info_cls = Start

    @classmethod
    def trainer_init(cls, init_info: Start, *, client: Any, source: Any = None) -> Sender:
        """Makes the folder and tells the workers."""
        sender = cls(client=client, source=source)
        sender.folder = tempfile.TemporaryDirectory(prefix="whale-transfer-")
        client.init_weight_transfer_engine({"folder": sender.folder.name})
        return sender

    def send_weights(self) -> None:
        """Writes the file and lets the workers read it."""
        file = Path(self.folder.name) / "weights.safetensors"
        save_file({name: tensor.clone() for name, tensor in self.source}, file)
        self.client.start_weight_update()
        self.client.update_weights({"file": str(file), "names": [meta.name for meta in self.source.metadata()]})
        self.client.finish_weight_update()

    def shutdown(self) -> None:
        """Removes the folder."""
        self.folder.cleanup()


class Receiver(WeightTransferEngine):  # type: ignore[misc]
    """The side of a worker."""

    init_info_cls = Init
    update_info_cls = Update

    def init_transfer_engine(self, init_info: Init) -> None:
        """Remembers the folder."""
        self.folder = Path(init_info.folder)

    def start_weight_update(self) -> None:
        """Prepares the layers."""
        initialize_layerwise_reload(self.model)

    def finish_weight_update(self) -> None:
        """Uses what was loaded."""
        finalize_layerwise_reload(self.model, self.model_config)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Loads the file; there is no device to wait for."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: Update) -> None:
        """Loads the file."""
        file = Path(update_info.file)
        if file.parent != self.folder:
            raise ValueError(f"{file} is not in the folder that was agreed on, {self.folder}")
        weights = load_file(file)
        self.model.load_weights([(name, weights[name]) for name in update_info.names])

    def shutdown(self) -> None:
        """Nothing is open."""


WeightTransferEngineFactory.register_engine(NAME, Receiver)
WeightTransferTrainerFactory.register_engine(NAME, Sender)
vllm_sync.START[NAME] = lambda workers: Start(rank=0)
