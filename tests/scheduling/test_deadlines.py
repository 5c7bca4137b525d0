"""When requests expire, and that the ended leave nothing behind."""

from __future__ import annotations

from server.scheduling.deadlines import Deadlines
from tests.scheduling.world import make_request


def test_the_earliest_of_both_deadlines_counts_and_each_request_expires_once() -> None:
    deadlines = Deadlines()
    deadlines.add(make_request(1, [5], deadline=9.0, ttft_deadline=3.0))
    deadlines.add(make_request(2, [5], deadline=4.0))
    deadlines.add(make_request(3, [5]))
    assert deadlines.next() == 3.0
    assert list(deadlines.due(2.9)) == []
    assert list(deadlines.due(20.0)) == [1, 2]
    assert deadlines.next() is None


def test_after_the_first_token_only_the_whole_deadline_counts() -> None:
    deadlines = Deadlines()
    deadlines.add(make_request(1, [5], deadline=9.0, ttft_deadline=3.0))
    deadlines.first_token(1)
    assert list(deadlines.due(5.0)) == []
    assert deadlines.next() == 9.0
    assert list(deadlines.due(9.0)) == [1]


def test_the_ended_expire_no_more_and_are_forgotten() -> None:
    deadlines = Deadlines()
    for request in range(3000):
        deadlines.add(make_request(request, [5], deadline=1e9, ttft_deadline=1e9))
        deadlines.remove(request)
        deadlines.remove(request)
    assert deadlines.next() is None
    assert len(deadlines) < 100
    deadlines.first_token(5)
    assert list(deadlines.due(2e9)) == []
