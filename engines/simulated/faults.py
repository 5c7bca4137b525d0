"""Faults on purpose: which steps fail, when the engine dies or hangs."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping


class Faults:
    """A schedule by the ordinal of the started step (an executor: iteration), the first is 1, and switches to throw at run time.

    The methods may be called from any thread while the engine runs.
    """

    def __init__(
        self,
        *,
        fail_steps: Iterable[int] = (),
        die_at: int | None = None,
        hang_at: int | None = None,
        slow_steps: Mapping[int, float] | None = None,
        fail_requests: Mapping[int, str] | None = None,
    ) -> None:
        """``slow_steps``: additional seconds by step. ``fail_requests``: error text by request, executor only."""
        self._fail_steps = frozenset(fail_steps)
        self._die_at = die_at
        self._hang_at = hang_at
        self._slow_steps = dict(slow_steps or {})
        self._fail_requests = dict(fail_requests or {})
        self._fail_next = threading.Event()
        self._dying = threading.Event()
        self._hanging = threading.Event()

    def fail_next_step(self) -> None:
        """The step whose result is asked for next fails; the engine lives."""
        self._fail_next.set()

    def die(self) -> None:
        """From now on every call raises EngineDeadError."""
        self._dying.set()

    def hang(self) -> None:
        """The next result does not come until the engine is closed."""
        self._hanging.set()

    def kills(self, ordinal: int) -> bool:
        return self._dying.is_set() or (self._die_at is not None and ordinal >= self._die_at)

    def hangs(self, ordinal: int) -> bool:
        return self._hanging.is_set() or ordinal == self._hang_at

    def fails(self, ordinal: int) -> bool:
        """True where this step fails. Uses up fail_next_step()."""
        if self._fail_next.is_set():
            self._fail_next.clear()
            return True
        return ordinal in self._fail_steps

    def delay(self, ordinal: int) -> float:
        return self._slow_steps.get(ordinal, 0.0)

    def request_error(self, request: int) -> str | None:
        return self._fail_requests.get(request)
