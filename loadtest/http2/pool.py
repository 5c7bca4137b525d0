"""Connections to one server: opened ahead, replaced when lost, one more whenever all are full."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from loadtest.errors import TargetError
from loadtest.http2.connection import RECEIVE_WINDOW, Connection, ConnectionGoneError

CONNECT_SECONDS = 10.0
STALLED_WINDOW = 64
"""Bytes that a stalled reader takes before its server feels it."""


class Security(msgspec.Struct, frozen=True):
    """How to trust the server and to be trusted by it. Files are PEM."""

    tls: bool = False
    authority: str | None = None
    """File with the certificates to trust; None = the system's."""
    certificate: str | None = None
    key: str | None = None

    def context(self) -> ssl.SSLContext | None:
        if not self.tls:
            return None
        context = ssl.create_default_context(cafile=self.authority)
        context.set_alpn_protocols(["h2"])
        if self.certificate is not None:
            context.load_cert_chain(self.certificate, self.key)
        return context


def host_and_port(address: str) -> tuple[str, int]:
    """Split "host:port" or "[v6]:port". Raises TargetError naming the address."""
    parts = urlsplit(f"//{address}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise TargetError(f"target: {address!r} is not host:port ({error})") from None
    if not host or port is None:
        raise TargetError(f"target: {address!r} is not host:port")
    return host, port


class ConnectionPool:
    """Spreads streams over connections: the one with the fewest active streams takes the next. One loop only."""

    def __init__(
        self, address: str, *, size: int = 1, security: Security | None = None, window: int = RECEIVE_WINDOW
    ) -> None:
        self.address = address
        self._unix = address.removeprefix("unix:") if address.startswith("unix:") else None
        self._place = None if self._unix else host_and_port(address)
        self._size = size
        self._window = window
        self._context = (security or Security()).context()
        self._connections: list[Connection] = []
        self._growing = asyncio.Lock()

    @property
    def scheme(self) -> str:
        return "https" if self._context else "http"

    async def open(self) -> None:
        """Connect. Raises TargetError when the server cannot be reached."""
        while len(self._connections) < self._size:
            self._connections.append(await self._connect())

    def try_pick(self) -> Connection | None:
        """The least busy connection with room; None where there is none and :meth:`pick` must be awaited."""
        free = [each for each in self._connections if each.open and each.active < each.max_streams]
        return min(free, key=lambda each: each.active) if free else None

    async def pick(self) -> Connection:
        """As :meth:`try_pick`, connecting where needed. Raises TargetError."""
        async with self._growing:
            if (connection := self.try_pick()) is not None:
                return connection
            self._connections = [each for each in self._connections if each.open]
            self._connections.append(await self._connect())
            return self._connections[-1]

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                if self._place is None:
                    path = str(Path(self._unix or ""))
                    _, made = await loop.create_unix_connection(lambda: Connection(self._window), path)
                else:
                    _, made = await loop.create_connection(
                        lambda: Connection(self._window), *self._place, ssl=self._context
                    )
                await made.ready
        except (OSError, TimeoutError, ConnectionGoneError) as error:
            reason = str(error) or f"no answer within {CONNECT_SECONDS:g} s"
            raise TargetError(f"cannot reach {self.address}: {reason}") from error
        return made

    def close(self) -> None:
        for connection in self._connections:
            connection.close()
        self._connections.clear()


def stalled_pool(address: str, security: Security | None) -> ConnectionPool:
    """A pool whose streams take almost nothing: for clients that stop reading."""
    return ConnectionPool(address, security=security, window=STALLED_WINDOW)
