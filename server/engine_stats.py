"""From what the scheduler, the register and the pulse know, the one snapshot that the server sees."""

from __future__ import annotations

import msgspec

from server.cache_tasks import SavedCacheStats
from server.engine import EngineStats
from server.engine_life import EngineLife
from server.pulse import Pulse
from server.scheduling.admission import Backlog
from server.scheduling.counters import SchedulingStats
from server.scheduling.outlook import Outlook


class Snapshot(msgspec.Struct, frozen=True):
    """What the engine thread last published, as one object, so that no reader sees half of a turn."""

    scheduling: SchedulingStats
    taken_requests: int
    """Requests that had been taken from the inbox by then."""
    taken_tokens: int
    outlook: Outlook | None = None
    """What lies ahead of a newcomer; None where nobody can tell."""


def engine_stats(
    snapshot: Snapshot, life: EngineLife, pulse: Pulse, saved_cache: SavedCacheStats | None = None
) -> EngineStats:
    """Any thread. What still lies in the inbox counts as waiting, in the most urgent class, until the loop has looked."""
    scheduling = snapshot.scheduling
    interactive, standard, batch = scheduling.waiting_by_class
    unseen_requests = max(0, life.entered_requests - snapshot.taken_requests) if life.alive else 0
    unseen_tokens = max(0, life.entered_tokens - snapshot.taken_tokens) if life.alive else 0
    return EngineStats(
        alive=life.alive,
        last_step_age=pulse.age,
        step_running_for=pulse.running_for,
        waiting_by_class=(interactive + unseen_requests, standard, batch),
        waiting_tokens=scheduling.waiting_tokens + unseen_tokens,
        running=scheduling.running,
        blocks_free=scheduling.blocks_free,
        blocks_cached=scheduling.blocks_cached,
        blocks_in_use=scheduling.blocks_in_use,
        blocks_quarantined=scheduling.blocks_quarantined,
        steps=pulse.steps,
        prompt_tokens=scheduling.prompt_tokens,
        cached_tokens=scheduling.cached_tokens,
        computed_tokens=scheduling.computed_tokens,
        generated_tokens=scheduling.generated_tokens,
        discarded_tokens=scheduling.discarded_tokens,
        preemptions=scheduling.preemptions,
        plan_seconds=pulse.plan_seconds,
        engine_seconds=pulse.engine_seconds,
        sample_seconds=pulse.sample_seconds,
        deliver_seconds=pulse.deliver_seconds,
        held_calls=scheduling.held_calls,
        held_seconds=scheduling.held_seconds,
        blocks_evicted=scheduling.blocks_evicted,
        busy=pulse.busy,
        predicted_seconds=scheduling.predicted_seconds,
        step_cost_error=scheduling.step_cost_error,
        blocks_pinned=scheduling.blocks_pinned,
        saved_cache=saved_cache or SavedCacheStats(),
    )


def backlog(stats: EngineStats, standing: tuple[int, int] = (0, 1)) -> Backlog:
    """What admission asks about, out of the same snapshot; ``standing``: the tenant's waiting requests, and the tenants that wait."""
    rate = stats.computed_tokens / stats.engine_seconds if stats.engine_seconds else 0.0
    return Backlog(sum(stats.waiting_by_class), stats.waiting_tokens, rate, *standing)
