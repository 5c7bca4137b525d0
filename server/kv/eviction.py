"""Which cached block goes first. A policy orders; the mechanism in prefix_cache.py says who may be chosen at all.

Every policy goes by retention priority first (retention.py), and by its own rule among equals.
"""

from __future__ import annotations

import heapq
from typing import Protocol

from server.kv.node import Node

_COMPACT_ABOVE = 64
_Rank = tuple[int, float]
"""(retention priority, score)."""
_LEARN = 0.01
"""Weight of the latest victim in the usual stay."""


class EvictionPolicy(Protocol):
    """Orders unreferenced leaves. Deterministic: equal histories choose equal victims. Engine thread only."""

    def add(self, node: Node) -> None:
        """The node has become an unreferenced leaf. ``node.last_use``, ``node.depth`` and ``node.priority`` are set, and change only while
        the node is not among the members."""
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


class _ByScore:
    """Lowest priority first, then lowest score; of one sequence's blocks the last first, since its prefix is likelier shared.

    A heap with lazy deletion: an entry is stale once its node was taken out, or handed in again under another score.
    """

    __slots__ = ("_heap", "_live")

    def __init__(self) -> None:
        self._heap: list[tuple[_Rank, int, int, Node]] = []
        self._live: dict[int, _Rank] = {}

    def score(self, node: Node) -> float:
        """Fixed from when the node became a leaf that nobody holds. Ascending with ``node.last_use``, all else equal."""
        raise NotImplementedError

    def add(self, node: Node) -> None:
        rank = node.priority, self.score(node)
        self._live[node.block] = rank
        heapq.heappush(self._heap, (rank, -node.depth, node.block, node))

    def discard(self, node: Node) -> None:
        del self._live[node.block]
        if len(self._heap) > 2 * len(self._live) + _COMPACT_ABOVE:
            self._heap = self._living()
            heapq.heapify(self._heap)

    def pop(self) -> Node | None:
        while self._heap:
            rank, _, block, node = heapq.heappop(self._heap)
            if self._live.get(block) == rank:
                del self._live[block]
                return node
        return None

    def members(self) -> list[Node]:
        return [entry[3] for entry in self._living()]

    def _living(self) -> list[tuple[_Rank, int, int, Node]]:
        live = self._live
        return list({entry[2]: entry for entry in self._heap if live.get(entry[2]) == entry[0]}.values())


class LeastRecentlyUsed(_ByScore):
    """The leaf whose last holder left longest ago."""

    __slots__ = ()

    def score(self, node: Node) -> float:
        return float(node.last_use)


class ReusedStayLonger(_ByScore):
    """Recency, and a head start for what has proved useful: a block that was reused ``proven`` times or more counts as used later
    than it was, by ``head_start`` of the time that a block usually stays.

    That time is learned from the victims, so that there is nothing to tune to the cache's size or the traffic. Fewer reuses say little: in
    recorded traffic most blocks that were reused once or twice belong to a conversation that has ended, and keeping them longer costs
    more hits than it brings (docs/scheduling.md has the figures). A block's reuse is that of the whole prefix down to it, so the head
    start goes to beginnings that many share, which are also those whose loss makes most be computed again.
    """

    __slots__ = ("_head_start", "_latest", "_proven", "_stay")

    def __init__(self, head_start: float = 0.5, proven: int = 3) -> None:
        super().__init__()
        self._head_start = head_start
        self._proven = proven
        self._latest = 0
        self._stay = 1.0
        """Usual ticks between a victim's last use and its eviction."""

    def score(self, node: Node) -> float:
        if node.reuses < self._proven:
            return float(node.last_use)
        return node.last_use + self._head_start * self._stay

    def add(self, node: Node) -> None:
        self._latest = max(self._latest, node.last_use)
        super().add(node)

    def pop(self) -> Node | None:
        node = super().pop()
        if node is not None:
            self._stay += _LEARN * (self._latest - node.last_use - self._stay)
        return node


class CostlyStayLonger(ReusedStayLonger):
    """As that, and recency weighted by what computing the block again would cost: its linear layers, and its attention to all blocks before
    it. A block that costs twice what victims usually cost counts as used later than it was, by ``weight`` of the usual stay; a cheaper one
    as used earlier.

    It saves more of the computation than ReusedStayLonger and hits less often: what is deep is worth more and asked for by fewer
    (docs/prefix-cache.md has the figures).
    """

    __slots__ = ("_attention", "_usual", "_weight")

    def __init__(self, attention: float, weight: float = 0.2, head_start: float = 0.5, proven: int = 3) -> None:
        """``attention``: what attention to one earlier block costs, in linear layers of a block."""
        super().__init__(head_start, proven)
        self._attention = attention
        self._weight = weight
        self._usual = 1.0
        """What victims usually cost."""

    def score(self, node: Node) -> float:
        return super().score(node) + self._weight * self._stay * (self._cost(node) / self._usual - 1.0)

    def pop(self) -> Node | None:
        node = super().pop()
        if node is not None:
            self._usual += _LEARN * (self._cost(node) - self._usual)
        return node

    def _cost(self, node: Node) -> float:
        return 1.0 + self._attention * node.depth
