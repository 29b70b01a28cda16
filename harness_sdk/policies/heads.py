"""A model's own head, at some places of a sequence only: what samples and what trains must use the same one.

Between the last hidden states and the logits some models do more than multiply with a matrix (Granite and Cohere scale,
Gemma caps), so the head is not computed here: the model's own forward pass runs, and its output layer is handed
the wanted places alone, since the logits of all would fill the memory.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor


def logits_at(model: Any, wanted: Tensor, **inputs: Any) -> Tensor:
    """Runs a causal language model of transformers and returns some of its logits.

    Args:
        model: The model.
        wanted: A mask of places, ``(rows, length)``.
        inputs: What the model's forward pass takes.

    Returns:
        Logits, ``(wanted places, vocabulary)``, rows one after another.
    """
    taken: list[bool] = []

    def take(layer: Any, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden, *rest = args
        taken.append(True)
        return (hidden[wanted][None], *rest)

    hook = model.get_output_embeddings().register_forward_pre_hook(take)
    try:
        logits: Tensor = model(**inputs, use_cache=False).logits
    finally:
        hook.remove()
    return logits[0] if taken else logits[wanted]
