"""How late the event loop runs: the cost of whatever holds it up, seen by every stream."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

PERIOD = 0.1
"""Seconds of each sleep. Ten wake-ups a second cost nothing that could be measured."""


async def watch_loop_lag(observe: Callable[[float], None]) -> None:
    """Sleep over and over, and report by how much each sleep was too long. Ends by being cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + PERIOD
        await asyncio.sleep(PERIOD)
        observe(max(0.0, loop.time() - due))
