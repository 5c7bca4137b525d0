"""Which cached block goes first. A policy orders; the mechanism in prefix_cache.py says who may be chosen at all."""

from __future__ import annotations

import heapq
from typing import Protocol

from server.kv.node import Node

_COMPACT_ABOVE = 64


class EvictionPolicy(Protocol):
    """Orders unreferenced leaves. Deterministic: equal histories choose equal victims. Engine thread only."""

    def add(self, node: Node) -> None:
        """The node has become an unreferenced leaf. ``node.last_use`` and ``node.depth`` are set."""
        ...

    def discard(self, node: Node) -> None:
        """The node is held again, or has got a child. Called only for nodes that were added."""
        ...

    def pop(self) -> Node | None:
        """Take the next victim; None when there is none."""
        ...

    def members(self) -> list[Node]:
        """Every node that may be chosen, in no particular order; for integrity checks."""
        ...


class LeastRecentlyUsed:
    """The leaf whose last holder left longest ago; of one sequence's blocks the last first, since its prefix is likelier shared.

    A heap with lazy deletion: a node is handed in again only under a later ``last_use``, which makes older entries stale.
    """

    __slots__ = ("_heap", "_live")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, Node]] = []
        self._live: dict[int, int] = {}

    def add(self, node: Node) -> None:
        self._live[node.block] = node.last_use
        heapq.heappush(self._heap, (node.last_use, -node.depth, node.block, node))

    def discard(self, node: Node) -> None:
        del self._live[node.block]
        if len(self._heap) > 2 * len(self._live) + _COMPACT_ABOVE:
            self._heap = [entry for entry in self._heap if self._live.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)

    def pop(self) -> Node | None:
        while self._heap:
            last_use, _, block, node = heapq.heappop(self._heap)
            if self._live.get(block) == last_use:
                del self._live[block]
                return node
        return None

    def members(self) -> list[Node]:
        return [node for last_use, _, block, node in self._heap if self._live.get(block) == last_use]
