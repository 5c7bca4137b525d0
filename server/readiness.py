"""The one truth about whether this server takes requests. Health, /readyz, GetLoad and admission all ask here."""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Generic, TypeVar

from server.errors import UnavailableError

T = TypeVar("T")


class State(Enum):
    """A server's life. It only ever moves forward, except from REPLACING back to READY."""

    STARTING = "starting"
    """Loading, or warming up."""
    READY = "ready"
    REPLACING = "replacing"
    """The engine is closed to make room for another one, which is being loaded: requests are told to come back."""
    CLOSING = "closing"
    """About to drain: not ready for load balancers, requests that still arrive are served."""
    DRAINING = "draining"
    """New requests are refused, running ones finish."""
    FAILED = "failed"
    """The engine died, is stuck, or never came up."""


_ORDER = list(State)


class Readiness:
    """Event loop only, except :attr:`state`, which any thread may read."""

    def __init__(self) -> None:
        self._state = State.STARTING
        self._changed = asyncio.Event()

    @property
    def state(self) -> State:
        return self._state

    @property
    def ready(self) -> bool:
        return self._state is State.READY

    def become(self, state: State) -> bool:
        """Move forward, or from REPLACING to READY; False (and nothing changes) where that would be backward or no move at all."""
        again = (self._state, state) == (State.REPLACING, State.READY)
        if not again and _ORDER.index(state) <= _ORDER.index(self._state):
            return False
        self._state = state
        self._changed.set()
        self._changed = asyncio.Event()
        return True

    async def change(self) -> None:
        """Wait for the next move."""
        await self._changed.wait()

    def require_open(self) -> None:
        """Raise UnavailableError unless new requests are taken."""
        if self._state not in (State.READY, State.CLOSING):
            raise UnavailableError(_REFUSALS[self._state], retry_after=1.0)


_REFUSALS = {
    State.STARTING: "the server is starting and not ready yet",
    State.REPLACING: "the server's engine is being replaced; it is ready again in a moment",
    State.DRAINING: "the server is shutting down and takes no new requests",
    State.FAILED: "the engine has failed; the server is about to exit",
}


class Slot(Generic[T]):
    """A part that exists only while an engine is loaded. Until then, whoever asks for it answers UNAVAILABLE."""

    def __init__(self) -> None:
        self._part: T | None = None
        self._missing = State.STARTING

    def fill(self, part: T) -> None:
        self._part = part

    def empty(self) -> None:
        """The engine is being replaced."""
        self._part = None
        self._missing = State.REPLACING

    def get(self) -> T:
        """Raises UnavailableError while it is empty."""
        if self._part is None:
            raise UnavailableError(_REFUSALS[self._missing], retry_after=1.0)
        return self._part
