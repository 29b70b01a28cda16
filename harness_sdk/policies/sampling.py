"""Drawing tokens for a batch whose rows each have their own settings and their own random stream."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from harness_sdk.policies.base import Sampling


class RowSampler:
    """Draws one token per row and step: top-k, top-p, min-p, temperature; greedy at temperature 0.

    Each row draws from its own seeded stream, so what one row gets does not depend on the others in the batch.
    """

    def __init__(self, settings: Sequence[Sampling] = (), seeds: Sequence[int] = ()) -> None:
        """Prepares a batch; see `add`."""
        self._settings: list[Sampling] = []
        self._streams: list[np.random.Generator] = []
        self.add(settings, seeds)

    def add(self, settings: Sequence[Sampling], seeds: Sequence[int]) -> None:
        """Adds rows at the end.

        Args:
            settings: Sampling of each row.
            seeds: Seed of each row.
        """
        self._settings += settings
        self._streams += [np.random.Generator(np.random.Philox(key=seed)) for seed in seeds]

    def keep(self, rows: Sequence[int]) -> None:
        """Goes on with these rows only, in this order."""
        self._settings = [self._settings[row] for row in rows]
        self._streams = [self._streams[row] for row in rows]

    def draw(self, logits: Tensor) -> tuple[list[int], list[float]]:
        """Draws one token per row.

        Args:
            logits: Shape ``(rows, vocabulary)``.

        Returns:
            The tokens, and their natural-log probabilities under the unmodified softmax.
        """
        logits = logits.float()
        total = logits.logsumexp(-1)
        vocabulary = logits.shape[-1]
        widths = [1 if s.temperature == 0 else (s.top_k or vocabulary) for s in self._settings]
        values, indices = logits.topk(min(max(widths), vocabulary), dim=-1)
        chosen = self._choose(values, torch.tensor(widths))
        tokens = indices.gather(1, chosen[:, None])[:, 0]
        logprobs = values.gather(1, chosen[:, None])[:, 0] - total
        return tokens.tolist(), logprobs.tolist()

    def _choose(self, values: Tensor, widths: Tensor) -> Tensor:
        device = values.device
        uniform = torch.tensor([stream.random() for stream in self._streams], device=device)
        temperature = torch.tensor([s.temperature or 1.0 for s in self._settings], device=device)
        top_p = torch.tensor([s.top_p for s in self._settings], device=device)
        min_p = torch.tensor([s.min_p for s in self._settings], device=device)
        rank = torch.arange(values.shape[1], device=device)
        probabilities = (values / temperature[:, None]).masked_fill(rank >= widths.to(device)[:, None], -torch.inf)
        probabilities = probabilities.softmax(-1)
        before = probabilities.cumsum(-1) - probabilities
        dropped = (before >= top_p[:, None]) | (probabilities < min_p[:, None] * probabilities[:, :1])
        dropped[:, 0] = False
        cumulative = probabilities.masked_fill(dropped, 0.0).cumsum(-1)
        target = (uniform * cumulative[:, -1])[:, None].contiguous()
        return torch.searchsorted(cumulative, target, right=True)[:, 0].clamp(max=values.shape[1] - 1)
