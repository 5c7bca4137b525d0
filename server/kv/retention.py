"""How long blocks are worth keeping, where a request says so: a priority for a stretch of its prompt, for a time.

The vocabulary is TensorRT-LLM's (KvCacheRetentionConfig): 0 to 100, the lowest goes first, 35 where nobody says anything, and a priority falls
back to that when its time is over. As there, the stretch that holds a block's first token decides for the block.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from engines.contract import Retention
from server.kv.node import USUAL_PRIORITY, Node

_COMPACT_ABOVE = 64


def wish_for(stretches: tuple[Retention, ...], token: int) -> Retention | None:
    """The stretch that holds the token at this place of the prompt."""
    for stretch in stretches:
        if stretch.first <= token and (stretch.end is None or token < stretch.end):
            return stretch
    return None


class Retained:
    """Nodes whose priority is another than the usual one, and when each falls back. Engine thread only."""

    __slots__ = ("_ends", "_longest", "_number")

    def __init__(self, longest: float) -> None:
        """``longest``: seconds after which any wish is over, also one that names no time."""
        self._longest = longest
        self._ends: list[tuple[float, int, Node]] = []
        """A heap; an entry is stale once its node's time was set anew."""
        self._number = 0

    def keep(self, node: Node, wish: Retention, now: float) -> None:
        """Give a held node the wish's priority; the latest wish counts."""
        node.priority = wish.priority
        if wish.priority == USUAL_PRIORITY:
            node.kept_until = None
            return
        seconds = self._longest if wish.seconds is None else min(wish.seconds, self._longest)
        node.kept_until = now + seconds
        self._number += 1
        heapq.heappush(self._ends, (node.kept_until, self._number, node))

    def lapsed(self, now: float) -> Iterator[Node]:
        """Take out the nodes whose time is over. The caller sets their priority back."""
        ends = self._ends
        while ends and ends[0][0] <= now:
            until, _, node = heapq.heappop(ends)
            if node.kept_until == until:
                yield node

    def compact(self, published: int) -> None:
        """Forget stale entries where they are many; ``published``: how many nodes there are."""
        if len(self._ends) > 2 * published + _COMPACT_ABOVE:
            latest = {
                id(node): entry for entry in self._ends if entry[2].kept_until == entry[0] for node in (entry[2],)
            }
            self._ends = list(latest.values())
            heapq.heapify(self._ends)

    def watched(self) -> set[int]:
        """id() of each node whose time will come; for integrity checks. O(retained)."""
        return {id(node) for until, _, node in self._ends if until == node.kept_until}
