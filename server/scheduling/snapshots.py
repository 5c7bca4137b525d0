"""Pictures of the batcher's state, taken once a turn on the engine thread for all others to look at."""

from __future__ import annotations

from server.kv.prefix_cache import PrefixCache
from server.scheduling.composition import Composition
from server.scheduling.cost import StepCost
from server.scheduling.counters import Counters, SchedulingStats
from server.scheduling.outlook import Outlook
from server.scheduling.seats import Seats
from server.scheduling.sequence import Sequence
from server.scheduling.waiting_room import WaitingRoom


def batcher_stats(
    room: WaitingRoom[Sequence], seats: Seats, cache: PrefixCache, counters: Counters, cost: StepCost
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
        predicted_seconds=cost.predicted,
        step_cost_error=cost.error,
    )


def read_outlook(
    room: WaitingRoom[Sequence], seats: Seats, flight: Composition | None, cost: StepCost, max_sequences: int
) -> Outlook:
    """``flight``: the step that is under way."""
    interactive, standard, batch = room.work_by_class
    taken = len(seats.running)
    under_way = 0.0
    if flight is not None:
        under_way = cost.seconds(flight.new, flight.decodes, flight.context, flight.attention)
    return Outlook(
        waiting_requests=room.by_class,
        waiting_tokens=(interactive, standard, batch),
        prefilling_tokens=_prefilling(seats),
        decodes=taken - len(seats.prefilling),
        context=0 if flight is None else flight.context,
        step_seconds=under_way,
        free_seats=0 if seats.blocked else max_sequences - taken,
        seats_per_second=seats.freed.per_second(),
    )


def _prefilling(seats: Seats) -> int:
    return sum(len(sequence.tokens) - sequence.scheduled for sequence in seats.prefilling.values())
