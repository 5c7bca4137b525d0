"""What a step gives to each class, for the shares."""

from __future__ import annotations

from server.scheduling.composition import Composition
from server.scheduling.seats import Seats
from server.scheduling.sequence import Sequence
from server.scheduling.waiting_room import WaitingRoom


def account(step: Composition, room: WaitingRoom[Sequence], seats: Seats) -> None:
    """Tell the shares of a composed step. Nothing to decide, and nothing done, while there is only one class."""
    waiting, seated = room.by_class, seats.by_class
    if sum(bool(waiting[level] or seated[level]) for level in range(len(waiting))) < 2:
        return
    tokens, has_work = [0] * len(waiting), [count > 0 for count in waiting]
    for sequence in step.sampled[: step.decodes]:
        tokens[sequence.level] += 1
    for sequence, size in zip(step.chunked, step.chunks, strict=True):
        tokens[sequence.level] += size
    for sequence in seats.prefilling.values():
        has_work[sequence.level] = True
    room.shares.serve(tokens, has_work)
