"""One HTTP/2 stream of a client: what it has yet to send, what it may still receive, and who listens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

Headers: TypeAlias = Sequence[tuple[str, str]]


class Listener(Protocol):
    """Who is told what happens to a stream. Called on the event loop, inside the socket's read: must be quick.

    ``now`` is ``time.monotonic()`` taken once, when the socket was read."""

    def on_headers(self, headers: Headers, now: float, *, ended: bool) -> None: ...

    def on_data(self, data: bytes, now: float) -> None: ...

    def on_end(self, now: float) -> None:
        """The peer ended the stream in order."""
        ...

    def on_reset(self, code: int, reason: str, now: float) -> None:
        """The stream is gone: reset by the peer, or its connection was lost. ``code`` is an HTTP/2 error code."""
        ...


class Stream:
    """Flow control of one stream. ``send_window`` is what the peer allows us, ``unacknowledged`` what we took and have not given back."""

    __slots__ = ("end_sent", "end_wanted", "id", "listener", "pending", "send_window", "unacknowledged")

    def __init__(self, stream_id: int, listener: Listener, send_window: int) -> None:
        self.id = stream_id
        self.listener = listener
        self.send_window = send_window
        self.pending = bytearray()
        """Bytes that wait for the peer's window."""
        self.end_wanted = False
        """No more will be added to ``pending``: its last byte carries the end."""
        self.end_sent = False
        self.unacknowledged = 0
