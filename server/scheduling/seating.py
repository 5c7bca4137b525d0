"""Who may compute in this step, in order, and who is seated for it."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from math import ceil

from server.kv.prefix_cache import PrefixCache
from server.scheduling.config import BatcherConfig
from server.scheduling.counters import Counters
from server.scheduling.door import Door
from server.scheduling.preemption import PreemptionGuard
from server.scheduling.seats import Seats
from server.scheduling.sequence import Sequence
from server.scheduling.waiting_room import WaitingRoom


class Seating:
    """Merges seated prompts and the waiting room, class by class and by key; seats from the room only as far as the asker goes on."""

    __slots__ = ("_cache", "_config", "_counters", "_door", "_guard", "_promised", "_room", "_seats", "_watermark")

    def __init__(
        self,
        config: BatcherConfig,
        *,
        cache: PrefixCache,
        room: WaitingRoom[Sequence],
        seats: Seats,
        counters: Counters,
        door: Door,
        guard: PreemptionGuard,
    ) -> None:
        self._config = config
        self._cache = cache
        self._door = door
        self._guard = guard
        self._room = room
        self._seats = seats
        self._counters = counters
        self._watermark = ceil(config.watermark * cache.pool.count)
        self._promised = 0
        """Blocks that seated prompts still need and that must not be promised again."""

    def in_order(self, decoding: int, now: float) -> Iterator[Sequence]:
        """Seated sequences with tokens to compute: by class, first by key first. Who is taken from the room is seated when yielded.
        ``decoding`` rows of one token each are in the step already.

        Once the next in the room cannot be seated nobody behind it is, so that a large prompt is not starved by small ones.
        """
        seated = sorted(self._seats.prefilling.values(), key=lambda sequence: sequence.key)
        self._promised = sum(self._blocks_left(sequence) for sequence in seated)
        may_seat = self._door_is_open(decoding, now)
        for level in self._room.shares.order:
            own = [sequence for sequence in seated if sequence.key[0] == level]
            may_seat = yield from self._merge(level, own, may_seat=may_seat)

    def _merge(self, level: int, seated: list[Sequence], *, may_seat: bool) -> Generator[Sequence, None, bool]:
        """One class: its seated prompts and its part of the room. Returns whether anybody behind may still be seated."""
        at = 0
        while True:
            head = self._room.peek(level) if may_seat else None
            if head is not None and (at == len(seated) or self._overtakes(head, seated[at])):
                if not self.can_seat(head):
                    may_seat = False
                    continue
                yield self._seat(level)
                # What it has taken since is no longer owed; the rest of its prompt is.
                self._promised += self._blocks_left(head)
            elif at < len(seated):
                before = self._blocks_left(seated[at])
                yield seated[at]
                self._promised -= before - self._blocks_left(seated[at])
                at += 1
            else:
                return may_seat

    def _overtakes(self, head: Sequence, seated: Sequence) -> bool:
        """Whether the next in the room goes before a seated prompt. Keys of different tenants say nothing: who floods the room has the
        oldest ones, and the room's turn was the other's when it was seated."""
        if self._config.fair_tenants and head.tenant != seated.tenant:
            return False
        return head.key < seated.key

    def yield_seats(self, now: float) -> None:
        """Before a step is composed: where the next in the room cannot be seated while a lower class is, the lower class gives way."""
        head = self._room.peek()
        if head is None or not any(self._seats.by_class[int(head.key[0]) + 1 :]):
            return
        self._promised = self.promised()
        while not self.can_seat(head):
            victim = self._guard.victim(head, self._seats.running.values(), now)
            if victim is None:
                return
            if victim.id in self._seats.prefilling:
                self._promised -= self._blocks_left(victim)
            self._seats.preempt(victim)

    def promised(self) -> int:
        """Blocks that seated prompts still need, between two steps."""
        return sum(self._blocks_left(sequence) for sequence in self._seats.prefilling.values())

    def free_blocks(self) -> int:
        """Blocks that whoever is seated next may take, between two steps."""
        return self._cache.available - self.promised() - self._watermark

    def _door_is_open(self, decoding: int, now: float) -> bool:
        head = self._room.peek()
        return head is not None and self._door.is_open(
            seated=len(self._seats.running),
            decoding=decoding,
            waiting=len(self._room),
            oldest=head.record.request.arrival,
            now=now,
        )

    def can_seat(self, sequence: Sequence) -> bool:
        """Whether a seat is free and the sequence's known tokens fit beside what is promised, above the watermark.

        Changes nothing but a memory of failing, which spares looking again until more blocks are available. The only one in the house always fits.
        """
        running = len(self._seats.running)
        if running >= self._config.max_sequences - self._seats.kept_from(sequence):
            return False
        if not running:
            return True
        available = self._cache.available - self._promised
        if available <= sequence.retry_above:
            return False
        total = len(sequence.tokens)
        matched = [] if sequence.scores else sequence.kv.match(total - 1)
        revived = sum(not self._cache.is_held(node) for node in matched)
        needed = -(-total // self._cache.block_size) - len(matched) + revived
        if available - self._watermark >= needed:
            return True
        sequence.retry_above = available
        return False

    def _seat(self, level: int) -> Sequence:
        sequence = self._seats.take_next(level)
        record = sequence.record
        if not sequence.opened and not record.preemptions and record.first_token_at is None:
            self._counters.prompt_tokens += sequence.prompt_length
        return sequence

    def _blocks_left(self, sequence: Sequence) -> int:
        return -(-len(sequence.tokens) // self._cache.block_size) - len(sequence.kv.table)
