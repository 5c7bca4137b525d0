"""How many blocks the executor's cache holds for later prompts, and how many it gave up: read off the events that the library buffers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from engines.trtllm.native import Bindings


class CacheEvents:
    """The reusable blocks, by what the library said of them. One thread at a time.

    The library keeps events until they are asked for, as many as ``event_buffer_max_size``, and drops the oldest beyond: their numbers then
    have a gap. What was lost cannot be made up for, so all is forgotten and counted anew: too few for a while, never too many.
    """

    def __init__(self, bindings: Bindings) -> None:
        self._stored_class = bindings.kv_cache.KVCacheStoredData
        self._removed_class = bindings.kv_cache.KVCacheRemovedData
        self._reusable: set[tuple[int, int]] = set()
        """(attention window, hash): layers of another window keep blocks of their own."""
        self._next: int | None = None
        self.evicted = 0
        """Blocks given up since the start; only grows."""
        self.gaps = 0
        """Times that events were lost."""

    @property
    def reusable(self) -> int:
        """Blocks that a later prompt may reuse, whether a sequence holds them now or not."""
        return len(self._reusable)

    def take(self, events: Iterable[Any]) -> None:
        """``events``: what get_latest_events() gave, oldest first."""
        for event in events:
            if self._next is not None and event.event_id != self._next:
                self.gaps += 1
                self._reusable.clear()
            self._next = event.event_id + 1
            self._apply(event.window_size, event.data)

    def _apply(self, window: int, data: Any) -> None:  # noqa: ANN401 - one of several of the library's classes
        if isinstance(data, self._stored_class):
            self._reusable.update((window, block.block_hash) for block in data.blocks)
        elif isinstance(data, self._removed_class):
            self.evicted += len(data.block_hashes)
            self._reusable.difference_update((window, digest) for digest in data.block_hashes)
