"""What operators do to the prefix cache: pin a prefix for a time, let it go, see what is hot, clear. Names and sizes, never tokens."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from engines.contract import RunnerLimits
from server.cache_tasks import CachedPrefix, CacheTask, ClearCache, Cleared, ListPrefixes, PinPrefix, PinPrompt
from server.errors import InvalidRequestError, OverloadedError, PreconditionError
from server.kv.block_pool import IntegrityError
from server.kv.hashing import identity_digest
from server.kv.node import Node
from server.kv.pins import Pins
from server.kv.prefix_cache import PrefixCache
from server.kv.sequence_blocks import SequenceBlocks
from server.scheduling.sequence import token_array


class Prefixes:
    """A prefix is named by its last block, whose name covers all before it and the salt. Engine thread only, between steps."""

    __slots__ = ("_cache", "_fingerprint", "_limits", "_pins", "_promised", "_spare")

    def __init__(
        self, cache: PrefixCache, limits: RunnerLimits, *, fingerprint: str, promised: Callable[[], int]
    ) -> None:
        """``promised``: blocks that seated sequences still need, which a pin must not take away."""
        self._cache = cache
        self._limits = limits
        self._fingerprint = fingerprint
        self._promised = promised
        self._pins = Pins(cache)
        self._spare = -(-limits.max_context // limits.block_size)
        """Blocks that pins leave: one sequence of the greatest length must always fit."""

    @property
    def pinned(self) -> int:
        """Blocks that are pinned."""
        return self._pins.blocks

    def pins(self) -> list[tuple[bytes, float]]:
        """Names of pinned prefixes, and when each pin ends."""
        return self._pins.all()

    def perform(self, task: CacheTask, now: float) -> CachedPrefix | bool | list[CachedPrefix] | Cleared:
        """Raises InvalidRequestError where a prompt fills no block, PreconditionError where what is to be pinned is not cached (any more),
        OverloadedError where a pin would leave too few blocks for others."""
        self._pins.expire(now)
        if isinstance(task, PinPrompt):
            return self._pin(self._prompt(task), task.seconds, now)
        if isinstance(task, PinPrefix):
            return self._pin(self._named(task.name), task.seconds, now)
        if isinstance(task, ListPrefixes):
            return self._hottest(task.count, now)
        if isinstance(task, ClearCache):
            return self._clear(task)
        return self._pins.unpin(task.name)

    def _prompt(self, task: PinPrompt) -> Node:
        size = self._limits.block_size
        wanted = len(task.prompt) // size
        if not wanted:
            raise InvalidRequestError(
                "prompt", f"must have at least {size} tokens to fill a block, it has {len(task.prompt)}"
            )
        root = identity_digest(self._fingerprint, size, salt=task.salt)
        found = SequenceBlocks(self._cache, root, token_array(task.prompt)).match(len(task.prompt))
        if len(found) < wanted:
            raise PreconditionError(f"prompt: {len(found)} of its {wanted} blocks are cached; the others were evicted")
        return found[-1]

    def _named(self, name: bytes) -> Node:
        node = self._cache.find(name)
        if node is None:
            raise PreconditionError(f"prefix: nothing is cached under {name.hex()}")
        return node

    def _pin(self, node: Node, seconds: float, now: float) -> CachedPrefix:
        blocks, revived = self._pins.added(node)
        left = self._limits.block_count - self._pins.blocks - blocks
        if left < self._spare:
            raise OverloadedError(
                f"pinned blocks: {self._limits.block_count - self._spare} at most, so that one sequence of "
                f"{self._limits.max_context} tokens fits; it would be {self._pins.blocks + blocks}",
                reason="pinned_blocks",
                retry_after=60.0,
            )
        if self._cache.available - revived < self._promised():
            raise OverloadedError(
                "pinned blocks: running requests need the blocks now", reason="pinned_blocks", retry_after=1.0
            )
        self._pins.pin(node, now + seconds)
        return self._describe(node, now)

    def expire(self, now: float) -> None:
        """Let go what has been pinned for long enough."""
        self._pins.expire(now)

    def _hottest(self, count: int, now: float) -> list[CachedPrefix]:
        """Prefixes by how often they were reused, then by when. One ends where a block has several successors or none, or is pinned.
        O(blocks)."""
        ends = (node for node in self._cache.nodes() if len(node.children) != 1 or self._pins.until(node.digest))
        found = heapq.nlargest(count, ends, key=lambda node: (node.reuses, node.last_use, -node.depth))
        return [self._describe(node, now) for node in found]

    def _clear(self, task: ClearCache) -> Cleared:
        """Forget every cached block. Those in use, and, unless the task says so, the pinned ones, stay."""
        if task.pins:
            self._pins.clear()
        forgotten = self._cache.forget()
        return Cleared(forgotten, self._cache.published)

    def holds(self) -> Iterator[int]:
        """Each block as often as pins hold it."""
        return self._pins.holds()

    def _describe(self, node: Node, now: float) -> CachedPrefix:
        until = self._pins.until(node.digest)
        return CachedPrefix(
            name=node.digest,
            tokens=node.depth * self._limits.block_size,
            blocks=node.depth,
            size=node.depth * self._limits.bytes_per_block,
            reuses=node.reuses,
            in_use=self._cache.is_held(node),
            pinned_for=None if until is None else until - now,
        )

    def check_integrity(self) -> None:
        self._pins.check_integrity()
        if self._limits.block_count - self._pins.blocks < self._spare:
            raise IntegrityError(f"{self._pins.blocks} pinned blocks leave fewer than {self._spare}")
