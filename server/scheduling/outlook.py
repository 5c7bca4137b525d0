"""What lies ahead of a newcomer, as one frozen picture that any thread may look at."""

from __future__ import annotations

from typing import NamedTuple


class Outlook(NamedTuple):
    waiting_requests: tuple[int, int, int]
    """By class, without a seat."""
    prefilling_tokens: int
    """Of those seated."""
    prefilling: tuple[tuple[int, float, int, int], ...]
    """Of each of those class, rank, tokens to compute, and tokens before these. A class below 0 goes before everybody."""
    decodes: int
    context: int
    """Of the step in flight, or the last one."""
    step_seconds: float
    """What the step in flight is predicted to take; 0 = none is."""
    free_seats: int
    """0 too where blocks are what is missing."""
    seats_per_second: float
    """How fast seats become free."""
