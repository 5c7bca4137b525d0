"""What is expected to come and pass, from what came."""

from __future__ import annotations

import pytest

from server.engine import PriorityClass
from server.scheduling.overtaking import Later, Overtaking

STANDARD, BATCH = int(PriorityClass.STANDARD), int(PriorityClass.BATCH)


def come(seen: Overtaking, at: float, offset: float, *, seconds: float = 0.1, level: int = STANDARD) -> None:
    seen.arrived(at, level, at + offset, seconds=seconds, tokens=50, room=80)


def bursts(count: int, size: int, *, every: float = 10.0, level: int = STANDARD) -> Overtaking:
    """Each ``every`` seconds ``size`` requests at once: offsets 1, 2, 3 .., a tenth of a second of work each."""
    seen = Overtaking()
    for burst in range(count):
        for place in range(size):
            come(seen, every * burst, place + 1, level=level)
    return seen


def test_of_what_was_never_seen_nothing_is_expected() -> None:
    assert Overtaking().expect(0.0, STANDARD, 5.0, 100.0) == Later()


def test_the_first_of_a_burst_expects_the_rest_of_it() -> None:
    # The first of eight, of offset 1: of the seven to come 2, 3 and 4 have one below 4.5.
    rest = bursts(9, 8).expect(90.0, STANDARD, 90.0 + 4.5, 1.0)
    assert (rest.passing, rest.behind) == pytest.approx((0.3, 0.4))
    assert (rest.passing_requests, rest.passing_room, rest.requests, rest.tokens) == (3, 240, 7, 350)


def test_the_first_of_the_second_burst_knows_the_one_before() -> None:
    assert bursts(1, 5).expect(10.0, STANDARD, 10.0 + 9.0, 1.0).passing == pytest.approx(0.4)


def test_of_bursts_that_differ_the_one_is_expected_that_makes_the_whole_wait_least_wrong() -> None:
    seen = Overtaking()
    for burst, seconds in enumerate((1.0, 2.0, 10.0, 20.0, 90.0)):
        come(seen, 100.0 * burst, 1.0)
        come(seen, 100.0 * burst, 1.0, seconds=seconds)
    # After a wait of its own of a second 2, 3 and 11 weigh more than the rest; beside one of 1000 s all weigh the same.
    assert seen.expect(500.0, STANDARD, 502.0, 1.0).passing == pytest.approx(1.0)
    assert seen.expect(500.0, STANDARD, 502.0, 1000.0).passing == pytest.approx(10.0, rel=0.5)


def test_bursts_long_ago_are_forgotten() -> None:
    seen = bursts(40, 8)
    for burst in range(32):
        come(seen, 1000.0 + burst, 1.0)
        come(seen, 1000.0 + burst, 1.0)
    assert seen.expect(1032.0, STANDARD, 1034.0, 0.1).requests == 1


def test_the_last_of_a_burst_expects_nobody() -> None:
    seen = bursts(9, 8)
    for place in range(7):
        come(seen, 90.0, 1.0 + place)
    assert seen.expect(90.0, STANDARD, 99.0, 1.0) == Later()


def test_later_ones_pass_at_the_rate_at_which_they_come_and_only_in_time() -> None:
    seen = bursts(257, 1, every=1.0)  # one a second, offset 1, a tenth of a second of work
    long = seen.expect(256.5, STANDARD, 256.5 + 21.0, 10.0).passing
    short = seen.expect(256.5, STANDARD, 256.5 + 3.0, 10.0).passing
    assert long == pytest.approx(0.1 * 9, rel=0.01)  # of its ten seconds the first passes before the next comes
    assert short == pytest.approx(0.1 * 1, rel=0.01)  # who comes more than two seconds later ranks behind it
    assert seen.expect(256.5, STANDARD, 256.5 + 0.5, 10.0).passing == 0.0


def test_classes_above_pass_whatever_their_rank_and_classes_below_never() -> None:
    seen = bursts(9, 8)
    above = seen.expect(90.0, BATCH, 0.0, 1.0).passing
    assert above == pytest.approx(0.7)
    assert seen.expect(90.0, int(PriorityClass.INTERACTIVE), 1e9, 1.0).passing == 0.0
