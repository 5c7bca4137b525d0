"""What lies ahead of a newcomer, as one frozen picture that any thread may look at."""

from __future__ import annotations

from typing import NamedTuple


class Prefilling(NamedTuple):
    """A prompt that left the waiting room and is not through."""

    level: int
    """Its class; one below 0 goes before everybody."""
    rank: float
    tokens: int
    """To compute."""
    past: int
    """Tokens before these."""
    blocks: int = 0
    """KV blocks that it has, or that are set aside for it; where it has no seat yet, those that it waits for."""
    output: int = 0
    """Tokens that it will probably draw."""
    seated: bool = True
    """False: it waits within the engine."""
    seats: int = 1
    """That it has, or waits for."""


class Streaming(NamedTuple):
    """A request whose prompt is through, by when it will probably end: who ends first compares lowest."""

    rest: float
    """Tokens that it will probably still draw, one a step."""
    blocks: int
    """KV blocks that are free then."""
    seats: int
    """Seats that are free then."""


class Outlook(NamedTuple):
    waiting_requests: tuple[int, int, int]
    """By class, without a seat."""
    prefilling_tokens: int
    """Of those that left the waiting room."""
    prefilling: tuple[Prefilling, ...]
    """Who of one class and rank came first stands first."""
    decodes: int
    context: int
    """Of the step in flight, or the last one."""
    step_seconds: float
    """What the step in flight is predicted to take; 0 = none is."""
    step_ends: float
    """When it is predicted to end."""
    free_seats: int
    free_blocks: int = 1 << 30
    """KV blocks that whoever is seated next may take. Below 0: others are promised more than there are."""
