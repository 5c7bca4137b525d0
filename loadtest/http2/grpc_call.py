"""gRPC over an HTTP/2 stream (the public specification "gRPC over HTTP2"): length-prefixed messages and a status at the end."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, TypeAlias
from urllib.parse import unquote

from loadtest.http2.stream import Headers

STATUS_NAMES: Final = (
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
)
_FROM_RESET: Final = {0x7: "UNAVAILABLE", 0x8: "CANCELLED", 0xB: "RESOURCE_EXHAUSTED", 0xC: "PERMISSION_DENIED"}
_FROM_HTTP: Final = {
    "400": "INTERNAL",
    "401": "UNAUTHENTICATED",
    "403": "PERMISSION_DENIED",
    "404": "UNIMPLEMENTED",
    "429": "UNAVAILABLE",
    "502": "UNAVAILABLE",
    "503": "UNAVAILABLE",
    "504": "UNAVAILABLE",
}
_PREFIX = struct.Struct(">BI")

OnMessage: TypeAlias = Callable[[bytes, float], None]
OnStatus: TypeAlias = Callable[[str, str, float], None]


def frame_message(payload: bytes) -> bytes:
    return _PREFIX.pack(0, len(payload)) + payload


def timeout_header(seconds: float) -> str:
    """The ``grpc-timeout`` value: at most eight digits and a unit."""
    micros = max(1, round(seconds * 1e6))
    return f"{micros}u" if micros < 10**8 else f"{min(round(seconds * 1e3), 10**8 - 1)}m"


def status_of_reset(code: int) -> str:
    """The status that the specification gives an HTTP/2 error code."""
    return _FROM_RESET.get(code, "INTERNAL")


class CallListener:
    """Turns one stream's events into messages and exactly one status. Not thread-safe."""

    __slots__ = ("_buffer", "_headers", "_on_message", "_on_status", "_over")

    def __init__(self, on_message: OnMessage, on_status: OnStatus) -> None:
        self._on_message = on_message
        self._on_status = on_status
        self._buffer = b""
        self._headers: dict[str, str] = {}
        self._over = False

    def on_headers(self, headers: Headers, now: float, *, ended: bool) -> None:  # noqa: ARG002 - the listener's signature
        self._headers.update(headers)

    def on_data(self, data: bytes, now: float) -> None:
        buffer = self._buffer + data if self._buffer else data
        position, end = 0, len(buffer)
        while end - position >= _PREFIX.size and not self._over:
            compressed, size = _PREFIX.unpack_from(buffer, position)
            stop = position + _PREFIX.size + size
            if compressed:
                self.finish("INTERNAL", "a compressed message that was not asked for", now)
            if stop > end:
                break
            self._on_message(buffer[position + _PREFIX.size : stop], now)
            position = stop
        self._buffer = buffer[position:]

    def on_end(self, now: float) -> None:
        code = self._headers.get("grpc-status")
        if code is None:
            http = self._headers.get(":status", "?")
            self.finish(_FROM_HTTP.get(http, "UNKNOWN"), f"HTTP status {http} without a gRPC status", now)
            return
        number = int(code) if code.isdigit() else 2
        name = STATUS_NAMES[number] if number < len(STATUS_NAMES) else "UNKNOWN"
        self.finish(name, unquote(self._headers.get("grpc-message", "")), now)

    def on_reset(self, code: int, reason: str, now: float) -> None:
        # A server may end the stream with trailers and then reset it: the status that was said counts.
        if "grpc-status" in self._headers:
            self.on_end(now)
        else:
            self.finish(status_of_reset(code), reason, now)

    def finish(self, status: str, message: str, now: float) -> None:
        """The call is over, said by the peer or decided here (deadline, cancel). Only the first counts."""
        if not self._over:
            self._over = True
            self._on_status(status, message, now)
