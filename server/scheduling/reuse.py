"""What a prompt need not compute, because the prefix cache has it, is about to have it, or has most of it."""

from __future__ import annotations

from engines.contract import BlockCopy
from server.kv.node import NO_BLOCK
from server.kv.prefix_cache import PrefixCache
from server.scheduling.composition import Composition
from server.scheduling.config import BatcherConfig
from server.scheduling.counters import Counters
from server.scheduling.sequence import Sequence


class Reuse:
    """Looks in the cache each time a prompt is about to compute a block, not only when it is seated: what another has published since
    is taken too, and what another is computing in this very step is waited for, boundedly."""

    __slots__ = ("_cache", "_config", "_counters")

    def __init__(self, cache: PrefixCache, config: BatcherConfig, counters: Counters) -> None:
        self._cache = cache
        self._config = config
        self._counters = counters

    def advance(self, sequence: Sequence, step: Composition) -> bool:
        """Move the sequence forward by what the cache has. False when it should let this step pass.

        Never takes the last known token: its row must run for the next one to be drawn. After a copy the caller must give the
        sequence a row in this step.
        """
        size, kv = self._cache.block_size, sequence.kv
        if sequence.scheduled != len(kv.table) * size or kv.published != len(kv.table) or sequence.scores:
            return True
        limit = len(sequence.tokens) - 1
        matched = kv.match(limit)
        if matched:
            kv.adopt(matched)
            sequence.refresh_capacity(size)
            sequence.scheduled = sequence.computed = sequence.capacity
            sequence.prefix_waits = 0
            self._count(sequence, len(matched) * size)
        if self._should_wait(sequence, step, limit):
            sequence.prefix_waits += 1
            self._counters.prefix_waits += 1
            return False
        self._copy(sequence, step, limit)
        return True

    def _should_wait(self, sequence: Sequence, step: Composition, limit: int) -> bool:
        index = len(sequence.kv.table)
        if not step.computing or (index + 1) * self._cache.block_size > limit:
            return False
        return sequence.prefix_waits < self._config.max_prefix_waits and sequence.kv.digest(index) in step.computing

    def _copy(self, sequence: Sequence, step: Composition, limit: int) -> None:
        kv = sequence.kv
        node, shared = kv.match_partly(limit)
        sibling, common = self._sibling(sequence, limit)
        if max(shared, common) < self._config.min_copy_tokens:
            return
        # Held before the target is allocated, which may evict; and until the step is over, which reads it.
        if node is None or common > shared:
            source, shared = self._cache.hold_again(sibling), common
        else:
            source = self._cache.hold(node)
        if not kv.grow(len(kv.table) + 1):
            self._cache.release([source])
            return
        step.held.append(source)
        step.copies.append(BlockCopy(source, kv.table[-1]))
        sequence.refresh_capacity(self._cache.block_size)
        sequence.scheduled += shared
        self._counters.copied_blocks += 1
        self._count(sequence, shared)

    def _sibling(self, sequence: Sequence, limit: int) -> tuple[int, int]:
        """The block in which another sequence of the request has the prompt's tokens that come next, and how many. It may go on in that
        block in the very step that copies it: copies come first."""
        index, size = len(sequence.kv.table), self._cache.block_size
        end = min(limit, sequence.prompt_length, (index + 1) * size)
        for other in sequence.record.sequences:
            if other.seated and other is not sequence and other.computed >= end > index * size:
                return other.kv.table[index], end - index * size
        return NO_BLOCK, 0

    def _count(self, sequence: Sequence, tokens: int) -> None:
        """Of n sequences only the one that computes the prompt counts as a prompt."""
        record = sequence.record
        if sequence.fresh and not record.preemptions and record.first_token_at is None:
            sequence.record.cached_tokens += tokens
            self._counters.cached_tokens += tokens
