"""What is expected to come and pass, from what came."""

from __future__ import annotations

import pytest

from server.engine import PriorityClass
from server.scheduling.overtaking import Overtaking, rests

STANDARD, BATCH = int(PriorityClass.STANDARD), int(PriorityClass.BATCH)


def bursts(count: int, size: int, *, every: float = 10.0, level: int = STANDARD) -> Overtaking:
    """Each ``every`` seconds ``size`` requests at once: offsets 1, 2, 3 .., a tenth of a second of work each."""
    seen = Overtaking()
    for burst in range(count):
        for place in range(size):
            seen.arrived(every * burst, level, every * burst + place + 1, 0.1)
    return seen


def test_of_what_was_never_seen_nothing_is_expected() -> None:
    assert Overtaking().expect(0.0, STANDARD, 5.0, 100.0) == (0.0, 0.0)


def test_the_first_of_a_burst_expects_the_rest_of_it() -> None:
    passing, behind = bursts(9, 8).expect(90.0, STANDARD, 90.0 + 4.5, 1.0)
    # The first of eight: of the seven to come half have an offset below 4.5.
    assert passing == pytest.approx(7 * 0.1 / 2)
    assert behind == pytest.approx(7 * 0.1 / 2)


def test_the_last_of_a_burst_expects_nobody() -> None:
    seen = bursts(9, 8)
    for place in range(7):
        seen.arrived(90.0, STANDARD, 91.0 + place, 0.1)
    assert seen.expect(90.0, STANDARD, 99.0, 1.0) == (0.0, 0.0)


def test_later_ones_pass_at_the_rate_at_which_they_come_and_only_in_time() -> None:
    seen = bursts(257, 1, every=1.0)  # one a second, offset 1, a tenth of a second of work
    long, _ = seen.expect(256.5, STANDARD, 256.5 + 21.0, 10.0)
    short, _ = seen.expect(256.5, STANDARD, 256.5 + 3.0, 10.0)
    assert long == pytest.approx(0.1 * 9, rel=0.01)  # of its ten seconds the first passes before the next comes
    assert short == pytest.approx(0.1 * 1, rel=0.01)  # who comes more than two seconds later ranks behind it
    assert seen.expect(256.5, STANDARD, 256.5 + 0.5, 10.0) == (0.0, 0.0)


def test_classes_above_pass_whatever_their_rank_and_classes_below_never() -> None:
    seen = bursts(9, 8)
    above, _ = seen.expect(90.0, BATCH, 0.0, 1.0)
    assert above == pytest.approx(0.7)
    assert seen.expect(90.0, int(PriorityClass.INTERACTIVE), 1e9, 1.0)[0] == 0.0


@pytest.mark.parametrize(
    ("sizes", "expected"), [([], [0]), ([1, 1, 1], [0, 0]), ([1, 1, 1, 9], [0, 7, 6, 5, 4, 3, 2, 1, 0, 0])]
)
def test_what_usually_comes_after_the_kth(sizes: list[int], expected: list[int]) -> None:
    assert rests(sizes) == expected
