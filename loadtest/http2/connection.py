"""A client's HTTP/2 connection on asyncio (RFC 9113): streams, flow control, and the frames that keep a connection alive."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import cast

from hpack import Decoder, Encoder, HPACKError

from loadtest.http2 import frames
from loadtest.http2.frames import FrameBuffer, ProtocolError
from loadtest.http2.stream import Headers, Listener, Stream

RECEIVE_WINDOW = 16 * 1024 * 1024
FIRST_STREAM = 1
LAST_STREAM = 2**31 - 1


class ConnectionGoneError(ConnectionError):
    """The connection is closed, or takes no new streams."""


class Connection(asyncio.Protocol):
    """Not thread-safe: everything happens on the loop that made it. ``window`` bounds what a peer may send on one stream unread."""

    def __init__(self, window: int = RECEIVE_WINDOW) -> None:
        self._window = window
        self._buffer = FrameBuffer()
        self._encoder = Encoder()
        self._decoder = Decoder()
        self._transport: asyncio.Transport | None = None
        self._streams: dict[int, Stream] = {}
        self._next_id = FIRST_STREAM
        self._send_window = frames.DEFAULT_WINDOW
        self._peer_window = frames.DEFAULT_WINDOW
        self._peer_frame = frames.DEFAULT_FRAME
        self._unacknowledged = 0
        self._header_block: tuple[int, int, bytearray] | None = None
        self._closing: str | None = None
        self.reading = True
        """False = a stalled reader: streams get no window back, so that a server feels one that does not take its tokens."""
        self.max_streams = LAST_STREAM
        """What the peer permits at once."""
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the peer's settings arrived."""
        self._handlers: Mapping[int, Callable[[int, int, bytes, float], None]] = {
            frames.DATA: self._on_data,
            frames.HEADERS: self._on_headers,
            frames.CONTINUATION: self._on_continuation,
            frames.RST_STREAM: self._on_reset,
            frames.SETTINGS: self._on_settings,
            frames.PUSH_PROMISE: self._on_push,
            frames.PING: self._on_ping,
            frames.GOAWAY: self._on_goaway,
            frames.WINDOW_UPDATE: self._on_window_update,
        }

    # ------------------------------------------------------------------ for callers

    @property
    def open(self) -> bool:
        """Takes new streams."""
        return self._closing is None and self._transport is not None

    @property
    def active(self) -> int:
        return len(self._streams)

    def request(self, headers: Headers, body: bytes, listener: Listener, *, end: bool = True) -> Stream:
        """Open a stream and send on it. Raises ConnectionGoneError where no stream can be opened."""
        if not self.open or self._next_id > LAST_STREAM:
            raise ConnectionGoneError(self._closing or "not connected")
        stream = Stream(self._next_id, listener, self._peer_window)
        self._next_id += 2
        self._streams[stream.id] = stream
        stream.pending += body
        stream.end_wanted = end
        self._write(frames.pack(frames.HEADERS, frames.END_HEADERS, stream.id, self._encoder.encode(headers)))
        self._flush(stream)
        return stream

    def send(self, stream: Stream, body: bytes, *, end: bool) -> None:
        """Send more on an open stream; ignored once the stream is over."""
        if stream.id in self._streams:
            stream.pending += body
            stream.end_wanted = end
            self._flush(stream)

    def cancel(self, stream: Stream) -> None:
        """Reset the stream; its listener hears nothing more. Ignored once the stream is over."""
        if self._streams.pop(stream.id, None) is not None and self._transport is not None:
            self._write(frames.pack_reset(stream.id, frames.CANCEL))

    def close(self) -> None:
        if self._transport is not None:
            self._write(frames.pack(frames.GOAWAY, 0, 0, bytes(8)))
            self._transport.close()
        self._closing = self._closing or "closed by the client"

    # ------------------------------------------------------------------ asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Of a TCP connection it always is one; uvloop's has the methods and not the base class.
        self._transport = stream = cast("asyncio.Transport", transport)
        settings = frames.pack_settings(
            {frames.SETTINGS_ENABLE_PUSH: 0, frames.SETTINGS_INITIAL_WINDOW_SIZE: self._window}
        )
        grant = frames.pack_window_update(0, frames.MAX_WINDOW - frames.DEFAULT_WINDOW)
        stream.write(frames.PREFACE + settings + grant)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        try:
            for kind, flags, stream, payload in self._buffer.feed(data):
                handler = self._handlers.get(kind)
                if handler is not None:  # unknown kinds must be ignored (RFC 9113, 4.1)
                    handler(flags, stream, payload, now)
        except (ProtocolError, HPACKError) as error:
            self._lose(f"protocol error: {error}", now)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(f"connection lost: {exc}" if exc else "connection closed by the server", time.monotonic())

    # ------------------------------------------------------------------ frames

    def _on_data(self, flags: int, stream_id: int, payload: bytes, now: float) -> None:
        size = len(payload)
        self._unacknowledged += size
        if self._unacknowledged > RECEIVE_WINDOW:
            self._write(frames.pack_window_update(0, self._unacknowledged))
            self._unacknowledged = 0
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        if size:
            stream.unacknowledged += size
            if self.reading and stream.unacknowledged > self._window >> 1:
                self._write(frames.pack_window_update(stream_id, stream.unacknowledged))
                stream.unacknowledged = 0
            stream.listener.on_data(frames.strip_padding(flags, payload) if flags & frames.PADDED else payload, now)
        if flags & frames.END_STREAM:
            self._end(stream_id, now)

    def _on_headers(self, flags: int, stream_id: int, payload: bytes, now: float) -> None:
        block = bytearray(frames.strip_padding(flags, payload))
        self._header_block = (stream_id, flags, block)
        if flags & frames.END_HEADERS:
            self._finish_headers(now)

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes, now: float) -> None:
        if self._header_block is None or self._header_block[0] != stream_id:
            raise ProtocolError("CONTINUATION without HEADERS")
        self._header_block[2].extend(payload)
        if flags & frames.END_HEADERS:
            self._finish_headers(now)

    def _finish_headers(self, now: float) -> None:
        if self._header_block is None:
            raise ProtocolError("no header block")
        stream_id, flags, block = self._header_block
        self._header_block = None
        # Decoded even when nobody listens: the table's state belongs to the connection.
        headers = [(str(name), str(value)) for name, value in self._decoder.decode(bytes(block))]
        stream = self._streams.get(stream_id)
        if stream is None:
            return
        ended = bool(flags & frames.END_STREAM)
        stream.listener.on_headers(headers, now, ended=ended)
        if ended:
            self._end(stream_id, now)

    def _end(self, stream_id: int, now: float) -> None:
        stream = self._streams.pop(stream_id, None)
        if stream is None:
            return
        if not stream.end_sent:
            self._write(frames.pack_reset(stream_id, frames.NO_ERROR))
        stream.listener.on_end(now)

    def _on_reset(self, _flags: int, stream_id: int, payload: bytes, now: float) -> None:
        stream = self._streams.pop(stream_id, None)
        if stream is not None:
            stream.listener.on_reset(frames.read_word(payload), "reset by the server", now)

    def _on_settings(self, flags: int, _stream: int, payload: bytes, _now: float) -> None:
        if flags & frames.ACK:
            return
        settings = frames.read_settings(payload)
        self.max_streams = settings.get(frames.SETTINGS_MAX_CONCURRENT_STREAMS, self.max_streams)
        self._peer_frame = settings.get(frames.SETTINGS_MAX_FRAME_SIZE, self._peer_frame)
        window = settings.get(frames.SETTINGS_INITIAL_WINDOW_SIZE, self._peer_window)
        grown = window - self._peer_window
        self._peer_window = window
        self._write(frames.pack(frames.SETTINGS, frames.ACK, 0))
        for stream in list(self._streams.values()):
            stream.send_window += grown
            self._flush(stream)
        if not self.ready.done():
            self.ready.set_result(None)

    def _on_push(self, _flags: int, _stream: int, _payload: bytes, _now: float) -> None:
        raise ProtocolError("a push that the settings forbid")

    def _on_ping(self, flags: int, _stream: int, payload: bytes, _now: float) -> None:
        if not flags & frames.ACK:
            self._write(frames.pack(frames.PING, frames.ACK, 0, payload))

    def _on_goaway(self, _flags: int, _stream: int, payload: bytes, now: float) -> None:
        last, code = frames.read_word(payload), frames.read_word(payload, 4)
        debug = payload[8:].decode("utf-8", "replace")
        self._closing = f"the server said GOAWAY (code {code}) {debug}".rstrip()
        for stream_id in [each for each in self._streams if each > last]:
            self._streams.pop(stream_id).listener.on_reset(frames.REFUSED_STREAM, self._closing, now)

    def _on_window_update(self, _flags: int, stream_id: int, payload: bytes, _now: float) -> None:
        increment = frames.read_word(payload) & frames.MAX_WINDOW
        if stream_id == 0:
            self._send_window += increment
            for each in list(self._streams.values()):
                self._flush(each)
        elif (stream := self._streams.get(stream_id)) is not None:
            stream.send_window += increment
            self._flush(stream)

    # ------------------------------------------------------------------ sending

    def _flush(self, stream: Stream) -> None:
        """Send what both windows allow; the end flag goes with the last byte."""
        pending = stream.pending
        while pending and (size := min(len(pending), stream.send_window, self._send_window, self._peer_frame)) > 0:
            chunk = bytes(pending[:size])
            del pending[:size]
            stream.send_window -= size
            self._send_window -= size
            stream.end_sent = stream.end_wanted and not pending
            self._write(frames.pack(frames.DATA, frames.END_STREAM if stream.end_sent else 0, stream.id, chunk))
        if not pending and stream.end_wanted and not stream.end_sent:
            stream.end_sent = True
            self._write(frames.pack(frames.DATA, frames.END_STREAM, stream.id))

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _lose(self, reason: str, now: float) -> None:
        self._closing = self._closing or reason
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        if not self.ready.done():
            self.ready.set_exception(ConnectionGoneError(self._closing))
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.listener.on_reset(frames.REFUSED_STREAM, self._closing, now)
