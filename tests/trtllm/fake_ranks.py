"""The ranks of the contract fake: real MPI where mpirun started them, one rank alone otherwise."""

from __future__ import annotations

import os
import time
from typing import Any

_DISMISSED = 77
_POLL = 0.01
"""Seconds: Open MPI's own blocking calls would each burn a core."""


class Ranks:
    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self.rank: int = 0 if comm is None else comm.Get_rank()
        self.size: int = 1 if comm is None else comm.Get_size()

    def meet(self) -> None:
        """Wait until every rank has come so far, as the real executor's construction does."""
        if self._comm is not None:
            meeting = self._comm.Ibarrier()
            while not meeting.Test():
                time.sleep(_POLL)

    def dismiss(self) -> None:
        """The leader lets the others go."""
        for rank in range(1, self.size):
            self._comm.isend(None, dest=rank, tag=_DISMISSED).wait()

    def wait_for_dismissal(self) -> None:
        while not self._comm.iprobe(source=0, tag=_DISMISSED):
            time.sleep(_POLL)
        self._comm.recv(source=0, tag=_DISMISSED)

    def hang(self) -> None:
        while True:
            time.sleep(_POLL)


def world() -> Ranks:
    if int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1")) == 1:
        return Ranks(None)
    from mpi4py import MPI

    return Ranks(MPI.COMM_WORLD)
