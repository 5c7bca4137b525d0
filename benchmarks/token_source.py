"""A source of token messages that costs next to nothing, to find out what the load client can take: ``python -m benchmarks.token_source``.

It speaks just enough HTTP/2 and gRPC to look like firsttoken.v1.Generation: every message of a stream is packed by hand, and
carries the moment of its sending as its token id (microseconds of the monotonic clock, which processes of a machine share).
It prints its port and serves until its standard input closes.
"""

from __future__ import annotations

import argparse
import asyncio
import struct
import sys
import time

from hpack import Decoder, Encoder

from loadtest.http2 import frames
from loadtest.http2.frames import FrameBuffer
from loadtest.http2.grpc_call import frame_message
from protos.firsttoken.v1 import generation_pb2 as generation
from protos.firsttoken.v1 import operations_pb2 as operations

STAMP_BITS = 30
_HEAD = struct.Struct(">HBBBI")


def stamp() -> int:
    """Microseconds of the monotonic clock, cut to fit a token id."""
    return int(time.monotonic() * 1e6) & ((1 << STAMP_BITS) - 1)


class Source(asyncio.Protocol):
    """One connection. ``interval`` 0 = as fast as the socket takes them."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._buffer = FrameBuffer()
        self._encoder, self._decoder = Encoder(), Decoder()
        self._greeted = b""
        self._paths: dict[int, str] = {}
        self._bodies: dict[int, bytearray] = {}
        self._left: dict[int, int] = {}
        self._open = asyncio.Event()
        self._open.set()
        self._ticking: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not isinstance(transport, asyncio.Transport):
            raise TypeError(f"not a stream transport: {transport!r}")
        self._transport = transport
        window = {frames.SETTINGS_INITIAL_WINDOW_SIZE: frames.MAX_WINDOW}
        transport.write(
            frames.pack_settings(window) + frames.pack_window_update(0, frames.MAX_WINDOW - frames.DEFAULT_WINDOW)
        )

    def pause_writing(self) -> None:
        self._open.clear()

    def resume_writing(self) -> None:
        self._open.set()

    def connection_lost(self, _exc: Exception | None) -> None:
        if self._ticking is not None:
            self._ticking.cancel()

    def data_received(self, data: bytes) -> None:
        if len(self._greeted) < len(frames.PREFACE):
            data = self._greeted + data
            self._greeted, data = data[: len(frames.PREFACE)], data[len(frames.PREFACE) :]
        for kind, flags, stream, payload in self._buffer.feed(data):
            if kind == frames.SETTINGS and not flags & frames.ACK:
                self._transport.write(frames.pack(frames.SETTINGS, frames.ACK, 0))
            elif kind == frames.HEADERS:
                self._paths[stream] = {str(name): str(value) for name, value in self._decoder.decode(payload)}[":path"]
                self._bodies[stream] = bytearray()
            elif kind == frames.DATA:
                self._bodies[stream] += payload
                if flags & frames.END_STREAM:
                    self._answer(stream)

    def _answer(self, stream: int) -> None:
        path, body = self._paths.pop(stream), bytes(self._bodies.pop(stream)[5:])
        head = self._encoder.encode([(":status", "200"), ("content-type", "application/grpc")])
        self._transport.write(frames.pack(frames.HEADERS, frames.END_HEADERS, stream, head))
        if path.endswith("/Generate"):
            self._left[stream] = generation.GenerateRequest.FromString(body).max_tokens
            if self._ticking is None:
                self._ticking = asyncio.ensure_future(self._tick())
        else:
            info = operations.GetServerInfoResponse(model="token source")
            info.limits.vocab_size = 1 << STAMP_BITS
            message = frame_message(info.SerializeToString() if path.endswith("Info") else b"")
            self._transport.write(frames.pack(frames.DATA, 0, stream, message) + self._trailers(stream))

    def _trailers(self, stream: int) -> bytes:
        block = self._encoder.encode([("grpc-status", "0")])
        return frames.pack(frames.HEADERS, frames.END_HEADERS | frames.END_STREAM, stream, block)

    async def _tick(self) -> None:
        """One message to every stream, again and again."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due = max(due + self._interval, loop.time())
            await asyncio.sleep(due - loop.time())
            await self._open.wait()
            self._transport.write(b"".join(self._step()))

    def _step(self) -> list[bytes]:
        parts: list[bytes] = []
        ended: list[int] = []
        for stream, left in self._left.items():
            delta = generation.Delta(tokens=[stamp()], text=" word")
            message = frame_message(generation.GenerateResponse(delta=delta).SerializeToString())
            parts += (_HEAD.pack(0, len(message), frames.DATA, 0, stream), message)
            self._left[stream] = left - 1
            if left == 1:
                ended.append(stream)
        for stream in ended:
            del self._left[stream]
            parts.append(self._trailers(stream))
        return parts


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--interval", type=float, default=0.0)
    interval: float = parser.parse_args().interval
    server = await asyncio.get_running_loop().create_server(lambda: Source(interval), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
