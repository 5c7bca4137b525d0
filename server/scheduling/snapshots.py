"""Pictures of the batcher's state, taken once a turn on the engine thread for all others to look at."""

from __future__ import annotations

from engines.contract import ExecutorStats
from server.kv.prefix_cache import PrefixCache
from server.scheduling.composition import Composition
from server.scheduling.cost import StepCost
from server.scheduling.counters import Counters, SchedulingStats
from server.scheduling.lengths import ExpectedLengths
from server.scheduling.outlook import Outlook, Prefilling, Streaming
from server.scheduling.seats import Seats
from server.scheduling.sequence import Sequence
from server.scheduling.tenants import W
from server.scheduling.waiting_room import WaitingRoom


def batcher_stats(
    room: WaitingRoom[Sequence],
    seats: Seats,
    cache: PrefixCache,
    counters: Counters,
    cost: StepCost,
    *,
    pinned: int,
) -> SchedulingStats:
    pool = cache.pool
    return SchedulingStats(
        waiting_by_class=room.by_class,
        waiting_tokens=room.work + _prefilling(seats),
        running=len(seats.running),
        blocks_free=pool.free,
        blocks_cached=cache.cached,
        blocks_in_use=pool.in_use,
        blocks_quarantined=pool.quarantined,
        steps=counters.steps,
        prompt_tokens=counters.prompt_tokens,
        cached_tokens=counters.cached_tokens,
        computed_tokens=counters.computed_tokens,
        generated_tokens=counters.generated_tokens,
        discarded_tokens=counters.discarded_tokens,
        preemptions=counters.preemptions,
        blocks_evicted=cache.evictions,
        blocks_pinned=pinned,
        predicted_seconds=cost.predicted,
        step_cost_error=cost.error,
    )


def feed_stats(
    room: WaitingRoom[W],
    counters: Counters,
    running: int,
    *,
    unanswered: int,
    blocks: tuple[int, int],
    executor: ExecutorStats | None,
) -> SchedulingStats:
    """``unanswered``: prompt tokens inside of whoever has not answered yet; ``blocks``: how many there are, and how many we believe used."""
    total, reserved = blocks
    used = min(total, reserved) if executor is None else executor.used_blocks
    cached = 0 if executor is None else min(executor.cached_blocks, total - used)
    return SchedulingStats(
        waiting_by_class=room.by_class,
        waiting_tokens=room.work + unanswered,
        running=running,
        blocks_free=total - used - cached,
        blocks_cached=cached,
        blocks_in_use=used,
        blocks_quarantined=0,
        steps=0 if executor is None else executor.iterations,
        prompt_tokens=counters.prompt_tokens,
        cached_tokens=counters.cached_tokens,
        computed_tokens=counters.computed_tokens,
        generated_tokens=counters.generated_tokens,
        discarded_tokens=counters.discarded_tokens,
        preemptions=0,
        blocks_evicted=0 if executor is None else executor.evicted_blocks,
        held_calls=0 if executor is None else executor.calls,
        held_seconds=0.0 if executor is None else executor.call_seconds,
    )


def read_outlook(
    room: WaitingRoom[Sequence],
    seats: Seats,
    flight: Composition | None,
    cost: StepCost,
    *,
    planned: float,
    max_sequences: int,
    free_blocks: int,
    block_size: int,
) -> Outlook:
    """``flight``: the step that is under way; ``planned``: when it was."""
    taken = len(seats.running)
    under_way = 0.0
    if flight is not None:
        under_way = cost.seconds(flight.new, flight.decodes, flight.context, flight.attention)
    return Outlook(
        waiting_requests=room.by_class,
        prefilling_tokens=_prefilling(seats),
        prefilling=tuple(_prefilling_one(one, block_size) for one in seats.prefilling.values()),
        decodes=taken - len(seats.prefilling),
        context=0 if flight is None else flight.context,
        step_seconds=under_way,
        step_ends=planned + under_way,
        free_seats=max_sequences - taken,
        free_blocks=free_blocks,
    )


def _prefilling_one(one: Sequence, block_size: int) -> Prefilling:
    output = max(1, one.expected_output - one.generated)
    blocks = max(len(one.kv.table), -(-len(one.tokens) // block_size))
    return Prefilling(one.level, one.record.key[1], _left(one), one.scheduled, blocks, output)


def read_streams(seats: Seats, lengths: ExpectedLengths) -> list[Streaming]:
    """Any thread: who comes or goes meanwhile may be missing."""
    # One call of C: no other thread changes the dictionary meanwhile.
    running = list(seats.running.values())
    return [
        Streaming(lengths.rest(one.record.request, one.generated), len(one.kv.table), 1)
        for one in running
        if one.id not in seats.prefilling
    ]


def _prefilling(seats: Seats) -> int:
    return sum(map(_left, seats.prefilling.values()))


def _left(sequence: Sequence) -> int:
    return len(sequence.tokens) - sequence.scheduled
