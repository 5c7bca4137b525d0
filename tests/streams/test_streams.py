"""Mailboxes, and the one end of a request."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.engine import Event, FinishReason
from server.errors import (
    DeadlineError,
    OverloadedError,
    ReaderStalledError,
    RequestCancelledError,
    ServerError,
    UnavailableError,
)
from tests.fakes.fake_engine import END
from tests.streams.scripted import Desk, ending, read_all, tokens


async def test_a_late_reader_gets_all_that_waits_as_one_delta_case_H10() -> None:
    desk = Desk()
    stream = desk.open()
    for byte in b"hello":
        desk.registry.deliver([tokens(stream, bytes([byte]))])
    (delta,) = await stream.read()
    assert (bytes(delta.tokens), delta.text) == (b"hello", "hello")


async def test_the_first_token_is_not_held_for_later_ones_case_C8() -> None:
    desk = Desk()
    stream = desk.open()
    reader = asyncio.create_task(stream.read())
    await asyncio.sleep(0)
    desk.registry.deliver([tokens(stream, b"h", first=True)])
    (delta,) = await reader
    assert delta.tokens == [ord("h")]


async def test_readers_run_in_the_engines_order_so_first_tokens_go_first() -> None:
    desk = Desk()
    old, new = desk.open(), desk.open()
    order: list[int] = []

    async def read(stream_id: int) -> None:
        await (old if stream_id == old.request.id else new).read()
        order.append(stream_id)

    readers = [asyncio.create_task(read(stream.request.id)) for stream in (old, new)]
    await asyncio.sleep(0)
    desk.registry.deliver([tokens(new, b"n", first=True), tokens(old, b"o")])
    await asyncio.gather(*readers)
    assert order == [new.request.id, old.request.id]


async def test_one_step_wakes_each_waiting_reader_once() -> None:
    desk = Desk()
    stream = desk.open()
    reader = asyncio.create_task(read_all(stream))
    await asyncio.sleep(0)
    desk.registry.deliver([tokens(stream, b"ab"), tokens(stream, b"c"), *ending(stream, FinishReason.LENGTH, 3)])
    assert await reader == (b"abc", "abc")
    assert len(desk.observer.firsts) == 1
    assert desk.observer.gaps == []


async def test_end_and_stop_tokens_are_counted_and_hidden_case_G7() -> None:
    for last, reason in ((END, FinishReason.END), (ord("!"), FinishReason.STOP_TOKEN)):
        desk = Desk()
        stream = desk.open(stop_ids=(ord("!"),))
        desk.registry.deliver([tokens(stream, (104, 105, last)), *ending(stream, reason, 3)])
        assert await read_all(stream) == (b"hi", "hi")
        assert stream.outputs[0].ended is reason
        assert stream.outputs[0].completion_tokens == 3


async def test_a_stop_string_stops_the_engine_at_its_token() -> None:
    desk = Desk()
    stream = desk.open(stops=("STOP",))
    desk.registry.deliver([tokens(stream, b"ab ST")])
    (delta,) = await stream.read()
    assert delta.text == "ab "
    desk.registry.deliver([tokens(stream, b"OPxyz")])
    (delta,) = await stream.read()
    assert (bytes(delta.tokens), delta.text) == (b"OP", "")
    assert desk.engine.stops == [(stream.request.id, 0, 7)]
    desk.registry.deliver([tokens(stream, b"late"), *ending(stream, FinishReason.STOP_STRING, 7, 9)])
    assert await stream.read() == []
    output = stream.outputs[0]
    assert (output.ended, output.stop_string) == (FinishReason.STOP_STRING, "STOP")
    assert (output.completion_tokens, output.discarded_tokens) == (7, 9)


TEXT = b"one two STOP three"
CUT = TEXT.index(b"STOP") + 4


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_a_stop_string_cuts_at_the_same_token_whatever_races_case_D4(data: st.DataObject) -> None:
    """The engine may run on, end by itself, or be slow; the reader may be quick or late: one cut, one count."""
    run_on = data.draw(st.integers(0, len(TEXT) - CUT), label="tokens after the stop")
    generated = CUT + run_on
    events: list[list[int]] = []
    left = generated
    while left:
        size = data.draw(st.integers(1, left), label="tokens of a step")
        events.append(list(TEXT[generated - left : generated - left + size]))
        left -= size
    reason = data.draw(st.sampled_from([FinishReason.LENGTH, FinishReason.END, FinishReason.STOP_STRING]))
    reads = data.draw(st.lists(st.booleans(), min_size=len(events), max_size=len(events)), label="reader keeps up")

    async def play() -> None:
        desk = Desk()
        stream = desk.open(stops=("STOP",))
        got_ids, got_text = b"", ""
        for step, read_now in zip(events, reads, strict=True):
            desk.registry.deliver([tokens(stream, tuple(step))])
            if read_now and stream.outputs[0].ended is None:
                for delta in await stream.read():
                    got_ids += bytes(delta.tokens)
                    got_text += delta.text
        kept, thrown = (CUT, run_on) if reason is FinishReason.STOP_STRING else (generated, 0)
        desk.registry.deliver(ending(stream, reason, kept, thrown))
        ids, text = await read_all(stream)
        output = stream.outputs[0]
        assert (got_ids + ids, got_text + text) == (TEXT[:CUT], "one two ")
        assert (output.ended, output.stop_string) == (FinishReason.STOP_STRING, "STOP")
        assert (output.completion_tokens, output.discarded_tokens) == (CUT, run_on)
        assert len(desk.engine.stops) == 1
        desk.registry.close(stream)
        desk.registry.check_integrity()
        assert desk.observer.settled_streams == [stream]

    asyncio.run(play())


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        (FinishReason.CANCELLED, RequestCancelledError),
        (FinishReason.DEADLINE, DeadlineError),
        (FinishReason.OVERLOADED, OverloadedError),
        (FinishReason.ENGINE_FAILED, UnavailableError),
    ],
)
async def test_an_end_without_success_is_an_error_after_the_output(
    reason: FinishReason, error: type[ServerError]
) -> None:
    desk = Desk()
    stream = desk.open()
    desk.registry.deliver([tokens(stream, b"so far"), *ending(stream, reason, 6)])
    assert (await stream.read())[0].text == "so far"
    with pytest.raises(error):
        await stream.read()


async def test_leaving_cancels_at_once_and_settles_with_the_engines_last_word() -> None:
    desk = Desk()
    stream = desk.open()
    desk.registry.deliver([tokens(stream, b"abc")])
    desk.registry.close(stream, FinishReason.DEADLINE)
    desk.registry.close(stream, FinishReason.CANCELLED)
    assert desk.engine.cancels == [(stream.request.id, FinishReason.DEADLINE)]
    assert desk.observer.settled_streams == []
    assert (desk.registry.readers, len(desk.registry)) == (0, 1)
    desk.registry.check_integrity()
    desk.registry.deliver([tokens(stream, b"late"), *ending(stream, FinishReason.DEADLINE, 3, 4)])
    assert desk.observer.settled_streams == [stream]
    assert isinstance(stream.failure, DeadlineError)
    assert (stream.outputs[0].completion_tokens, stream.outputs[0].discarded_tokens) == (3, 4)
    assert len(desk.registry) == 0
    desk.registry.check_integrity()


async def test_events_of_a_settled_request_are_ignored() -> None:
    desk = Desk()
    stream = desk.open()
    desk.registry.abandon_all(UnavailableError("dead"))
    desk.registry.close(stream)
    desk.registry.deliver([tokens(stream, b"ghost"), *ending(stream, FinishReason.LENGTH, 5)])
    assert len(desk.observer.settled_streams) == 1
    desk.registry.check_integrity()


async def test_a_dead_engine_ends_waiting_readers_but_not_complete_outputs_case_B7() -> None:
    desk = Desk()
    waiting, complete = desk.open(), desk.open(stops=("!",))
    desk.registry.deliver([tokens(complete, b"done!")])
    readers = [asyncio.create_task(read_all(stream)) for stream in (waiting, complete)]
    await asyncio.sleep(0)
    desk.registry.abandon_all(UnavailableError("the engine has died"))
    results = await asyncio.gather(*readers, return_exceptions=True)
    assert isinstance(results[0], UnavailableError)
    assert results[1] == (b"done!", "done")
    for stream in (waiting, complete):
        desk.registry.close(stream)
    assert len(desk.observer.settled_streams) == 2
    assert len(desk.registry) == 0


async def test_a_reader_that_stalls_in_a_write_loses_its_seat_and_its_task_case_H10() -> None:
    desk = Desk()
    stream, brisk = desk.open(), desk.open()

    async def write_for_ever() -> None:
        stream.attach(asyncio.current_task())
        stream.writing()
        await asyncio.sleep(3600)

    writer = asyncio.create_task(write_for_ever())
    await asyncio.sleep(0)
    desk.clock.now += 29
    assert desk.registry.interrupt_stalled(30) == 0
    desk.clock.now += 2
    assert desk.registry.interrupt_stalled(30) == 1
    with pytest.raises(asyncio.CancelledError):
        await writer
    assert isinstance(stream.failure, ReaderStalledError)
    assert desk.engine.cancels == [(stream.request.id, FinishReason.CANCELLED)]
    assert brisk.failure is None
    assert desk.registry.interrupt_stalled(30) == 0


async def test_idle_waits_for_the_last_reader() -> None:
    desk = Desk()
    first, second = desk.open(), desk.open()
    idle = asyncio.create_task(desk.registry.idle())
    desk.registry.close(first)
    await asyncio.sleep(0)
    assert not idle.done()
    desk.registry.close(second)
    await idle


async def test_a_refused_submit_opens_nothing() -> None:
    desk = Desk()
    desk.engine.max_waiting = 0
    with pytest.raises(OverloadedError):
        desk.open()
    assert (len(desk.registry), desk.registry.readers) == (0, 0)
    desk.registry.check_integrity()


async def test_times_are_per_write_and_per_token_case_J5() -> None:
    desk = Desk()
    stream = desk.open()
    desk.clock.now += 0.5
    desk.registry.deliver([tokens(stream, b"a", first=True)])
    await stream.read()
    desk.clock.now += 0.3
    desk.registry.deliver([tokens(stream, b"bcd")])
    await stream.read()
    assert desk.observer.firsts == [pytest.approx(0.5)]
    assert desk.observer.gaps == [pytest.approx(0.1)]


async def test_cost_of_a_delivery_does_not_grow_with_what_was_delivered() -> None:
    """Counted, not timed: one append and no wake-up for a stream whose reader is busy."""
    desk = Desk()
    stream = desk.open(max_tokens=10_000)
    events: list[Event] = [tokens(stream, b"x")]
    for _ in range(5_000):
        desk.registry.deliver(events)
    assert len(stream._mail) == 5_000
    assert len((await stream.read())[0].tokens) == 5_000
    assert stream._mail == []
