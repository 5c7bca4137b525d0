"""A client that does not read: its memory is bounded, its seat is freed, nobody else notices."""

from __future__ import annotations

import asyncio
import gc
import time

import psutil
import pytest

from tests.fakes.fake_engine import FakeEngine
from tests.fakes.running import Running, collect, request, running, until
from tests.rpc.raw_http2 import GENERATE, call, greeting

BYTES_PER_TOKEN = 400
"""What a token that nobody takes may cost until its stream is cut off: as docs/security.md says."""


async def test_a_stalled_reader_is_cut_off_and_others_stream_on_case_H10() -> None:
    engine = FakeEngine(step_seconds=0.0005, max_context=1_000_000)
    async with running(engine, limits__reader_stall=0.5, lifecycle__warm_up=False) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.app.grpc_port)
        message = request(max_tokens=900_000).SerializeToString()
        writer.write(greeting(window=0) + call(GENERATE, message))
        await until(lambda: bool(engine.live))
        _, _, final = await collect(server.generation.Generate(request(max_tokens=50)))
        assert final.usage.completion_tokens == 50
        await until(lambda: not engine.live)
        await until(lambda: not server.app._open_streams())
        samples = await server.metrics()
        assert samples["firsttoken_requests_total{class=interactive,outcome=stalled}"] == 1
        writer.close()
        await reader.read()


async def test_a_connection_that_breaks_amid_a_blocked_write_is_a_client_gone_and_no_fault_of_ours(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The write then fails before the call is cancelled: once it was counted, and logged, as an internal error."""
    engine = FakeEngine(step_seconds=0.001, max_context=100_000)
    async with running(engine, lifecycle__warm_up=False) as server:
        writers = [await unread(server, max_tokens=90_000) for _ in range(20)]
        await until(lambda: all_blocked(server, 20))
        for writer in writers:
            writer.transport.abort()
        await until(lambda: not engine.live)
        await until(lambda: not server.app._open_streams())
        samples = await server.metrics()
        assert samples["firsttoken_requests_total{class=interactive,outcome=cancelled}"] == 20
    assert "internal error" not in capfd.readouterr().err


async def test_a_reader_that_stalls_before_the_last_message_is_cut_off_too() -> None:
    """Nothing of it fits into the client's window, or the output and not the end."""
    engine = FakeEngine(step_seconds=0.001)
    async with running(engine, limits__reader_stall=0.5, lifecycle__warm_up=False) as server:
        writers = [await unread(server, max_tokens=1, window=window) for window in range(0, 60, 5)]
        await until(lambda: len(engine.submitted) == len(writers))
        await until(lambda: not engine.live)
        await until(lambda: not server.app._open_streams())
        samples = await server.metrics()
        assert samples["firsttoken_requests_total{class=interactive,outcome=stalled}"] == len(writers)
        for writer in writers:
            writer.close()


async def unread(server: Running, *, max_tokens: int, window: int = 0) -> asyncio.StreamWriter:
    """The connection of a call whose answer may not be sent."""
    _, writer = await asyncio.open_connection("127.0.0.1", server.app.grpc_port)
    writer.write(greeting(window) + call(GENERATE, request(max_tokens=max_tokens).SerializeToString()))
    return writer


def all_blocked(server: Running, streams: int) -> bool:
    """Whether so many streams have been in one write for a while."""
    registry = server.app._registry
    return registry is not None and sum(stream.stalled(0.2) for stream in registry) == streams


@pytest.mark.slow
async def test_readers_stalled_for_half_a_minute_cost_no_more_than_is_documented() -> None:
    """Unscaled, docs/security.md: a stalled stream keeps what its max_tokens can make, at most BYTES_PER_TOKEN each, until it is cut off after
    30 s; others stream on meanwhile, and everything is given back."""
    streams, tokens = 64, 7_000
    engine, process = FakeEngine(step_seconds=0.002, seats=streams + 1, max_context=8_192), psutil.Process()
    async with running(engine, lifecycle__warm_up=False) as server:
        await collect(server.generation.Generate(request(max_tokens=50)))
        gc.collect()
        before = process.memory_info().rss
        writers = [await unread(server, max_tokens=tokens) for _ in range(streams)]
        await until(lambda: all_blocked(server, streams))
        began, most = time.monotonic(), 0
        while server.app._open_streams():
            _, _, final = await collect(server.generation.Generate(request(max_tokens=50)))
            assert final.usage.completion_tokens == 50
            most = max(most, process.memory_info().rss)
            assert time.monotonic() < began + 90
        assert most - before < streams * tokens * BYTES_PER_TOKEN
        samples = await server.metrics()
        assert samples["firsttoken_requests_total{class=interactive,outcome=stalled}"] == streams
        assert not engine.live
        for writer in writers:
            writer.close()
