"""HTTP/2 frames (RFC 9113, sections 4 and 6): packing, and cutting a byte stream into frames."""

from __future__ import annotations

import struct
from typing import Final

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

DATA: Final = 0x0
HEADERS: Final = 0x1
RST_STREAM: Final = 0x3
SETTINGS: Final = 0x4
PUSH_PROMISE: Final = 0x5
PING: Final = 0x6
GOAWAY: Final = 0x7
WINDOW_UPDATE: Final = 0x8
CONTINUATION: Final = 0x9

END_STREAM: Final = 0x1
ACK: Final = 0x1
END_HEADERS: Final = 0x4
PADDED: Final = 0x8
PRIORITY: Final = 0x20

SETTINGS_ENABLE_PUSH: Final = 0x2
SETTINGS_MAX_CONCURRENT_STREAMS: Final = 0x3
SETTINGS_INITIAL_WINDOW_SIZE: Final = 0x4
SETTINGS_MAX_FRAME_SIZE: Final = 0x5

NO_ERROR: Final = 0x0
REFUSED_STREAM: Final = 0x7
CANCEL: Final = 0x8
ENHANCE_YOUR_CALM: Final = 0xB

DEFAULT_WINDOW: Final = 65_535
MAX_WINDOW: Final = 2**31 - 1
DEFAULT_FRAME: Final = 16_384
HEADER_BYTES: Final = 9

_HEAD = struct.Struct(">HBBBI")
_WORD = struct.Struct(">I")
_SETTING = struct.Struct(">HI")


class ProtocolError(Exception):
    """The peer does not speak HTTP/2 as the RFC has it."""


def pack(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    size = len(payload)
    return _HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream) + payload


def pack_settings(values: dict[int, int]) -> bytes:
    return pack(SETTINGS, 0, 0, b"".join(_SETTING.pack(key, value) for key, value in values.items()))


def pack_window_update(stream: int, increment: int) -> bytes:
    return pack(WINDOW_UPDATE, 0, stream, _WORD.pack(increment))


def pack_reset(stream: int, code: int) -> bytes:
    return pack(RST_STREAM, 0, stream, _WORD.pack(code))


def read_word(payload: bytes, offset: int = 0) -> int:
    """The big-endian 32-bit number at ``offset``. Raises ProtocolError where the payload is too short."""
    if len(payload) < offset + 4:
        raise ProtocolError(f"a frame of {len(payload)} bytes is too short")
    return int(_WORD.unpack_from(payload, offset)[0])


def read_settings(payload: bytes) -> dict[int, int]:
    if len(payload) % _SETTING.size:
        raise ProtocolError(f"a SETTINGS frame of {len(payload)} bytes")
    return {int(key): int(value) for key, value in _SETTING.iter_unpack(payload)}


def strip_padding(flags: int, payload: bytes) -> bytes:
    """The payload of a DATA or HEADERS frame without its padding and without HEADERS' priority fields."""
    start, end = 0, len(payload)
    if flags & PADDED:
        start, end = 1, end - payload[0]
    if flags & PRIORITY:
        start += 5
    if start > end:
        raise ProtocolError("more padding than payload")
    return payload[start:end]


class FrameBuffer:
    """Cuts what a socket delivers into frames. Not thread-safe."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[tuple[int, int, int, bytes]]:
        """Add bytes; returns the complete frames as (kind, flags, stream, payload), oldest first."""
        buffer = self._rest + data if self._rest else data
        frames: list[tuple[int, int, int, bytes]] = []
        position, end = 0, len(buffer)
        unpack = _HEAD.unpack_from
        while end - position >= HEADER_BYTES:
            high, low, kind, flags, stream = unpack(buffer, position)
            stop = position + HEADER_BYTES + (high << 8 | low)
            if stop > end:
                break
            frames.append((kind, flags, stream & 0x7FFF_FFFF, buffer[position + HEADER_BYTES : stop]))
            position = stop
        self._rest = buffer[position:]
        return frames
