"""What we believe goes on inside a request executor: who runs, who waits there, and how many blocks are spoken for."""

from __future__ import annotations

from typing import NamedTuple

from engines.contract import ExecutorLimits
from server.kv.block_pool import IntegrityError


class Demand(NamedTuple):
    """What the executor sets aside for a request that runs."""

    blocks: int
    seats: int


class ExecutorMirror:
    """Follows an executor that reserves the worst case (prompt + max_tokens) for whoever it lets run, in order of arrival.

    The picture may lag behind, never for long: a request that answers is known to run, one that ends is known to be gone. Engine
    thread only, but for ``blocks``.
    """

    __slots__ = ("_inner", "_limits", "_reserved", "_running", "_seats", "inner_queue")

    def __init__(self, limits: ExecutorLimits, inner_queue: int) -> None:
        """``inner_queue``: how many requests may wait inside, so that the executor finds its next one without asking us."""
        if inner_queue < 1:
            raise ValueError(
                f"inner_queue must be at least 1, not {inner_queue}: the executor would idle between two requests"
            )
        needed = -(-limits.max_context // limits.block_size)
        if limits.block_count < needed:
            raise ValueError(
                f"the executor has {limits.block_count} KV blocks, but one sequence of max_context {limits.max_context} tokens "
                f"needs {needed} blocks of {limits.block_size}"
            )
        self.inner_queue = inner_queue
        self._limits = limits
        self._running: dict[int, Demand] = {}
        self._inner: dict[int, Demand] = {}
        self._reserved = 0
        self._seats = 0

    @property
    def reserved(self) -> int:
        """Blocks spoken for by those who run."""
        return self._reserved

    @property
    def seats(self) -> int:
        """Seats that they hold."""
        return self._seats

    @property
    def waiting_inside(self) -> int:
        return len(self._inner)

    def demand(self, prompt_tokens: int, max_tokens: int) -> int:
        """Blocks that the executor reserves for each sequence of such a request."""
        return -(-(prompt_tokens + max_tokens) // self._limits.block_size)

    def blocks(self, request: int) -> int:
        """What is set aside for one who is inside, or will be; 0 of who is not. Any thread."""
        # In this order: who begins to run is among those who run before it has left the others.
        demand = self._inner.get(request) or self._running.get(request)
        return 0 if demand is None else demand.blocks

    @property
    def can_enter(self) -> bool:
        """Whether one more should be handed over now: it will run, or be among the few who wait inside."""
        return len(self._inner) < self.inner_queue

    def enter(self, request: int, blocks: int, seats: int = 1) -> list[int]:
        """The request was handed over; it needs so many blocks and seats. Returns who runs now that did not."""
        self._inner[request] = Demand(blocks, seats)
        return self._admit()

    def runs(self, request: int) -> None:
        """The request has answered, so it runs, whatever we thought: reuse may have made room that we do not count on."""
        demand = self._inner.get(request)
        if demand is not None:
            self._run(request, demand)

    def leave(self, request: int) -> list[int]:
        """The request's final response has come. Returns who runs now that did not."""
        demand = self._running.pop(request, None)
        if demand is None:
            del self._inner[request]
        else:
            self._reserved -= demand.blocks
            self._seats -= demand.seats
        return self._admit()

    def _admit(self) -> list[int]:
        began = list[int]()
        while self._inner:
            request, demand = next(iter(self._inner.items()))
            if not self._fits(demand):
                break
            self._run(request, demand)
            began.append(request)
        return began

    def _run(self, request: int, demand: Demand) -> None:
        self._running[request] = demand
        del self._inner[request]
        self._reserved += demand.blocks
        self._seats += demand.seats

    def _fits(self, demand: Demand) -> bool:
        limits = self._limits
        seats, blocks = self._seats + demand.seats, self._reserved + demand.blocks
        return seats <= limits.max_batch_size and blocks <= limits.block_count

    def check_integrity(self, inside: set[int]) -> None:
        """``inside``: everyone handed over and not ended."""
        if self._running.keys() & self._inner.keys() or self._running.keys() | self._inner.keys() != inside:
            raise IntegrityError(
                f"inside are {sorted(inside)}, mirrored {sorted(self._running)} + {sorted(self._inner)}"
            )
        blocks, seats = (sum(column) for column in zip(Demand(0, 0), *self._running.values(), strict=True))
        if (blocks, seats) != (self._reserved, self._seats):
            raise IntegrityError(
                f"{blocks} blocks and {seats} seats are taken, counted {self._reserved} and {self._seats}"
            )
        if len(self._inner) > self.inner_queue:
            raise IntegrityError(f"{len(self._inner)} wait inside, the limit is {self.inner_queue}")
        if self._inner and not self._running:
            raise IntegrityError("requests wait inside an executor that runs nothing")
