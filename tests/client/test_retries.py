"""What is sent again, how often and when; and what must never be."""

from __future__ import annotations

import threading
from itertools import pairwise

import grpc
import pytest
from google.protobuf.message import Message
from google.rpc import status_pb2

import firsttoken
from firsttoken import Client, RetryPolicy
from firsttoken.client.retries import Attempts
from firsttoken.errors import CallCancelledError, CallError, DeadlineError
from tests.client.fake_server import Behaviour, FakeServer, delta, refuse, retry_info, say, serving_in_thread
from tests.fakes.ports import unused_port

QUICK = RetryPolicy(first_delay=0.01)
UNAVAILABLE, EXHAUSTED = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize(
    "refusal", [refuse(UNAVAILABLE), refuse(UNAVAILABLE, retry_info(0.01)), refuse(EXHAUSTED, retry_info(0.01))]
)
def test_a_refusal_before_anything_came_is_tried_again(refusal: Behaviour) -> None:
    fake = FakeServer(refusal, refusal)
    fake.unary_failures.extend([refusal, refusal])
    with serving_in_thread(fake), Client(fake.address, retry=QUICK) as client:
        assert client.generate("a b").text() == "a b "
        assert len(fake.requests) == 3
        assert client.tokenize("abc") == [3]
        assert len(fake.requests) == 6


@pytest.mark.parametrize(
    "failure",
    [
        refuse(UNAVAILABLE, taken_in=True),
        refuse(EXHAUSTED, retry_info(0.01), taken_in=True),
        refuse(UNAVAILABLE, after=1),
        refuse(EXHAUSTED),  # a size limit: no delay would help
        refuse(grpc.StatusCode.INTERNAL),
        refuse(grpc.StatusCode.INVALID_ARGUMENT),
        refuse(grpc.StatusCode.DEADLINE_EXCEEDED),
        refuse(grpc.StatusCode.CANCELLED),
        refuse(grpc.StatusCode.UNKNOWN),
        refuse(grpc.StatusCode.ABORTED),
        say(delta("half")),
    ],
)
def test_what_may_have_done_work_or_will_fail_again_is_sent_once(failure: Behaviour) -> None:
    with serving_in_thread(FakeServer(failure)) as fake, Client(fake.address, retry=QUICK) as client:
        with pytest.raises(firsttoken.CallError):
            client.generate("x").text()
        assert len(fake.requests) == 1


def test_a_persistent_refusal_is_raised_after_the_last_attempt() -> None:
    refusals = [refuse(UNAVAILABLE, message=f"no {n}") for n in range(9)]
    with serving_in_thread(FakeServer(*refusals)) as fake, Client(fake.address, retry=QUICK) as client:
        with pytest.raises(firsttoken.UnavailableError, match="no 3"):
            client.generate("x").text()
        assert len(fake.requests) == QUICK.attempts


def test_retries_live_within_the_timeout_and_the_server_sees_what_is_left() -> None:
    refusals = [refuse(EXHAUSTED, retry_info(0.3))] * 9
    with (
        serving_in_thread(FakeServer(*refusals)) as fake,
        Client(fake.address, retry=RetryPolicy(attempts=9)) as client,
    ):
        client.server_info()  # connected, so that the time is the attempts' own
        with pytest.raises(firsttoken.OverloadedError):
            client.generate("x", timeout=1).text()
        left = [seconds for seconds in fake.seconds_left if seconds is not None]
        assert 2 <= len(left) <= 4
        assert all(earlier - later >= 0.25 for earlier, later in pairwise(left))


def test_a_server_that_starts_a_little_later_is_found() -> None:
    address = f"127.0.0.1:{unused_port()}"
    policy = RetryPolicy(attempts=1000, first_delay=0.05, max_delay=0.05)
    found: list[str] = []
    with Client(address, retry=policy) as client:
        reader = threading.Thread(target=lambda: found.append(client.generate("a b", timeout=60).text()))
        reader.start()
        with serving_in_thread(FakeServer(), address):
            reader.join(60)
    assert found == ["a b "]


class Failure(grpc.RpcError):  # type: ignore[misc]  # grpc has no types
    """A failed call as grpc shows it."""

    def __init__(self, code: grpc.StatusCode, detail: Message | None = None) -> None:
        self._code = code
        status = status_pb2.Status(code=code.value[0])
        if detail is not None:
            status.details.add().Pack(detail)
        self._trailers = (("grpc-status-details-bin", status.SerializeToString()),)

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "failed"

    def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:
        return self._trailers


def longest(low: float, high: float) -> float:
    return high


def test_the_back_off_doubles_up_to_its_cap() -> None:
    attempts = Attempts(RetryPolicy(attempts=8, first_delay=0.1, max_delay=1.0), None, draw=longest)
    delays = [attempts.next_delay(Failure(UNAVAILABLE), taken=False) for _ in range(6)]
    assert delays == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])


def test_delays_are_drawn_so_that_clients_do_not_come_back_together() -> None:
    spans: list[tuple[float, float]] = []

    def note(low: float, high: float) -> float:
        spans.append((low, high))
        return low

    attempts = Attempts(RetryPolicy(), None, draw=note)
    attempts.next_delay(Failure(UNAVAILABLE), taken=False)
    assert attempts.next_delay(Failure(EXHAUSTED, retry_info(2)), taken=False) >= 2
    assert all(low < high for low, high in spans)


def test_the_servers_delay_goes_before_the_back_off_unless_it_is_too_long() -> None:
    attempts = Attempts(RetryPolicy(max_retry_after=10), None, draw=longest)
    assert attempts.next_delay(Failure(UNAVAILABLE, retry_info(8)), taken=False) == pytest.approx(10)
    with pytest.raises(firsttoken.UnavailableError) as caught:
        attempts.next_delay(Failure(UNAVAILABLE, retry_info(11)), taken=False)
    assert caught.value.retry_after == 11


def test_a_delay_that_would_outlast_the_timeout_is_not_waited_for() -> None:
    now = [100.0]
    attempts = Attempts(RetryPolicy(), 5.0, clock=lambda: now[0], draw=longest)
    now[0] = 104.0
    assert attempts.remaining() == pytest.approx(1.0)
    with pytest.raises(firsttoken.OverloadedError):
        attempts.next_delay(Failure(EXHAUSTED, retry_info(0.9)), taken=False)
    now[0] = 110.0
    assert attempts.remaining() == 0.0


class _Reset(grpc.RpcError):  # type: ignore[misc]  # gRPC has no types
    """A call that was cut off without a word."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.CANCELLED

    def details(self) -> None:
        return None

    def trailing_metadata(self) -> None:
        return None


@pytest.mark.parametrize(
    ("timeout", "kind"), [(1.0, DeadlineError), (3.0, CallCancelledError), (None, CallCancelledError)]
)
def test_a_reset_after_the_deadline_is_the_deadline_case_D2(timeout: float | None, kind: type[CallError]) -> None:
    """As a starved client hears it, whose gRPC looks at the wire before it looks at the clock."""
    now = 0.0
    attempts = Attempts(QUICK, timeout, clock=lambda: now)
    now = 2.0
    with pytest.raises(kind) as caught:
        attempts.next_delay(_Reset(), taken=True)
    assert caught.value.status == ("DEADLINE_EXCEEDED" if kind is DeadlineError else "CANCELLED")


def test_a_call_that_a_stopping_port_dropped_is_sent_again() -> None:
    attempts = Attempts(QUICK, None)
    assert attempts.next_delay(_Reset(), taken=False) > 0.0
    with pytest.raises(firsttoken.UnavailableError):
        Attempts(firsttoken.RetryPolicy(attempts=1), None).next_delay(_Reset(), taken=False)
    with pytest.raises(CallCancelledError):  # headers had come: it may have done work
        attempts.next_delay(_Reset(), taken=True)
