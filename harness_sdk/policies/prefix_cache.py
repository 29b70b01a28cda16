"""A radix tree of key/value states by token ids, so that no prefix is computed twice.

The idea is RadixAttention's (SGLang, arXiv 2312.07104): prompts of one task, of one harness and of one episode's
successive turns share beginnings. Bounded in tokens; the least recently used leaves go first. Batching and attention
are `harness_sdk.policies.engine`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(slots=True, eq=False)
class _Node:
    ids: tuple[int, ...]
    kv: Tensor | None  # (layers, 2, kv_heads, len(ids), head_dim); None at the root
    parent: _Node | None
    used: int = 0
    children: dict[int, _Node] = field(default_factory=dict)


class PrefixCache:
    """Key/value states of token prefixes."""

    def __init__(self, capacity: int) -> None:
        """Builds an empty cache.

        Args:
            capacity: Tokens it may hold.
        """
        self.capacity = capacity
        self.tokens = 0
        self._clock = 0
        self._root = _Node((), None, None)

    def match(self, ids: Sequence[int]) -> tuple[int, list[Tensor]]:
        """Finds the longest known prefix.

        Args:
            ids: A prompt.

        Returns:
            Its length, and the states of its pieces, to be joined along dimension 3.
        """
        ids = tuple(ids)
        self._clock += 1
        node, length, pieces = self._root, 0, []
        while length < len(ids) and (child := node.children.get(ids[length])) is not None:
            shared = common_prefix(child.ids, ids[length:])
            child.used = self._clock
            assert child.kv is not None
            pieces.append(child.kv[:, :, :, :shared])
            length += shared
            if shared < len(child.ids):
                break
            node = child
        return length, pieces

    def insert(self, ids: Sequence[int], kv: Tensor, start: int) -> None:
        """Adds the states of ``ids[start:]``, whose prefix ``ids[:start]`` should be known.

        Args:
            ids: Token ids from the beginning.
            kv: Shape ``(layers, 2, kv_heads, len(ids) - start, head_dim)``.
            start: How many ids come before ``kv``.
        """
        ids = tuple(ids)
        self._clock += 1
        node, length = self._root, 0
        while length < len(ids) and (child := node.children.get(ids[length])) is not None:
            shared = common_prefix(child.ids, ids[length:])
            length += shared
            node = child if shared == len(child.ids) else self._split(child, shared)
            node.used = self._clock
        if length < start or length == len(ids):  # its beginning was evicted meanwhile, or nothing is new
            return
        node.children[ids[length]] = _Node(ids[length:], kv[:, :, :, length - start :], node, self._clock)
        self.tokens += len(ids) - length
        self._evict()

    def clear(self) -> None:
        """Forgets everything: the weights changed."""
        stack = [self._root]
        while stack:  # nodes know each other both ways, which would keep them until the garbage collector comes by
            node = stack.pop()
            stack.extend(node.children.values())
            node.children, node.parent, node.kv = {}, None, None
        self._root = _Node((), None, None)
        self.tokens = 0

    def _split(self, node: _Node, at: int) -> _Node:
        assert node.parent is not None and node.kv is not None
        head = _Node(node.ids[:at], node.kv[:, :, :, :at], node.parent, node.used, {node.ids[at]: node})
        node.parent.children[node.ids[0]] = head
        node.ids, node.kv, node.parent = node.ids[at:], node.kv[:, :, :, at:], head
        return head

    def _evict(self) -> None:
        while self.tokens > self.capacity:
            leaf = min(self._leaves(), key=lambda node: node.used)
            if leaf.used == self._clock or leaf.parent is None:
                return
            del leaf.parent.children[leaf.ids[0]]
            self.tokens -= len(leaf.ids)

    def _leaves(self) -> list[_Node]:
        leaves, stack = [], [self._root]
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            if not node.children:
                leaves.append(node)
        return leaves


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Returns how many leading ids two sequences share."""
    size = min(len(a), len(b))
    if a[:size] == b[:size]:
        return size
    return next(i for i in range(size) if a[i] != b[i])
