"""Who is seated when, and computes when, where seats and blocks are short: by hand, and against a schedule of small steps."""

from __future__ import annotations

import random

import pytest

from server.scheduling.contention import Job, Through, until_through
from server.scheduling.outlook import Streaming
from server.scheduling.vacancy import MOST_STREAMS, Room, in_groups, until_seated_and_through

GIVEN = 0.5
"""Seconds of prompts in a step."""


def waits(seconds: float, blocks: int, *, output: float = 1e9, long: bool = False, seats: int = 1) -> Job:
    return Job(seconds, long, blocks, output, seated=False, seats=seats)


def until(ahead: list[Job], own: Job, room: Room, behind: tuple[Job, ...] = (), parts: int = 4) -> Through:
    return until_seated_and_through(ahead, own, behind, parts, given=GIVEN, room=room)


def test_with_room_for_all_it_is_as_if_all_had_seats() -> None:
    rng = random.Random(5)  # noqa: S311 - the same jobs each time
    for _ in range(100):
        jobs = [waits(size, 1, long=size > 1.0) for size in (rng.choice((0.3, 0.7, 2.0, 5.0)) for _ in range(8))]
        cut, parts = rng.randrange(8), rng.randint(1, 4)
        seated = [job._replace(seated=True) for job in jobs]
        found = until(jobs[:cut], jobs[cut], Room(99, 99, []), tuple(jobs[cut + 1 :]), parts)
        assert found == pytest.approx(until_through(seated[:cut], seated[cut], seated[cut + 1 :], parts))


def test_it_waits_for_a_seat_while_nothing_is_computed() -> None:
    assert until([], waits(2.0, 1), Room(0, 99, [Streaming(30.0, 1, 1), Streaming(40.0, 1, 1)])) == Through(
        2.0, 0.0, 30.0
    )


def test_it_waits_until_blocks_enough_are_free() -> None:
    streams = [Streaming(10.0, 3, 1), Streaming(20.0, 3, 1), Streaming(30.0, 3, 1)]
    assert until([], waits(2.0, 8), Room(99, 2, streams)) == Through(2.0, 0.0, 20.0)


def test_who_does_not_fit_holds_up_whoever_would() -> None:
    streams = [Streaming(10.0, 3, 1), Streaming(20.0, 3, 1)]
    through = until([waits(1.0, 8)], waits(2.0, 1), Room(99, 3, streams))
    assert through == Through(3.0, 0.0, 20.0)


def test_the_only_one_in_the_house_is_seated_whatever_it_takes() -> None:
    assert until([], waits(2.0, 1000), Room(8, 10, [Streaming(5.0, 3, 1)])) == Through(2.0, 0.0, 5.0)


def test_steps_pass_while_others_compute() -> None:
    # Ten steps of half a second each: by then the stream has ended.
    ahead = [Job(5.0, long=False, blocks=4, output=1e9)]
    assert until(ahead, waits(2.0, 4), Room(0, 0, [Streaming(8.0, 4, 1)])) == Through(7.0, 0.0, 0.0)
    assert until(ahead, waits(2.0, 4), Room(0, 0, [Streaming(12.0, 4, 1)])) == Through(7.0, 0.0, 2.0)


def test_who_is_through_streams_and_then_gives_its_room_back() -> None:
    through = until([waits(1.0, 6, output=50.0)], waits(2.0, 6), Room(9, 6, []))
    assert through == Through(3.0, 0.0, 50.0)


def test_one_that_stands_for_many_takes_and_gives_their_seats() -> None:
    many = waits(1.0, 6, output=50.0, seats=3)
    assert until([many], waits(2.0, 0), Room(3, 99, [])) == Through(3.0, 0.0, 50.0)
    assert until([many], waits(2.0, 0), Room(4, 99, [])) == Through(3.0, 0.0, 0.0)


def test_of_very_many_streams_neighbours_count_as_one() -> None:
    few = [Streaming(float(end), 1, 1) for end in range(MOST_STREAMS)]
    assert in_groups(reversed(few)) == few
    many = in_groups(Streaming(float(end), 2, 1) for end in range(5 * MOST_STREAMS))
    assert many[:2] == [Streaming(2.0, 10, 5), Streaming(7.0, 10, 5)]
    assert len(many) == MOST_STREAMS


def stepped(ahead: list[Job], own: Job, room: Room, step: float) -> tuple[float, float]:
    """Prompts one after the other, in steps of a hundredth: (seconds computed, steps without a prompt)."""
    jobs, place = [*ahead, own], len(ahead)
    left, seated = [job.seconds for job in jobs], [job.seated for job in jobs]
    ends = list(room.streams)
    blocks, now, spent, idle = room.blocks, 0.0, 0.0, 0.0
    while left[place] > 1e-9:
        blocks += sum(size for end, size, _ in ends if end <= now + 1e-9)
        ends = [one for one in ends if one[0] > now + 1e-9]
        for at, job in enumerate(jobs):
            if not seated[at]:
                computing = any(seated[other] and left[other] > 1e-9 for other in range(len(jobs)))
                if job.blocks > blocks and (ends or computing):
                    break
                seated[at], blocks = True, blocks - job.blocks
        free = step * GIVEN
        for at, job in enumerate(jobs):
            if seated[at] and left[at] > 1e-9 and free > 1e-12:
                size = min(left[at], free)
                left[at], free, spent = left[at] - size, free - size, spent + size
                if left[at] <= 1e-9:
                    ends.append(Streaming(now + step + job.output, job.blocks, 1))
        now += step
        idle += step if free == step * GIVEN else 0.0
    return spent, idle


def test_it_agrees_with_a_schedule_of_small_steps() -> None:
    rng = random.Random(11)  # noqa: S311 - the same rooms each time
    for _ in range(60):
        ahead = [
            Job(rng.uniform(0.2, 3.0), False, rng.randint(1, 9), rng.uniform(1.0, 60.0), seated=at < 2)
            for at in range(7)
        ]
        streams = sorted(Streaming(rng.uniform(0.0, 60.0), rng.randint(1, 9), 1) for _ in range(5))
        room = Room(99, rng.randint(0, 9), streams)
        own = waits(1.0, rng.randint(1, 9))
        found, (spent, idle) = until(ahead, own, room), stepped(ahead, own, room, 0.01)
        assert found.spent == pytest.approx(spent, abs=0.05)
        assert found.idle == pytest.approx(idle, abs=0.3)


def test_it_comes_to_an_end_whoever_waits_for_whatever() -> None:
    """Nothing to compute, no answer, more seats and blocks than exist, none free or less than none, steps that give next to nothing."""
    rng = random.Random(13)  # noqa: S311 - the same rooms each time
    for _ in range(300):
        jobs = [
            Job(
                rng.choice((0.0, 1e-13, 0.5, 1e5)),
                rng.random() < 0.5,
                rng.choice((0, 3, 1000)),
                rng.choice((0.0, 7.0, 1e9)),
                seated=rng.random() < 0.3,
                seats=rng.choice((1, 5, 300)),
            )
            for _ in range(8)
        ]
        streams = sorted(
            Streaming(rng.choice((0.0, 4.0, 90.0)), rng.choice((0, 2)), 1) for _ in range(rng.randrange(4))
        )
        room, parts = Room(rng.randint(-3, 4), rng.randint(-5, 9), streams), rng.randint(1, 4)
        cut, given = rng.randrange(8), rng.choice((1e-9, 0.5, 1e9))
        own = jobs[cut]._replace(seated=False)
        spent, left, idle = until_seated_and_through(jobs[:cut], own, jobs[cut + 1 :], parts, given=given, room=room)
        assert own.seconds - 1e-9 <= spent
        assert spent + left <= sum(job.seconds for job in jobs) + 1e-6
        # Each of the others is waited for once at most.
        assert 0.0 <= idle <= sum(job.output for job in jobs) + sum(end for end, _, _ in streams)
