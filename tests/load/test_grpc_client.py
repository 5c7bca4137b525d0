"""Our gRPC client against grpc's own server."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import grpc
import pytest

from loadtest.errors import TargetError
from loadtest.http2.grpc_call import frame_message, timeout_header
from loadtest.transports.base import Target
from loadtest.transports.grpc_wire import GrpcWire


class Generic(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc ships no types
    """Streams back what the method's name asks for."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.metadata: dict[str, str] = {}
        self.remaining: float | None = None
        self.cancelled = asyncio.Event()
        self.written = 0

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        name = details.method.rpartition("/")[2]
        handler = getattr(self, name, None)
        return grpc.unary_stream_rpc_method_handler(handler) if handler is not None else None

    async def echo(self, request: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        self.seen.append(request)
        self.metadata = dict(context.invocation_metadata())
        self.remaining = context.time_remaining()
        for cut in (0, 1, len(request)):
            yield request[:cut]

    async def refuse(self, request: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        yield b"one"
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "field n: 100 % voll, für alle")

    async def forever(self, request: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        try:
            while True:
                yield b"x" * 100
                self.written += 1
                await asyncio.sleep(0.001)
        finally:
            self.cancelled.set()

    async def big(self, request: bytes, context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"y" * 1_000_000


class Seen:
    """Collects a call's events."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.first = asyncio.Event()
        self.over: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()
        self.statuses = 0

    def on_message(self, message: bytes, _now: float) -> None:
        self.messages.append(message)
        self.first.set()

    def on_status(self, status: str, detail: str, _now: float) -> None:
        self.statuses += 1
        self.over.set_result((status, detail))


@contextlib.asynccontextmanager
async def served(**target: object) -> AsyncIterator[tuple[Generic, GrpcWire]]:
    handler = Generic()
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", 64 << 20)])
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    wire = GrpcWire(Target("native", f"127.0.0.1:{port}", **target))  # type: ignore[arg-type]
    await wire.open()
    try:
        yield handler, wire
    finally:
        wire.close()
        await server.stop(0)


async def test_messages_metadata_and_deadline_cross_the_wire() -> None:
    async with served(headers={"Authorization": "Bearer x"}) as (handler, wire):
        seen = Seen()
        await wire.start("/s/echo", frame_message(b"hello"), seen.on_message, seen.on_status, deadline=5.0)
        assert await seen.over == ("OK", "")
        assert seen.messages == [b"", b"h", b"hello"]
        assert handler.metadata["authorization"] == "Bearer x"
        assert handler.remaining is not None
        assert 4.0 < handler.remaining <= 5.0


async def test_a_request_larger_than_every_window_arrives_whole() -> None:
    async with served() as (handler, wire):
        body = bytes(range(256)) * 40_000
        seen = Seen()
        await wire.start("/s/echo", frame_message(body), seen.on_message, seen.on_status)
        assert (await seen.over)[0] == "OK"
        assert handler.seen == [body]
        assert seen.messages[-1] == body


async def test_answers_larger_than_every_window_arrive_whole() -> None:
    async with served() as (_, wire):
        seen = Seen()
        await wire.start("/s/big", frame_message(b""), seen.on_message, seen.on_status)
        assert (await seen.over)[0] == "OK"
        assert [len(message) for message in seen.messages] == [1_000_000] * 20


async def test_a_status_amid_a_stream_comes_with_its_message() -> None:
    async with served() as (_, wire):
        seen = Seen()
        await wire.start("/s/refuse", frame_message(b""), seen.on_message, seen.on_status)
        assert await seen.over == ("RESOURCE_EXHAUSTED", "field n: 100 % voll, für alle")
        assert seen.messages == [b"one"]


async def test_an_unknown_method_is_unimplemented() -> None:
    async with served() as (_, wire):
        with pytest.raises(TargetError, match="UNIMPLEMENTED"):
            await wire.unary("/s/nothing", b"")


async def test_cancel_reaches_the_server_and_is_said_once() -> None:
    async with served() as (handler, wire):
        seen = Seen()
        call = await wire.start("/s/forever", frame_message(b""), seen.on_message, seen.on_status)
        await seen.first.wait()
        call.cancel("CLIENT_CANCELLED", "enough")
        call.cancel("CLIENT_CANCELLED", "again")
        assert await seen.over == ("CLIENT_CANCELLED", "enough")
        await asyncio.wait_for(handler.cancelled.wait(), 60)
        assert seen.statuses == 1


async def test_the_clients_own_deadline_ends_the_call() -> None:
    async with served() as (handler, wire):
        seen = Seen()
        await wire.start("/s/forever", frame_message(b""), seen.on_message, seen.on_status, deadline=0.1)
        assert (await seen.over)[0] == "DEADLINE_EXCEEDED"
        await asyncio.wait_for(handler.cancelled.wait(), 60)


async def test_a_stalled_reader_stops_taking() -> None:
    async with served() as (_, wire):
        seen = Seen()
        call = await wire.start("/s/forever", frame_message(b""), seen.on_message, seen.on_status, stalls=True)
        await asyncio.sleep(0.5)
        assert sum(map(len, seen.messages)) <= 64
        call.cancel("UNFINISHED", "")


async def test_a_lost_server_ends_every_call_as_unavailable() -> None:
    async with served() as (_, wire):
        seen = [Seen() for _ in range(3)]
        for each in seen:
            await wire.start("/s/forever", frame_message(b""), each.on_message, each.on_status)
        for each in seen:
            await each.first.wait()
    statuses = [(await each.over)[0] for each in seen]
    assert set(statuses) <= {"UNAVAILABLE", "CANCELLED"}


async def test_nobody_there_is_said_with_the_address() -> None:
    with pytest.raises(TargetError, match=r"127\.0\.0\.1:1"):
        await GrpcWire(Target("native", "127.0.0.1:1")).open()


@pytest.mark.parametrize("address", ["localhost", ":50051", "host:port", ""])
def test_an_address_without_a_port_is_refused(address: str) -> None:
    from loadtest.http2.pool import host_and_port

    with pytest.raises(TargetError, match="host:port"):
        host_and_port(address)


@pytest.mark.parametrize(("seconds", "header"), [(0.0000001, "1u"), (1.5, "1500000u"), (3600.0, "3600000m")])
def test_timeout_header_keeps_to_eight_digits(seconds: float, header: str) -> None:
    assert timeout_header(seconds) == header


async def test_more_streams_than_a_connection_may_hold_open_another() -> None:
    handler = Generic()
    server = grpc.aio.server(options=[("grpc.max_concurrent_streams", 2)])
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    wire = GrpcWire(Target("native", f"127.0.0.1:{port}"))
    await wire.open()
    seen = [Seen() for _ in range(5)]
    calls = [await wire.start("/s/forever", frame_message(b""), each.on_message, each.on_status) for each in seen]
    async with asyncio.timeout(60):
        for each in seen:
            await each.first.wait()
    for call in calls:
        call.cancel("UNFINISHED", "")
    wire.close()
    await server.stop(0)
