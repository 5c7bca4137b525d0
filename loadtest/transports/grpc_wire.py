"""What both gRPC wires share: calls over the connection pool, deadlines on the client's side, unary calls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from loadtest.errors import TargetError
from loadtest.http2.connection import Connection, ConnectionGoneError
from loadtest.http2.grpc_call import CallListener, OnMessage, frame_message, timeout_header
from loadtest.http2.pool import ConnectionPool, stalled_pool
from loadtest.http2.stream import Headers, Stream
from loadtest.transports.base import Target

UNARY_SECONDS = 5.0
USER_AGENT = "firsttoken-load"


class GrpcCall:
    """One running call. Its deadline is kept here too, as every gRPC client does."""

    def __init__(self, connection: Connection, listener: CallListener) -> None:
        self._connection = connection
        self._listener = listener
        self.stream: Stream | None = None
        self.timer: asyncio.TimerHandle | None = None

    def cancel(self, status: str, detail: str) -> None:
        if self.stream is not None:
            self._connection.cancel(self.stream)
        self._listener.finish(status, detail, time.monotonic())

    def over(self) -> None:
        if self.timer is not None:
            self.timer.cancel()


class GrpcWire:
    """Starts calls on the least busy connection; calls that will stall go over connections of their own."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._pool = ConnectionPool(target.address, size=target.connections, security=target.security)
        self._stalled: ConnectionPool | None = None

    async def open(self) -> None:
        await self._pool.open()

    def close(self) -> None:
        self._pool.close()
        if self._stalled is not None:
            self._stalled.close()

    def headers(self, path: str, deadline: float | None) -> Headers:
        fixed = [
            (":method", "POST"),
            (":scheme", self._pool.scheme),
            (":path", path),
            (":authority", self._target.address),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", USER_AGENT),
        ]
        timeout = [("grpc-timeout", timeout_header(deadline))] if deadline is not None else []
        return fixed + timeout + [(name.lower(), value) for name, value in self._target.headers.items()]

    async def start(
        self,
        path: str,
        body: bytes,
        on_message: OnMessage,
        on_status: Callable[[str, str, float], None],
        *,
        deadline: float | None = None,
        stalls: bool = False,
        end: bool = True,
    ) -> GrpcCall:
        """Send ``body`` (framed already) on a new stream. Raises TargetError."""
        connection = await self._connection(stalls=stalls)
        call: GrpcCall

        def over(status: str, detail: str, now: float) -> None:
            call.over()
            on_status(status, detail, now)

        listener = CallListener(on_message, over)
        call = GrpcCall(connection, listener)
        try:
            call.stream = connection.request(self.headers(path, deadline), body, listener, end=end)
        except ConnectionGoneError as error:
            raise TargetError(f"cannot reach {self._target.address}: {error}") from error
        if deadline is not None:
            loop = asyncio.get_running_loop()
            call.timer = loop.call_later(deadline, call.cancel, "DEADLINE_EXCEEDED", "the client's deadline passed")
        return call

    async def unary(self, path: str, request: bytes) -> bytes:
        """One message for one message. Raises TargetError with the status where it fails."""
        answers: list[bytes] = []
        over: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()

        def on_status(status: str, detail: str, _now: float) -> None:
            if not over.done():
                over.set_result((status, detail))

        def on_message(message: bytes, _now: float) -> None:
            answers.append(message)

        await self.start(path, frame_message(request), on_message, on_status, deadline=UNARY_SECONDS)
        status, detail = await over
        if status != "OK" or len(answers) != 1:
            raise TargetError(f"{self._target.address} {path}: {status} {detail}".rstrip())
        return answers[0]

    async def _connection(self, *, stalls: bool) -> Connection:
        pool = self._pool
        if stalls:
            if self._stalled is None:
                self._stalled = stalled_pool(self._target.address, self._target.security)
            pool = self._stalled
        connection = pool.try_pick() or await pool.pick()
        connection.reading = not stalls
        return connection
