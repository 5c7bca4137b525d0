"""The async client: what differs from the sync one is how it is left; the rest is shared and tested there."""

from __future__ import annotations

import asyncio
import gc
import math

import grpc
import pytest

import firsttoken
from firsttoken import AsyncClient, Delta, Message, RetryPolicy
from firsttoken.client.patience import UNTIL_KNOWN
from protos.firsttoken.v1 import operations_pb2
from tests.client.fake_server import FakeServer, endless, refuse, retry_info, serving, silent


async def cancelled(fake: FakeServer) -> bool:
    """Whether the server sees the cancel; the loop turns meanwhile."""
    return await asyncio.to_thread(fake.cancelled.wait, 60)


async def test_deltas_come_and_add_up() -> None:
    async with serving(FakeServer()) as fake, AsyncClient(fake.address) as client:
        stream = client.generate("to be or")
        assert [delta async for delta in stream] == [Delta("to ", (2,)), Delta("be ", (2,)), Delta("or ", (2,))]
        assert await stream.text() == "to be or "
        assert stream.final.usage.prompt_tokens == 5
        assert stream.first_token_seconds is not None


async def test_many_streams_run_side_by_side() -> None:
    async with serving(FakeServer()) as fake, AsyncClient(fake.address, channels=2) as client:
        texts = await asyncio.gather(*(client.generate(f"a {n}").text() for n in range(40)))
        assert texts == [f"a {n} " for n in range(40)]
        assert len(fake.peers) == 2


async def test_leaving_the_loop_cancels_at_the_server() -> None:
    async with serving(FakeServer(endless)) as fake, AsyncClient(fake.address) as client:
        count = 0
        async for _ in client.generate("x"):
            count += 1
            if count == 3:
                break
        assert await cancelled(fake)


async def test_the_end_of_a_with_block_cancels_at_the_server() -> None:
    async with serving(FakeServer(endless)) as fake, AsyncClient(fake.address) as client:
        async with client.generate("x") as stream:
            await anext(aiter(stream))
        assert await cancelled(fake)
        with pytest.raises(firsttoken.StreamStateError, match="closed before its end"):
            await stream.text()


async def test_cancelling_the_reading_task_cancels_at_the_server() -> None:
    async with serving(FakeServer(silent)) as fake, AsyncClient(fake.address) as client:
        task = asyncio.create_task(client.generate("x").text())
        while not fake.running:  # noqa: ASYNC110 - another task's counter
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await cancelled(fake)


async def test_another_task_can_close_a_stream_that_waits() -> None:
    """The reading task was not cancelled, so it must not see CancelledError."""
    async with serving(FakeServer(silent)) as fake, AsyncClient(fake.address) as client:
        stream = client.generate("x")
        reader = asyncio.create_task(stream.text())
        while not fake.running:  # noqa: ASYNC110 - another task's counter
            await asyncio.sleep(0.005)
        stream.close()
        with pytest.raises(firsttoken.CallCancelledError):
            await reader
        assert await cancelled(fake)


async def test_a_stream_that_nobody_reads_is_cancelled_when_it_is_forgotten() -> None:
    async with serving(FakeServer(endless)) as fake, AsyncClient(fake.address) as client:
        stream = client.generate("x")
        while not fake.running:  # noqa: ASYNC110 - another task's counter
            await asyncio.sleep(0.005)
        del stream
        gc.collect()
        assert await cancelled(fake)


async def test_asyncio_timeout_works_as_everywhere() -> None:
    async with serving(FakeServer(silent)) as fake, AsyncClient(fake.address) as client:
        stream = client.generate("x")
        while not fake.running:  # noqa: ASYNC110 - another task's counter
            await asyncio.sleep(0.005)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await stream.text()
        assert await cancelled(fake)


async def test_deadlines_retries_and_errors_are_the_sync_clients() -> None:
    busy = refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, retry_info(0.01))
    admitted = refuse(grpc.StatusCode.UNAVAILABLE, taken_in=True)
    fake = FakeServer(busy, busy)
    async with serving(fake), AsyncClient(fake.address, retry=RetryPolicy(first_delay=0.01)) as client:
        assert await client.generate("a").text() == "a "
        assert len(fake.requests) == 3
        fake.behaviours.append(admitted)
        with pytest.raises(firsttoken.UnavailableError):
            await client.generate("a").text()
        assert len(fake.requests) == 4
        fake.behaviours.append(silent)
        with pytest.raises(firsttoken.DeadlineError):
            await client.generate("a", timeout=0.2).text()
        with pytest.raises(firsttoken.ArgumentError):
            client.generate()


async def test_a_generation_gets_what_the_server_publishes() -> None:
    fake = FakeServer()
    fake.timeouts = operations_pb2.ClientTimeouts(interactive=30, standard=60, batch=90)
    async with serving(fake), AsyncClient(fake.address) as client:
        while fake.seconds_left[-1:] == [] or fake.seconds_left[-1] != pytest.approx(90, rel=0.1):
            await client.generate("x", priority="batch").text()
        await client.generate("x", timeout=math.inf).text()
        assert fake.seconds_left[-1] is None
        assert fake.timeouts_asked == 1
        published = (await client.server_info()).client_timeouts
        assert published == firsttoken.ClientTimeouts(30, 60, 90)


async def test_a_server_that_publishes_nothing_is_waited_for_as_before() -> None:
    fake = FakeServer()
    async with serving(fake), AsyncClient(fake.address) as client:
        while not fake.timeouts_asked:
            await client.generate("x").text()
        await client.generate("x").text()
        assert fake.seconds_left[-1] == pytest.approx(UNTIL_KNOWN, rel=0.01)
        assert (await client.server_info()).client_timeouts is None


async def test_the_other_calls() -> None:
    fake = FakeServer()
    fake.unary_failures.append(refuse(grpc.StatusCode.UNAVAILABLE))
    async with serving(fake), AsyncClient(fake.address, retry=RetryPolicy(first_delay=0.01)) as client:
        await client.wait_ready(10)
        assert await client.tokenize("one three") == [3, 5]
        assert await client.tokenize(messages=[Message("user", "four")]) == [5, 4]
        assert await client.detokenize([1, 2]) == "[1, 2]False"
        assert (await client.server_info()).model == "tiny"
        assert (await client.load()).running == 4


async def test_wait_ready_gives_up_in_time() -> None:
    async with AsyncClient("127.0.0.1:1") as client:
        with pytest.raises(firsttoken.UnavailableError, match=r"127\.0\.0\.1:1 is not ready after 0\.1 s"):
            await client.wait_ready(0.1)


def test_a_client_may_be_made_before_there_is_an_event_loop() -> None:
    client = AsyncClient("127.0.0.1:1", retry=RetryPolicy(attempts=1))

    async def use() -> None:
        with pytest.raises(firsttoken.UnavailableError):
            await client.generate("x").text()
        await client.close()

    asyncio.run(use())
