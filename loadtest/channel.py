"""Messages between the command and its client processes: msgpack, each after its length, over a pipe."""

from __future__ import annotations

import asyncio
import struct
from typing import TypeAlias

import msgspec

from loadtest.client_health import ClientHealth
from loadtest.progress import Snapshot
from loadtest.record import Wire
from loadtest.transports.base import LoadSample, Target, TargetFacts
from loadtest.workload import Workload

_LENGTH = struct.Struct(">I")


class Job(msgspec.Struct, frozen=True, tag=True):
    """To a process: what to send, where, and which share of it is its own."""

    workload: Workload
    target: Target
    share: int
    shares: int


class Start(msgspec.Struct, frozen=True, tag=True):
    """To a process: begin at this moment of the monotonic clock, which all processes of a machine share."""

    at: float


class Ready(msgspec.Struct, frozen=True, tag=True):
    """From a process: connected."""

    facts: TargetFacts


class Update(msgspec.Struct, frozen=True, tag=True):
    """From a process, twice a second. ``load`` comes from the first process only."""

    at: float
    snapshot: Snapshot
    records: list[Wire]
    load: LoadSample | None = None


class Done(msgspec.Struct, frozen=True, tag=True):
    health: ClientHealth


class Failed(msgspec.Struct, frozen=True, tag=True):
    """From a process: it could not go on. ``kind`` is the error's class in loadtest.errors, empty for a fault of ours."""

    kind: str
    message: str


ToWorker: TypeAlias = Job | Start
FromWorker: TypeAlias = Ready | Update | Done | Failed


def pack(message: ToWorker | FromWorker) -> bytes:
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body


async def read_body(reader: asyncio.StreamReader) -> bytes | None:
    """The next message's bytes; None at the pipe's end."""
    try:
        (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return await reader.readexactly(size)
    except asyncio.IncompleteReadError:
        return None
