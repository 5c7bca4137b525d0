"""Who shares a step's time for prompts with whom: the model against a schedule cut into small steps."""

from __future__ import annotations

import random

import pytest

from server.scheduling.contention import MOST_JOBS, Job, Through, until_through

SHORT, LONG = Job(1.0, long=False), Job(8.0, long=True)


def stepped(ahead: list[Job], own: Job, behind: list[Job], parts: int, step: float) -> float:
    """The same as prefills.py does it, step by step: at most so many at once, a long one its part, what is left in order."""
    left = [job.seconds for job in (*ahead, own, *behind)]
    long = [job.long for job in (*ahead, own, *behind)]
    spent = 0.0
    while left[len(ahead)] > 1e-9:
        living = [at for at, seconds in enumerate(left) if seconds > 1e-9]
        free, taken, partial = step, dict.fromkeys(living, 0.0), 0
        for at in living:
            size = min(left[at], free, step / parts if long[at] and len(living) > 1 else free)
            taken[at], free = size, free - size
            partial += size < left[at]
            if free <= 1e-12 or partial >= parts:
                break
        for at in living:
            if taken[at]:
                more = min(free, left[at] - taken[at])
                taken[at], free = taken[at] + more, free - more
        for at, size in taken.items():
            left[at] -= size
        spent += step - free
    return spent


def test_alone_it_takes_what_it_takes() -> None:
    assert until_through([], LONG, [], 4) == Through(8.0, 0.0)


def test_short_ones_go_one_after_the_other() -> None:
    assert until_through([SHORT, SHORT], SHORT, [SHORT], 4) == Through(3.0, 1.0)


def test_a_long_one_leaves_the_others_their_parts() -> None:
    spent, left, _ = until_through([LONG], SHORT, [], 4)
    assert [spent, left] == pytest.approx([4 / 3, 8 - 1 / 3])


def test_with_one_part_a_long_one_goes_first_whole() -> None:
    assert until_through([LONG], SHORT, [], 1) == Through(9.0, 0.0)


def test_who_has_no_part_waits_for_one() -> None:
    # Four long ones share; the fifth begins when they are through.
    assert until_through([LONG] * 4, Job(1.0, long=True), [], 4)[0] == pytest.approx(33.0)


def test_it_agrees_with_a_schedule_of_small_steps() -> None:
    rng = random.Random(3)  # noqa: S311 - the same jobs each time
    for _ in range(60):
        jobs = [Job(size, size > 1.0) for size in (rng.choice((0.3, 0.7, 2.0, 5.0, 9.0)) for _ in range(9))]
        cut, parts = rng.randrange(9), rng.randint(1, 4)
        spent, left, _ = until_through(jobs[:cut], jobs[cut], jobs[cut + 1 :], parts)
        assert spent == pytest.approx(stepped(jobs[:cut], jobs[cut], jobs[cut + 1 :], parts, 0.01), rel=0.02, abs=0.05)
        assert spent + left == pytest.approx(sum(job.seconds for job in jobs))


def test_of_very_many_the_first_count_as_one() -> None:
    crowd = [SHORT] * (3 * MOST_JOBS)
    assert until_through(crowd, SHORT, [], 4)[0] == pytest.approx(len(crowd) + 1.0)
