"""One optimiser step: weighted maximum likelihood on samples, with fp32 master weights and AdamW.

Only ids that the model sampled are learnt, so that every model token of one step counts the same, whatever the
micro-batches. Which samples, and with which weight, is an update's business (`optimizers.weights.rsft`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from harness_sdk.policies.heads import logits_at
from harness_sdk.policies.loading import has_bfloat16
from harness_sdk.trajectory import Sample
from optimizers.config import TrainerConfig
from optimizers.weights.protocol import DivergedError


@dataclass(frozen=True, slots=True)
class OptimizerStep:
    """What one optimiser step did.

    Attributes:
        loss: Weighted mean negative log-probability of the model tokens, before the step, nats.
        tokens: Model tokens, repeats counted.
        grad_norm: Gradient norm before clipping.
        skipped: Whether the step was left out because the gradient was not finite.
    """

    loss: float
    tokens: int
    grad_norm: float
    skipped: bool = False


class Trainer:
    """Master weights in fp32 and their AdamW state."""

    def __init__(self, model: Any, config: TrainerConfig) -> None:
        """Takes over a model.

        Args:
            model: A causal language model of transformers in float32.
            config: How to update.
        """
        self.model = model.float().train().requires_grad_(True)
        self.config = config
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(),
            lr=config.lr,
            betas=(config.beta1, config.beta2),
            weight_decay=config.weight_decay,
        )
        self._device = next(self.model.parameters()).device
        self._mixed = has_bfloat16(self._device.type)
        self._bad_steps = 0

    def step(self, samples: Sequence[Sample], weights: Sequence[float] | None = None) -> OptimizerStep:
        """Takes one optimiser step on all samples together.

        Maximises ``(1/N) Σ w log p(token)`` over the N tokens that the model sampled. Equal samples are computed once.

        Args:
            samples: At least one, each with at least one sampled token after its first.
            weights: What each sample counts; negative makes it less likely. None: 1 each.

        Returns:
            What happened. A gradient that is not finite changes nothing.

        Raises:
            DivergedError: That has happened in too many steps in a row.
        """
        shares: dict[Sample, float] = defaultdict(float)
        for sample, weight in zip(samples, weights or [1.0] * len(samples), strict=True):
            shares[sample] += weight
        total = sum(sum(sample.mask[1:]) for sample in samples)
        if not total:
            raise ValueError("no sampled token to learn from")
        self.optimizer.zero_grad(set_to_none=True)
        loss = 0.0
        for batch in _micro_batches(list(shares), self.config.micro_tokens):
            part = -(self._log_likelihood(batch, [shares[sample] for sample in batch])) / total
            part.backward()  # type: ignore[no-untyped-call]
            loss += float(part.detach())
        norm = float(torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.max_grad_norm))
        if not math.isfinite(norm):
            return self._skip(OptimizerStep(loss, total, norm, skipped=True))
        self._bad_steps = 0
        if self.config.warmup_steps:
            share = min(1.0, (self._steps_taken() + 1) / self.config.warmup_steps)
            for group in self.optimizer.param_groups:
                group["lr"] = self.config.lr * share
        self.optimizer.step()
        return OptimizerStep(loss, total, norm)

    def _skip(self, step: OptimizerStep) -> OptimizerStep:
        self.optimizer.zero_grad(set_to_none=True)
        self._bad_steps += 1
        if self._bad_steps > self.config.max_bad_steps:
            raise DivergedError(
                f"the gradient was not finite in {self._bad_steps} optimiser steps in a row; lower --weights.lr "
                f"({self.config.lr:g}), or raise --weights.warmup-steps ({self.config.warmup_steps})"
            )
        return step

    def _steps_taken(self) -> int:
        """Returns how many steps AdamW remembers."""
        return next((int(state["step"]) for state in self.optimizer.state.values()), 0)

    def log_probs(self, sample: Sample) -> Tensor:
        """Returns the log-probability of each sampled id of a sample in fp32, shape ``(sampled ids,)``."""
        with torch.no_grad():
            return _sampled_log_probs(self.model, [sample], self._device)[0]

    def weights(self) -> Mapping[str, Tensor]:
        """Returns the master weights by parameter name (not copies)."""
        return {name: parameter.detach() for name, parameter in self.model.named_parameters()}

    def save(self, folder: Path, *, optimizer: bool = True) -> None:
        """Writes the weights as a transformers checkpoint's ``model.safetensors``, and the optimiser's state.

        Args:
            folder: An existing folder.
            optimizer: Whether to write the optimiser's state too.
        """
        save_file({name: weight.contiguous() for name, weight in self.weights().items()}, folder / "model.safetensors")
        self.model.config.save_pretrained(folder)
        if optimizer:
            torch.save(self.optimizer.state_dict(), folder / "optimizer.pt")

    def load(self, folder: Path) -> None:
        """Reads what `save` wrote."""
        stored = load_file(folder / "model.safetensors")
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(stored[name])
        if (folder / "optimizer.pt").is_file():
            self.optimizer.load_state_dict(torch.load(folder / "optimizer.pt", weights_only=True))

    def reset_optimizer(self) -> None:
        """Forgets the optimiser's moments."""
        self.optimizer.state.clear()

    def _log_likelihood(self, batch: Sequence[Sample], weights: Sequence[float]) -> Tensor:
        with torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=self._mixed):
            parts = _sampled_log_probs(self.model, batch, self._device)
        return torch.stack([weight * part.sum() for weight, part in zip(weights, parts, strict=True)]).sum()


def _sampled_log_probs(model: Any, batch: Sequence[Sample], device: torch.device) -> list[Tensor]:
    """Returns per sample the log-probabilities of its sampled ids; logits are computed at those places only."""
    longest = max(len(sample.ids) for sample in batch)
    ids = torch.zeros(len(batch), longest, dtype=torch.long)
    mask = torch.zeros(len(batch), longest, dtype=torch.bool)
    for row, sample in enumerate(batch):
        ids[row, : len(sample.ids)] = torch.tensor(sample.ids)
        mask[row, : len(sample.ids)] = torch.tensor(sample.mask, dtype=torch.bool)
    ids, mask = ids.to(device), mask.to(device)
    # Padding is on the right and attention is causal: no sampled place sees it.
    wanted = mask[:, 1:]
    logits = logits_at(model, wanted, input_ids=ids[:, :-1]).float()
    chosen = logits.gather(1, ids[:, 1:][wanted][:, None])[:, 0] - logits.logsumexp(-1)
    return list(torch.split(chosen, wanted.sum(1).tolist()))


def _micro_batches(samples: list[Sample], tokens: int) -> Iterator[list[Sample]]:
    """Groups samples of like length; a group's padded size stays within ``tokens`` where one sample does."""
    samples = sorted(samples, key=lambda sample: (len(sample.ids), sample.ids, sample.mask))
    batch: list[Sample] = []
    for sample in samples:
        if batch and (len(batch) + 1) * len(sample.ids) > tokens:
            yield batch
            batch = []
        batch.append(sample)
    if batch:
        yield batch
