"""The sync client against a server on a real socket: streaming, cancel, deadlines, errors, what is sent."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from contextlib import suppress

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2

import firsttoken
from firsttoken import Client, Delta, FinishReason, Message, Priority, RetryPolicy
from firsttoken.client.patience import UNTIL_KNOWN
from protos.firsttoken.v1 import generation_pb2 as pb
from protos.firsttoken.v1 import operations_pb2
from tests.client.fake_server import (
    FakeServer,
    delta,
    endless,
    final,
    refuse,
    retry_info,
    say,
    serving_in_thread,
    silent,
    text_of,
)


def test_deltas_come_as_they_are_written_and_add_up() -> None:
    with serving_in_thread(FakeServer()) as fake, Client(fake.address) as client:
        stream = client.generate("to be or")
        assert list(stream) == [Delta("to ", (2,)), Delta("be ", (2,)), Delta("or ", (2,))]
        assert stream.text() == "to be or "
        assert stream.first_token_seconds is not None


def test_the_first_delta_is_here_before_the_second_is_made() -> None:
    gate = threading.Event()

    async def gated(_: pb.GenerateRequest, context: grpc.ServicerContext) -> None:
        await context.write(delta("first"))
        while not gate.is_set():  # noqa: ASYNC110 - a gate of another thread
            await asyncio.sleep(0.005)
        await context.write(final())

    with serving_in_thread(FakeServer(gated)) as fake, Client(fake.address) as client:
        texts = iter(client.generate("x", timeout=60))
        assert next(texts).text == "first"
        gate.set()
        assert list(texts) == []


def test_the_final_message_tells_reason_usage_and_timings() -> None:
    said = say(delta("a"), final(pb.FINISH_REASON_STOP_STRING, stop_string="##", seed=7))
    with serving_in_thread(FakeServer(said)) as fake, Client(fake.address) as client:
        stream = client.generate("x")
        with pytest.raises(firsttoken.StreamStateError, match="has not ended"):
            _ = stream.final
        assert stream.text() == "a"
    assert stream.final.finish_reason is FinishReason.STOP_STRING
    assert (stream.final.stop_string, stream.final.seed) == ("##", 7)
    assert stream.final.usage == firsttoken.Usage(5, 4, 3, 2)
    assert stream.final.timings == firsttoken.Timings(0.1, 0.2, 0.3, 0.4)


@pytest.mark.parametrize("reason", list(FinishReason))
def test_every_reason_has_its_word(reason: FinishReason) -> None:
    number = pb.FinishReason.Value(f"FINISH_REASON_{reason.name}")
    with serving_in_thread(FakeServer(say(final(number)))) as fake, Client(fake.address) as client:
        stream = client.generate("x")
        stream.text()
        assert stream.final.finish_reason is reason
        assert stream.final.seed is None
        assert stream.final.stop_string is None


def test_every_option_reaches_the_server() -> None:
    with (
        serving_in_thread(FakeServer()) as fake,
        Client(fake.address, metadata={"authorization": "Bearer x"}) as client,
    ):
        client.generate(
            "hi",
            max_tokens=0,
            temperature=0.5,
            top_k=40,
            top_p=0.9,
            min_p=0.1,
            seed=2**64 - 1,
            stop=["a", "b"],
            stop_token_ids=[1, 2],
            priority="batch",
            cache_salt="s",
            ttft_deadline=1.5,
            timeout=20,
        ).text()
        sampling = pb.Sampling(temperature=0.5, top_k=40, top_p=0.9, min_p=0.1, seed=2**64 - 1)
        assert fake.requests == [
            pb.GenerateRequest(
                prompt=pb.Prompt(text="hi"),
                max_tokens=0,
                sampling=sampling,
                stop=pb.Stop(strings=["a", "b"], token_ids=[1, 2]),
                priority=pb.PRIORITY_BATCH,
                cache_salt="s",
                ttft_deadline=Duration(seconds=1, nanos=500_000_000),
            )
        ]
        assert fake.metadata[0]["authorization"] == "Bearer x"
        assert fake.seconds_left[0] == pytest.approx(20, abs=2)


def test_what_is_left_out_is_left_unset() -> None:
    with serving_in_thread(FakeServer()) as fake, Client(fake.address) as client:
        client.generate("hi").text()
        request = fake.requests[0]
        assert request == pb.GenerateRequest(prompt=pb.Prompt(text="hi"))
        assert not request.HasField("max_tokens")
        assert not request.HasField("sampling")
        assert fake.seconds_left[0] == pytest.approx(UNTIL_KNOWN, rel=0.01)


def test_a_single_stop_is_one_stop() -> None:
    with serving_in_thread(FakeServer()) as fake, Client(fake.address) as client:
        client.generate("hi", stop="END", priority=Priority.STANDARD).text()
        assert list(fake.requests[0].stop.strings) == ["END"]
        assert fake.requests[0].priority == pb.PRIORITY_STANDARD


def test_prompts_are_text_ids_or_a_conversation() -> None:
    with serving_in_thread(FakeServer()) as fake, Client(fake.address) as client:
        client.generate([5, 6]).text()
        client.generate(messages=[Message("system", "s"), {"role": "user", "content": "u"}]).text()
        assert list(fake.requests[0].prompt.token_ids.ids) == [5, 6]
        assert text_of(fake.requests[1].prompt) == "system: s\nuser: u"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({}, "either a prompt or messages"),
        ({"prompt": "x", "messages": []}, "either a prompt or messages"),
        ({"prompt": "x", "max_tokens": 2**31}, "max_tokens"),
        ({"prompt": "x", "seed": -1}, "seed"),
        ({"prompt": "x", "temperature": "hot"}, "temperature"),
        ({"prompt": "x", "priority": "urgent"}, "priority: must be one of .*'batch'"),
        ({"prompt": "x", "stop": [1]}, "stop"),
        ({"prompt": "x", "ttft_deadline": "soon"}, "ttft_deadline"),
        ({"prompt": "\ud800"}, "prompt"),
        ({"prompt": [2**31]}, "prompt"),
        ({"messages": [{"role": "user"}, {"text": "u"}]}, "messages: each needs a role and a content"),
        ({"messages": ["hi"]}, "messages: each needs a role and a content"),
        ({"messages": [{"role": "user", "content": "u", "x": object()}]}, "messages: Object of type object"),
        ({"messages": [Message("user", "u")], "tools": [object()]}, "tools: Object of type object"),
        ({"prompt": "x", "tools": []}, "tools: go with messages"),
        ({"prompt": "x", "n": 2**31}, "n: "),
        ({"prompt": "x", "logprobs": "5"}, "logprobs: "),
        ({"prompt": "x", "bad_tokens": [[1], ["a"]]}, "bad_tokens: "),
        ({"prompt": "x", "max_new_tokens": 3}, "no option max_new_tokens"),
    ],
)
def test_arguments_that_make_no_request_are_refused_by_name_and_nothing_is_sent(
    arguments: dict[str, object], named: str
) -> None:
    with Client("127.0.0.1:1") as client, pytest.raises(firsttoken.ArgumentError, match=named) as caught:
        client.generate(**arguments)  # type: ignore[arg-type]
    assert isinstance(caught.value, ValueError)


# --------------------------------------------------------------------------- cancel


def test_leaving_the_loop_cancels_at_the_server() -> None:
    with serving_in_thread(FakeServer(endless)) as fake, Client(fake.address) as client:
        for number, _ in enumerate(client.generate("x")):
            if number == 3:
                break
        assert fake.cancelled.wait(60)


def test_a_stream_that_nobody_reads_is_cancelled_when_it_is_forgotten() -> None:
    with serving_in_thread(FakeServer(endless)) as fake, Client(fake.address) as client:
        stream = client.generate("x")
        while not fake.running:
            time.sleep(0.005)
        del stream
        assert fake.cancelled.wait(60)


def test_an_exception_in_the_loop_cancels_at_the_server() -> None:
    with serving_in_thread(FakeServer(endless)) as fake, Client(fake.address) as client:
        with suppress(ZeroDivisionError):
            for _ in client.generate("x"):
                _ = 1 / 0
        assert fake.cancelled.wait(60)


def test_the_end_of_a_with_block_cancels_at_the_server() -> None:
    with serving_in_thread(FakeServer(endless)) as fake, Client(fake.address) as client:
        with client.generate("x") as stream:
            texts = iter(stream)
            next(texts)
        assert fake.cancelled.wait(60)
        with pytest.raises(firsttoken.CallCancelledError):
            list(texts)


def test_a_stream_that_was_closed_cannot_be_read_as_if_it_had_ended() -> None:
    with serving_in_thread(FakeServer(endless)) as fake, Client(fake.address) as client:
        stream = client.generate("x")
        stream.close()
        stream.close()
        with pytest.raises(firsttoken.StreamStateError, match="closed before its end"):
            stream.text()


def test_another_thread_can_close_a_stream_that_waits() -> None:
    with serving_in_thread(FakeServer(silent)) as fake, Client(fake.address) as client:
        stream = client.generate("x")

        def close_once_it_runs() -> None:
            while not fake.running:
                time.sleep(0.005)
            stream.close()

        threading.Thread(target=close_once_it_runs).start()
        with pytest.raises(firsttoken.CallCancelledError):
            stream.text()
        assert fake.cancelled.wait(60)


class Waits(threading.Event):
    """Tells when somebody begins to wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.begun.set()
        return super().wait(timeout)


def test_close_wakes_a_stream_that_waits_to_try_again() -> None:
    busy = refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, retry_info(3600))
    patient = RetryPolicy(max_retry_after=7200)
    with serving_in_thread(FakeServer(busy)) as fake, Client(fake.address, retry=patient, timeout=math.inf) as client:
        stream = client.generate("x")
        stream._closed = waits = Waits()

        def close_once_it_waits() -> None:
            waits.begun.wait(60)
            stream.close()

        threading.Thread(target=close_once_it_waits).start()
        with pytest.raises(firsttoken.StreamStateError):
            stream.text()
        assert len(fake.requests) == 1


def test_a_close_while_the_call_is_sent_again_cancels_that_one() -> None:
    busy = refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, retry_info(0.01))
    with serving_in_thread(FakeServer(busy, endless)) as fake, Client(fake.address) as client:
        stream = client.generate("x")
        send = stream._send

        def send_and_close(timeout: float | None) -> object:
            stream.close()
            return send(timeout)

        stream._send = send_and_close
        with pytest.raises(firsttoken.CallCancelledError):
            stream.text()


# --------------------------------------------------------------------------- deadlines and errors


def test_the_timeout_ends_the_call_here_and_at_the_server() -> None:
    with serving_in_thread(FakeServer(silent)) as fake, Client(fake.address) as client:
        client.server_info()  # connected, so that the time is the call's own
        with pytest.raises(firsttoken.DeadlineError) as caught:
            client.generate("x", timeout=1).text()
        assert caught.value.status == "DEADLINE_EXCEEDED"
        assert fake.cancelled.wait(60)


@pytest.mark.parametrize("priority", list(firsttoken.Priority))
def test_a_generation_gets_what_the_server_publishes_for_its_class(priority: firsttoken.Priority) -> None:
    server = FakeServer()
    server.timeouts = operations_pb2.ClientTimeouts(interactive=30, standard=60, batch=90)
    seconds = {"interactive": 30, "standard": 60, "batch": 90}[priority.value]
    with serving_in_thread(server) as fake, Client(fake.address) as client:
        while fake.seconds_left[-1:] == [] or fake.seconds_left[-1] != pytest.approx(seconds, rel=0.1):
            client.generate("x", priority=priority).text()  # the first ones do not wait for the answer
        assert fake.timeouts_asked == 1  # not once a request
        client.generate("x", timeout=500).text()
        client.generate("x", timeout=math.inf).text()
        client.tokenize("x")
        assert fake.seconds_left[-3:] == [pytest.approx(500, rel=0.1), None, None]


def test_who_chose_a_timeout_never_asks_for_one() -> None:
    with serving_in_thread(FakeServer()) as fake, Client(fake.address, timeout=math.inf) as client:
        client.generate("x").text()
        client.generate("x", timeout=50).text()
        assert fake.seconds_left == [None, pytest.approx(50, rel=0.1)]
        assert fake.timeouts_asked == 0


def test_the_clients_own_timeout_holds_where_a_call_gives_none() -> None:
    with (
        serving_in_thread(FakeServer(silent)) as fake,
        Client(fake.address, timeout=0.2) as client,
        pytest.raises(firsttoken.DeadlineError),
    ):
        client.generate("x").text()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, firsttoken.InvalidRequestError),
        (grpc.StatusCode.OUT_OF_RANGE, firsttoken.InvalidRequestError),
        (grpc.StatusCode.NOT_FOUND, firsttoken.NotFoundError),
        (grpc.StatusCode.ALREADY_EXISTS, firsttoken.ConflictError),
        (grpc.StatusCode.UNAUTHENTICATED, firsttoken.AccessError),
        (grpc.StatusCode.PERMISSION_DENIED, firsttoken.AccessError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, firsttoken.OverloadedError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, firsttoken.DeadlineError),
        (grpc.StatusCode.CANCELLED, firsttoken.CallCancelledError),
        (grpc.StatusCode.UNAVAILABLE, firsttoken.UnavailableError),
        (grpc.StatusCode.INTERNAL, firsttoken.ServerFaultError),
        (grpc.StatusCode.UNIMPLEMENTED, firsttoken.ServerFaultError),
        (grpc.StatusCode.UNKNOWN, firsttoken.ServerFaultError),
    ],
)
def test_each_status_is_its_own_error(code: grpc.StatusCode, kind: type[firsttoken.CallError]) -> None:
    retry = firsttoken.RetryPolicy(attempts=1)
    with (
        serving_in_thread(FakeServer(refuse(code))) as fake,
        Client(fake.address, retry=retry) as client,
        pytest.raises(kind, match=r"^refused$") as caught,
    ):
        client.generate("x").text()
    assert type(caught.value) is kind
    assert caught.value.status == code.name


def test_the_details_name_field_reason_and_delay() -> None:
    violation = error_details_pb2.BadRequest.FieldViolation(field="sampling.top_p", description="must be at most 1")
    bad = refuse(
        grpc.StatusCode.INVALID_ARGUMENT,
        error_details_pb2.ErrorInfo(reason="INVALID_REQUEST", domain="firsttoken", metadata={"request_id": "r-1"}),
        error_details_pb2.BadRequest(field_violations=[violation]),
    )
    full = refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, retry_info(99.5))
    with serving_in_thread(FakeServer(bad, full)) as fake, Client(fake.address) as client:
        with pytest.raises(firsttoken.InvalidRequestError) as caught:
            client.generate("x").text()
        assert (caught.value.field, caught.value.reason) == ("sampling.top_p", "INVALID_REQUEST")
        assert (caught.value.retry_after, caught.value.request_id) == (None, "r-1")
        with pytest.raises(firsttoken.OverloadedError) as overloaded:
            client.generate("x").text()
        assert overloaded.value.retry_after == 99.5


def test_details_that_are_no_details_leave_code_and_message() -> None:
    async def garbled(_: pb.GenerateRequest, context: grpc.ServicerContext) -> None:
        context.set_trailing_metadata((("grpc-status-details-bin", b"\xff\xff\xff"),))
        await context.abort(grpc.StatusCode.INTERNAL, "broken")

    with (
        serving_in_thread(FakeServer(garbled)) as fake,
        Client(fake.address) as client,
        pytest.raises(firsttoken.ServerFaultError, match=r"^broken$"),
    ):
        client.generate("x").text()


def test_an_ok_without_a_final_message_is_no_success() -> None:
    with (
        serving_in_thread(FakeServer(say(delta("half")))) as fake,
        Client(fake.address) as client,
        pytest.raises(firsttoken.ServerFaultError, match="without its final message"),
    ):
        client.generate("x").text()


def test_a_failure_amid_the_stream_keeps_what_came_and_raises() -> None:
    broken = refuse(grpc.StatusCode.UNAVAILABLE, after=2)
    with serving_in_thread(FakeServer(broken)) as fake, Client(fake.address) as client:
        seen: list[str] = []
        with pytest.raises(firsttoken.UnavailableError):
            seen.extend(delta.text for delta in client.generate("x"))
        assert seen == ["0", "1"]
        assert len(fake.requests) == 1


# --------------------------------------------------------------------------- the other calls


def test_tokenize_detokenize_info_and_load() -> None:
    with serving_in_thread(FakeServer()) as fake, Client(fake.address) as client:
        assert client.tokenize("one three") == [3, 5]
        assert client.tokenize(messages=[Message("user", "four")]) == [5, 4]
        assert client.detokenize([1, 2], show_special_tokens=True) == "[1, 2]True"
        info = client.server_info()
        assert (info.version, info.engine, info.model, info.limits.vocab_size) == ("1.2.3", "simulated", "tiny", 49152)
        assert info.capabilities.preemption
        load = client.load()
        assert load.waiting == {Priority.INTERACTIVE: 1, Priority.STANDARD: 2, Priority.BATCH: 3}
        assert (load.ready, load.running, load.kv_utilisation) == (True, 4, 0.5)


def test_complete_abort_and_steps() -> None:
    with serving_in_thread(FakeServer()) as fake, Client(fake.address) as client:
        answer = client.complete("hi", n=2, max_tokens=3)
        assert [(output.index, output.tokens, output.text) for output in answer.outputs] == [
            (0, (0,), "hi"),
            (1, (1,), "hi"),
        ]
        assert (answer.text, answer.prompt, answer.final.usage.prompt_tokens) == ("hi", None, 5)
        assert fake.requests[0] == pb.GenerateRequest(prompt=pb.Prompt(text="hi"), n=2, max_tokens=3)
        assert [client.abort("alive"), client.abort("gone")] == [True, False]
        (step,) = client.steps(1)
        assert step.rows == (firsttoken.StepRow(sequence=7, new_tokens=1, past=9, blocks=2, want="sample"),)
        assert (step.step, step.age, step.outcome, step.opened, step.closed) == (5, 0.5, "ok", (7,), ())
        assert (step.waiting[Priority.BATCH], step.blocks_free) == (3, 11)


def test_a_whole_answer_is_asked_for_again_only_before_it_was_taken_in() -> None:
    busy = refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, retry_info(0.01))
    taken = refuse(grpc.StatusCode.UNAVAILABLE, taken_in=True)
    with serving_in_thread(FakeServer()) as fake, Client(fake.address) as client:
        fake.unary_failures.extend([busy, taken])
        with pytest.raises(firsttoken.UnavailableError):
            client.complete("x")
        assert len(fake.requests) == 2


def test_unary_calls_have_timeouts_and_errors_too() -> None:
    with serving_in_thread(FakeServer()) as fake, Client(fake.address) as client:
        client.server_info()  # connected, so that the time is the call's own
        fake.unary_failures.extend([silent, refuse(grpc.StatusCode.INVALID_ARGUMENT)])
        with pytest.raises(firsttoken.DeadlineError):
            client.tokenize("x", timeout=1)
        with pytest.raises(firsttoken.InvalidRequestError):
            client.detokenize([1])


def test_large_messages_come_through() -> None:
    big = "x" * (8 * 2**20)
    with serving_in_thread(FakeServer(say(delta(big), final()))) as fake, Client(fake.address) as client:
        assert client.generate("x").text() == big


def test_channels_are_connections_of_their_own() -> None:
    with serving_in_thread(FakeServer()) as fake:
        for channels in (1, 3):
            fake.peers.clear()
            with Client(fake.address, channels=channels) as client:
                for _ in range(6):
                    client.generate("x").text()
            assert len(fake.peers) == channels
    with pytest.raises(firsttoken.ArgumentError, match="channels: must be at least 1, not 0"):
        Client(channels=0)


def test_wait_ready_waits_for_serving() -> None:
    fake = FakeServer()
    fake.health = health_pb2.HealthCheckResponse.NOT_SERVING
    with serving_in_thread(fake), Client(fake.address) as client:
        with pytest.raises(firsttoken.UnavailableError, match=r"is not ready after 0\.1 s: NOT_SERVING"):
            client.wait_ready(0.1)
        threading.Timer(0.1, lambda: setattr(fake, "health", health_pb2.HealthCheckResponse.SERVING)).start()
        client.wait_ready(10)
        assert fake.health_checks >= 2


def test_wait_ready_says_why_nobody_answers() -> None:
    with (
        Client("127.0.0.1:1") as client,
        pytest.raises(firsttoken.UnavailableError, match=r"127\.0\.0\.1:1 is not ready"),
    ):
        client.wait_ready(0.2)


def test_wait_ready_finds_a_server_that_starts_later() -> None:
    with serving_in_thread(FakeServer()) as first:
        address = first.address
    with Client(address) as client:
        failures = 0
        try:
            client.wait_ready(0.2)
        except firsttoken.UnavailableError:
            failures += 1
        with serving_in_thread(FakeServer(), address):
            client.wait_ready(20)
        assert failures == 1
