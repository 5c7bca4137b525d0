"""How many calls one connection has open: a client in a loop must not take the server with it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from server.errors import OverloadedError

RETRY = 1.0
"""Seconds."""


class ConnectionCalls:
    """Counts by the peer's address and port, which are one connection's. Event loop only.

    gRPC's own limit (max_concurrent_streams) would let the excess wait in the client, where nobody sees it; here it gets a status.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: dict[str, int] = {}

    @contextlib.contextmanager
    def entered(self, peer: str) -> Iterator[None]:
        """One call of ``peer``, from its beginning to its end. Raises OverloadedError.

        A Unix socket's peers have no names to tell them apart: they are not counted.
        """
        if peer.startswith("unix"):
            yield
            return
        count = self._open.get(peer, 0)
        if count >= self._most:
            raise OverloadedError(
                f"grpc.max_connection_calls: {count} calls are open on this connection, the limit is {self._most}",
                reason="connection_calls",
                retry_after=RETRY,
            )
        self._open[peer] = count + 1
        try:
            yield
        finally:
            self._leave(peer)

    def _leave(self, peer: str) -> None:
        left = self._open[peer] - 1
        if left:
            self._open[peer] = left
        else:
            del self._open[peer]

    def __len__(self) -> int:
        """Connections with calls."""
        return len(self._open)
