"""Who holds a seat, and how a seat is given up."""

from __future__ import annotations

from server.engine import PriorityClass
from server.kv.block_pool import IntegrityError
from server.kv.prefix_cache import PrefixCache
from server.scheduling.counters import Counters
from server.scheduling.seat_reserve import SeatReserve
from server.scheduling.sequence import Sequence
from server.scheduling.waiting_room import WaitingRoom


class Seats:
    """The seated sequences. A seat is all that allows to hold KV blocks: leaving it releases them, on every way out."""

    __slots__ = ("_cache", "_counters", "_reserve", "_room", "by_class", "prefilling", "running")

    def __init__(
        self, cache: PrefixCache, room: WaitingRoom[Sequence], counters: Counters, *, fair_seats: int = 0
    ) -> None:
        """``fair_seats``: how many seats there are, where tenants share them; 0 = they do not."""
        self._cache = cache
        self._room = room
        self._counters = counters
        self.running: dict[int, Sequence] = {}
        """By sequence id, everyone seated."""
        self.prefilling: dict[int, Sequence] = {}
        """Those of them whose known tokens are not all scheduled."""
        self._reserve = SeatReserve(fair_seats) if fair_seats else None
        self.by_class = [0] * len(PriorityClass)
        """How many of each class are seated."""

    def take_next(self, level: int) -> Sequence:
        """Seat who is next of that class in the room."""
        sequence = self._room.pop(level)
        sequence.seated = True
        sequence.owed = self._room.shares.is_owed(level)
        self.by_class[level] += 1
        if self._reserve is not None:
            self._reserve.take(sequence.tenant)
        self.running[sequence.id] = sequence
        self.prefilling[sequence.id] = sequence
        sequence.refresh_capacity(self._cache.block_size)
        return sequence

    def kept_from(self, sequence: Sequence) -> int:
        """Free seats that are not for this sequence's tenant."""
        return 0 if self._reserve is None else self._reserve.kept_from(sequence.tenant)

    def leave(self, sequence: Sequence) -> None:
        """Give up seat and blocks; full blocks stay cached."""
        del self.running[sequence.id]
        self.prefilling.pop(sequence.id, None)
        sequence.seated = False
        self.by_class[int(sequence.key[0])] -= 1
        if self._reserve is not None:
            self._reserve.leave(sequence.tenant)
        sequence.kv.release()
        sequence.refresh_capacity(self._cache.block_size)

    def preempt(self, sequence: Sequence) -> None:
        """Set a sequence aside. It goes back to its old place, and its output so far is computed again with the prompt,
        as far as the cache has lost it."""
        self.leave(sequence)
        sequence.computed = sequence.scheduled = 0
        sequence.prefix_waits = 0
        sequence.retry_above = -1
        sequence.expected_work = len(sequence.tokens)
        sequence.record.preemptions += 1
        self._counters.preemptions += 1
        self._room.push(sequence)

    def check_integrity(self) -> None:
        """Every reference in the pool is one of a seated sequence's holds, and progress keeps its invariant. O(blocks)."""
        for sequence in self.running.values():
            total = len(sequence.tokens)
            if not 0 <= sequence.computed <= sequence.scheduled <= total:
                raise IntegrityError(
                    f"sequence {sequence.id}: computed {sequence.computed} <= scheduled {sequence.scheduled} <= total {total}"
                )
            if (
                sequence.capacity != len(sequence.kv.table) * self._cache.block_size
                or sequence.scheduled > sequence.capacity
            ):
                raise IntegrityError(
                    f"sequence {sequence.id}: {sequence.scheduled} scheduled, room for {sequence.capacity}"
                )
            if not sequence.seated or sequence.queued or sequence.finish is not None:
                raise IntegrityError(f"sequence {sequence.id} runs, yet is queued or finished")
            left = total - sequence.scheduled
            if left < 1 if sequence.id in self.prefilling else left > 1:
                raise IntegrityError(
                    f"sequence {sequence.id}: {left} tokens left to schedule, in the wrong set for that"
                )
        levels = [int(sequence.key[0]) for sequence in self.running.values()]
        if self.by_class != [levels.count(level) for level in range(len(self.by_class))]:
            raise IntegrityError(f"seated by class {self.by_class}, found {sorted(levels)}")
        if not self.prefilling.keys() <= self.running.keys():
            raise IntegrityError("a sequence prefills without a seat")
