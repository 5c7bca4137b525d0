"""One save of the prefix cache that is under way: which blocks are still to be copied."""

from __future__ import annotations

from collections.abc import Callable

from engines.contract import StepRunner
from server.kv.node import Node
from server.kv.prefix_cache import PrefixCache
from server.saved_cache.layout import SavedBlock
from server.saved_cache.writer import CacheWriter


class Save:
    """One save that is under way."""

    def __init__(self, cache: PrefixCache, runner: StepRunner, writer: CacheWriter, most: int) -> None:
        self.writer = writer
        self.ended = False
        self._cache = cache
        self._runner = runner
        self._left = cache.hottest()[:most]
        self._left.reverse()
        """Taken from the end."""
        self._handed: set[bytes] = set()

    def copy(self, until: float, clock: Callable[[], float]) -> None:
        """Hand over blocks until a time, or until the writer is behind."""
        while self._left and not self.writer.full:
            self._hand_over(self._left.pop(), 0.0)
            if clock() >= until:
                return
        if not self._left:
            self.ended = self.writer.end()

    def copy_all(self, until: float, clock: Callable[[], float]) -> None:
        """Wait for the writer where it is behind; leave out what there is no time for."""
        while self._left and (patience := until - clock()) > 0 and not self.writer.over:
            self._hand_over(self._left.pop(), patience)
        self.ended = self.writer.end(max(0.0, until - clock()))

    def _hand_over(self, node: Node, patience: float) -> None:
        parent = node.parent
        if parent is None or self._cache.find(node.digest) is not node:
            return  # evicted since
        rooted = parent.parent is None
        if not rooted and parent.digest not in self._handed:
            return
        content = self._runner.read_blocks([node.block])[0]
        saved = SavedBlock(parent.digest, node.digest, rooted, node.reuses, node.tokens, content)
        if self.writer.offer(saved, patience):
            self._handed.add(node.digest)
