"""HTTP/2 written by hand, for what no client library does: calls whose answers may never be sent."""

from __future__ import annotations

import struct
from collections.abc import Sequence

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS = 0, 1, 4
END_STREAM, END_HEADERS = 1, 4
INITIAL_WINDOW_SIZE = 4
GENERATE = b"/firsttoken.v1.Generation/Generate"


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """A header without compression (RFC 7541, 6.2.2)."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def greeting(window: int) -> bytes:
    """The connection's opening by a client that lets the server send so many bytes on each stream, and never more."""
    return PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, window))


def call(path: bytes, message: bytes, *, stream: int = 1, metadata: Sequence[tuple[bytes, bytes]] = ()) -> bytes:
    """A gRPC call with one message. ``stream``: odd, and each call's above the one before."""
    fields = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"test"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
        *metadata,
    )
    headers = b"".join(literal(name, value) for name, value in fields)
    body = b"\x00" + struct.pack(">I", len(message)) + message
    return frame(HEADERS, END_HEADERS, stream, headers) + frame(DATA, END_STREAM, stream, body)
