"""Whoever waits in a room, without all that a request is."""

from __future__ import annotations


class Guest:
    """Implements Waiter."""

    def __init__(self, level: int, *place: float, work: int = 1, output: int = 1, tenant: str = "") -> None:
        self.key = (float(level), *map(float, place))
        self.waiting_work = self.expected_work = self.seat_tokens = work
        self.expected_output = output
        self.queued = False
        self.tenant = tenant
        self.charged: float | None = None
        self.expected_charge = float(work)
