"""When live requests expire."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from server.engine import GenerationRequest

_COMPACT_ABOVE = 64


class Deadlines:
    """A heap of (time, request id, is ttft) with lazy deletion: O(log n) in, O(1) amortised out, whatever is queued.

    An entry of an ended request stays until its time comes or such entries outnumber the living. Engine thread only.
    """

    __slots__ = ("_heap", "_live")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, bool]] = []
        self._live: dict[int, list[float | None]] = {}
        """By request: [ttft deadline, deadline]; None = has none, or no longer counts."""

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, request: GenerationRequest) -> None:
        if request.deadline is None and request.ttft_deadline is None:
            return
        self._live[request.id] = [request.deadline, request.ttft_deadline]
        for is_ttft, time in ((False, request.deadline), (True, request.ttft_deadline)):
            if time is not None:
                heapq.heappush(self._heap, (time, request.id, is_ttft))

    def first_token(self, request: int) -> None:
        """The request's first token is out: its ttft deadline no longer counts."""
        times = self._live.get(request)
        if times is not None:
            times[True] = None

    def remove(self, request: int) -> None:
        """The request is over."""
        if self._live.pop(request, None) is not None and len(self._heap) > 4 * len(self._live) + _COMPACT_ABOVE:
            self._heap = [entry for entry in self._heap if self._counts(entry)]
            heapq.heapify(self._heap)

    def next(self) -> float | None:
        """The earliest deadline that counts."""
        while self._heap and not self._counts(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> Iterator[int]:
        """Take out and yield the requests whose deadline has come, earliest first."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            entry = heapq.heappop(heap)
            if self._counts(entry):
                self._live.pop(entry[1])
                yield entry[1]

    def _counts(self, entry: tuple[float, int, bool]) -> bool:
        times = self._live.get(entry[1])
        return times is not None and times[entry[2]] is not None
