"""Which ranks have joined, how far each has come, and who has gone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from dataclasses import dataclass

from server.ranks.messages import LOADED, Ended, Hello, Report, ToRank, from_rank, line

LEADER = 0


@dataclass(slots=True)
class Member:
    rank: int
    pid: int
    writer: asyncio.StreamWriter
    state: str = "started"
    status: int | None = None
    """Its exit status, once it said that it goes by itself."""
    gone: bool = False


class Members:
    """The supervisor's book. Event loop only."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._members: dict[int, Member] = {}
        self._waiting: list[ToRank] = []
        """For a leader that has not joined yet."""
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Which rank went without a word."""
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """The leader's exit status."""
        self.joined = asyncio.Event()
        """Every rank is there."""
        self.loaded = asyncio.Event()
        """Every rank has its weights."""

    async def welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One rank's connection, from its first word to its end."""
        hello = from_rank(await reader.readline())
        if not isinstance(hello, Hello):
            raise TypeError(f"a rank began with {hello}")
        member = self._members[hello.rank] = Member(hello.rank, hello.pid, writer)
        if len(self._members) == self._world_size:
            self.joined.set()
        if member.rank == LEADER:
            for message in self._waiting:
                writer.write(line(message))
            self._waiting.clear()
        with contextlib.suppress(ConnectionError):
            while text := await reader.readline():
                self._hear(member, from_rank(text))
        member.gone = True
        if member.status is None and not self.lost.done():
            self.lost.set_result(f"rank {member.rank} (process {member.pid}) has gone")

    def tell_leader(self, message: ToRank) -> None:
        leader = self._members.get(LEADER)
        if leader is None:
            self._waiting.append(message)
        elif not leader.gone:
            leader.writer.write(line(message))

    def progress(self) -> str:
        """One line for who waits: "rank 0 loaded, rank 1 loading, rank 2 not started"."""
        states = (self._members.get(rank) for rank in range(self._world_size))
        return ", ".join(
            f"rank {rank} {'not started' if one is None else 'gone' if one.gone else one.state}"
            for rank, one in enumerate(states)
        )

    def kill(self) -> None:
        """SIGKILL to every rank that still holds its connection: its process id is its own as long as it does."""
        for member in self._members.values():
            if not member.gone:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(member.pid, signal.SIGKILL)

    def _hear(self, member: Member, message: object) -> None:
        if isinstance(message, Report):
            member.state = message.state
            joined = list(self._members.values())
            if len(joined) == self._world_size and all(one.state == LOADED for one in joined):
                self.loaded.set()
        elif isinstance(message, Ended):
            member.status, member.state = message.status, f"ended with {message.status}"
            if member.rank == LEADER and not self.ended.done():
                self.ended.set_result(message.status)
            elif member.rank != LEADER and message.status and not self.lost.done():
                self.lost.set_result(f"rank {member.rank} ended with status {message.status}")
