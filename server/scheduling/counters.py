"""What the batcher has done since it was made. Counters only grow."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    steps: int = 0
    prompt_tokens: int = 0
    """Prompt tokens of all requests that were seated."""
    cached_tokens: int = 0
    computed_tokens: int = 0
    """Tokens run through the model."""
    generated_tokens: int = 0
    """Tokens delivered."""
    discarded_tokens: int = 0
    preemptions: int = 0
    copied_blocks: int = 0
    """Partly matching blocks reused by copying."""
    prefix_waits: int = 0
    """Times a prompt let a step pass while another computed the block it needed."""


@dataclass(frozen=True, slots=True)
class SchedulingStats:
    """A snapshot of the batcher's, or the feed's, share of :class:`server.engine.EngineStats`; same names, same meanings."""

    waiting_by_class: tuple[int, int, int]
    waiting_tokens: int
    running: int
    blocks_free: int
    blocks_cached: int
    blocks_in_use: int
    blocks_quarantined: int
    steps: int
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    generated_tokens: int
    discarded_tokens: int
    preemptions: int
    blocks_evicted: int = 0
    blocks_pinned: int = 0
    held_calls: int = 0
    held_seconds: float = 0.0
    predicted_seconds: float = 0.0
    step_cost_error: float = 0.0
