"""Cached blocks and evictions as the executor's events tell them: in order, across a loss, and against the executor's own books."""

from __future__ import annotations

from typing import Any

from engines.trtllm.cache_events import CacheEvents
from engines.trtllm.executor import TrtllmExecutor
from tests.conformance.executor_cases import Client, make_text
from tests.trtllm.fake_site.tensorrt_llm.bindings import executor as fake
from tests.trtllm.rig import fake_executor
from tests.trtllm.test_executor import LIMITS, ScriptedNative


def stored(number: int, *hashes: int, window: int = 256) -> Any:
    blocks: list[Any] = [fake.kv_cache.KVCacheStoredBlockData(digest) for digest in hashes]
    return fake.kv_cache.KVCacheEvent(number, fake.kv_cache.KVCacheStoredData(None, blocks), window)


def removed(number: int, *hashes: int, window: int = 256) -> Any:
    return fake.kv_cache.KVCacheEvent(number, fake.kv_cache.KVCacheRemovedData(list(hashes)), window)


def test_what_is_stored_is_reusable_until_it_is_removed() -> None:
    events = CacheEvents(fake)
    events.take([stored(0, 1, 2, 3), removed(1, 2)])
    assert (events.reusable, events.evicted, events.gaps) == (2, 1, 0)
    events.take([stored(2, 1, 4)])
    assert events.reusable == 3, "the same block twice is one block"


def test_layers_of_another_window_keep_blocks_of_their_own() -> None:
    events = CacheEvents(fake)
    events.take([stored(0, 1), stored(1, 1, window=64), removed(2, 1, window=64)])
    assert (events.reusable, events.evicted) == (1, 1)


def test_after_a_loss_it_is_counted_anew_too_few_never_too_many() -> None:
    events = CacheEvents(fake)
    events.take([stored(0, 1, 2)])
    events.take([stored(7, 3), removed(8, 1)])
    assert (events.reusable, events.gaps) == (1, 1)


def test_other_kinds_of_event_change_nothing_and_leave_no_gap() -> None:
    events = CacheEvents(fake)
    events.take([fake.kv_cache.KVCacheEvent(0, object(), 256), stored(1, 1)])
    assert (events.reusable, events.gaps) == (1, 0)


def test_the_adapter_tells_what_the_executor_inside_knows() -> None:
    """A pool of 24 blocks, more distinct prompts than it holds: evictions happen, and both sides count the same."""
    executor = fake_executor(24, 4, habits={"end_rate": 0.0})
    client = Client(executor)
    for seed in range(12):
        client.run(client.request(make_text(seed, 40), 8))
    stats = executor.stats()
    inside = executor._native._engine._executor.stats()  # type: ignore[attr-defined]  # the fake's own
    assert inside.evicted_blocks > 0
    assert (stats.cached_blocks, stats.evicted_blocks) == (inside.cached_blocks, inside.evicted_blocks)
    assert stats.cached_blocks + stats.used_blocks <= stats.max_blocks
    executor.close()


def test_events_cost_one_more_held_call_and_none_where_none_are_buffered() -> None:
    def calls(events: Any | None) -> int:
        native = ScriptedNative()
        native.events = events
        executor = TrtllmExecutor(fake, native, LIMITS, statistics_age=0.0)
        before = executor.stats().calls
        return executor.stats().calls - before

    class Silent:
        def __init__(self) -> None:
            self.asked: list[float] = []

        def get_latest_events(self, timeout_ms: float) -> list[Any]:
            self.asked.append(timeout_ms)
            return []

    silent = Silent()
    assert (calls(None), calls(silent)) == (1, 2)
    assert set(silent.asked) == {0.0}, "anything else would hold the interpreter's lock while it waits"
