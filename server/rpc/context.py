"""The part of gRPC's call context that we use, with types: grpcio has none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn, Protocol

import grpc

Metadata = Sequence[tuple[str, str]]


class CallContext(Protocol):
    """One call, as grpc.aio gives it to a handler."""

    async def write(self, message: object) -> None:
        """Returns when the transport took the message: long before the client read it, and not at all while a client that does
        not read has some megabytes waiting."""
        ...

    async def send_initial_metadata(self, metadata: Metadata) -> None:
        """From then on a client's retry policy no longer applies."""
        ...

    def peer(self) -> str:
        """Where the call comes from: ``ipv4:ADDRESS:PORT``, ``ipv6:…`` or ``unix:…``."""
        ...

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """What the transport knows of the peer; its certificate's names where it showed one that was verified."""
        ...

    def invocation_metadata(self) -> Metadata | None: ...

    def time_remaining(self) -> float | None:
        """Seconds until the call's deadline, 0 when it has passed; None where the client set none."""
        ...

    def code(self) -> grpc.StatusCode | int | None: ...

    async def abort_with_status(self, status: grpc.Status) -> NoReturn: ...

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn: ...
