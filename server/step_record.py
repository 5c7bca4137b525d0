"""A step as the flight recorder tells of it: lengths, places and times, never tokens."""

from __future__ import annotations

import msgspec


class StepRow(msgspec.Struct, frozen=True):
    """One sequence's share of a step that was run."""

    sequence: int
    new_tokens: int
    past: int
    """Tokens before them."""
    blocks: int
    want: str
    """"sample", "score", or empty for a part of a prompt."""


class StepRecord(msgspec.Struct, frozen=True):
    """A step as the flight recorder keeps it."""

    step: int
    """0 for an executor's, which numbers none."""
    age: float
    """Seconds since it began."""
    outcome: str
    """"ok", "running", or "failed: " and the kind of the error."""
    engine_seconds: float
    sample_seconds: float
    rows: tuple[StepRow, ...]
    copies: int
    opened: tuple[int, ...]
    """Sequences that run for the first time, or again after a preemption."""
    closed: tuple[int, ...]
    """Sequences that ended or were set aside before it."""
    responses: int
    """An executor's."""
    waiting_by_class: tuple[int, int, int]
    """This, and what follows, as it was when the step before was planned."""
    running: int
    blocks_free: int
    preemptions: int
