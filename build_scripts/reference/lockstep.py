"""Ranks as coroutines in lock-step: a rank runs until it needs the others, and goes on when all that it needs have come.

A rank is a generator that yields an operation and is sent its result. The driver knows nothing of models: it sums what a
group's ranks hand in, joins what they gather, and carries what one stage sends to the next. Ranks that disagree about what
comes next, which on GPUs would hang, are an error that names them.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from build_scripts.reference.arithmetic import Array


@dataclass(frozen=True)
class AllReduce:
    """The sum over the stage's shards, in rank order."""

    label: str
    value: Array


@dataclass(frozen=True)
class AllGather:
    """The stage's shards side by side along the last axis, in rank order."""

    label: str
    value: Array


@dataclass(frozen=True)
class Send:
    """To the same shard of the next stage."""

    value: Array


@dataclass(frozen=True)
class Receive:
    """From the same shard of the stage before."""


Operation: TypeAlias = AllReduce | AllGather | Send | Receive
RankProgram: TypeAlias = Generator[Operation, Array, Array]
Coordinates: TypeAlias = tuple[int, int]
"""(stage, shard)"""


class LockstepError(Exception):
    """The ranks do not agree about what comes next."""


def run(programs: dict[Coordinates, RankProgram]) -> dict[Coordinates, Array]:
    """What each rank returns. Raises LockstepError where they would wait for each other for ever."""
    return _Driver(programs).run()


class _Driver:
    def __init__(self, programs: dict[Coordinates, RankProgram]) -> None:
        self._programs = programs
        self._pending: dict[Coordinates, Operation] = {}
        self._results: dict[Coordinates, Array] = {}

    def run(self) -> dict[Coordinates, Array]:
        for rank in sorted(self._programs):
            self._resume(rank, None)
        while self._pending:
            if not self._exchange():
                waiting = ", ".join(
                    f"{rank} in {_name(operation)}" for rank, operation in sorted(self._pending.items())
                )
                raise LockstepError(f"no rank can go on: {waiting}")
        return self._results

    def _resume(self, rank: Coordinates, answer: Array | None) -> None:
        self._pending.pop(rank, None)
        try:
            program = self._programs[rank]
            self._pending[rank] = next(program) if answer is None else program.send(answer)
        except StopIteration as end:
            self._results[rank] = end.value

    def _exchange(self) -> bool:
        """Complete every operation that can be completed."""
        moved = False
        for stage in sorted({stage for stage, _ in self._programs}):
            moved |= self._complete_group(stage)
            moved |= self._complete_transfers(stage)
        return moved

    def _complete_group(self, stage: int) -> bool:
        ranks = sorted(rank for rank in self._programs if rank[0] == stage)
        operations = [self._pending.get(rank) for rank in ranks]
        shared = [operation for operation in operations if isinstance(operation, AllReduce | AllGather)]
        if len(shared) != len(ranks):
            return False
        if len({_name(operation) for operation in shared}) > 1:
            raise LockstepError(f"stage {stage}'s ranks disagree: {', '.join(map(_name, shared))}")
        values = [operation.value for operation in shared]
        if isinstance(shared[0], AllReduce):
            answer = np.asarray(sum(values[1:], start=values[0]))
        else:
            answer = np.concatenate(values, -1)
        for rank in ranks:
            self._resume(rank, answer)
        return True

    def _complete_transfers(self, stage: int) -> bool:
        moved = False
        for rank in [rank for rank in sorted(self._pending) if rank[0] == stage]:
            send, target = self._pending.get(rank), (rank[0] + 1, rank[1])
            if isinstance(send, Send) and isinstance(self._pending.get(target), Receive):
                self._resume(target, send.value)
                self._resume(rank, send.value)
                moved = True
        return moved


def _name(operation: Operation) -> str:
    label = f" {operation.label}" if isinstance(operation, AllReduce | AllGather) else ""
    return f"{type(operation).__name__}{label}"
