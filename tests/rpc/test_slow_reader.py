"""A client that does not read: its memory is bounded, its seat is freed, nobody else notices."""

from __future__ import annotations

import asyncio
import struct

from tests.fakes.fake_engine import FakeEngine
from tests.fakes.running import collect, request, running, until

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS = 0, 1, 4
END_STREAM, END_HEADERS = 1, 4
INITIAL_WINDOW_SIZE = 4


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    """A header without compression (RFC 7541, 6.2.2)."""
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def call_with_no_window(path: bytes, message: bytes) -> bytes:
    """A gRPC call whose client lets the server send not one byte of data."""
    fields = (
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"test"),
        (b"content-type", b"application/grpc"),
        (b"te", b"trailers"),
    )
    headers = b"".join(literal(name, value) for name, value in fields)
    body = b"\x00" + struct.pack(">I", len(message)) + message
    return (
        PREFACE
        + frame(SETTINGS, 0, 0, struct.pack(">HI", INITIAL_WINDOW_SIZE, 0))
        + frame(HEADERS, END_HEADERS, 1, headers)
        + frame(DATA, END_STREAM, 1, body)
    )


async def test_a_stalled_reader_is_cut_off_and_others_stream_on_case_H10() -> None:
    engine = FakeEngine(step_seconds=0.0005, max_context=1_000_000)
    async with running(engine, limits__reader_stall=0.5, lifecycle__warm_up=False) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.app.grpc_port)
        message = request(max_tokens=900_000).SerializeToString()
        writer.write(call_with_no_window(b"/firsttoken.v1.Generation/Generate", message))
        await until(lambda: bool(engine.live))
        _, _, final = await collect(server.generation.Generate(request(max_tokens=50)))
        assert final.usage.completion_tokens == 50
        await until(lambda: not engine.live, 60)
        await until(lambda: not server.app._open_streams())
        samples = await server.metrics()
        assert samples["firsttoken_requests_total{class=interactive,outcome=stalled}"] == 1
        writer.close()
        await reader.read()
