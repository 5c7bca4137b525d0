"""Whose prompts are around a newcomer, and the room that they take."""

from __future__ import annotations

import pytest

from engines.manifest import StepProfile
from server.scheduling.contention import Job
from server.scheduling.cost import StepCost
from server.scheduling.crowd import MOST_AHEAD, Crowd
from server.scheduling.outlook import Outlook, Prefilling
from server.scheduling.rank_sums import Around, of_one, total

COST = StepCost(StepProfile(0.01, 0.001, 0.001, 0.0, 0.0, "", 0.0))
EMPTY = Outlook((0, 0, 0), 0, (), 0, 0, 0.0, 0.0, 8, 10)
NOBODY = Around(total([]), [], total([]), [])
LONG = 500


def crowd(waiting: Around = NOBODY, *prefilling: Prefilling, seats: int = 8) -> Crowd:
    outlook = EMPTY._replace(prefilling=prefilling, free_seats=seats)
    return Crowd(waiting, outlook, (1, 5.0), cost=COST, long=LONG, block_size=10)


def test_in_the_order_of_class_and_rank_and_who_came_first() -> None:
    found = crowd(
        NOBODY,
        Prefilling(1, 6.0, 100, 0),
        Prefilling(1, 4.0, 200, 0),
        Prefilling(0, 9.0, 300, 0),
        Prefilling(-1, 0.0, 700, 0, blocks=80, output=9, seated=False),
        Prefilling(-1, 0.0, 400, 0),
    )
    assert [job[1:] for job in found.ahead] == [
        (True, 80, 9, False, 1),
        (False, 0, 0, True, 1),
        (False, 0, 0, True, 1),
        (False, 0, 0, True, 1),
    ]
    assert [job.seconds for job in (*found.ahead, *found.behind)] == pytest.approx([0.7, 0.4, 0.3, 0.2, 0.1], rel=1e-3)
    assert (found.requests, found.tokens_ahead, found.capped_tokens) == (5, 1600, 1500)


def test_the_farther_ones_count_in_groups_that_need_together_what_all_need() -> None:
    one = of_one(100, 100, LONG, room=105, output=40)
    near = [one] * MOST_AHEAD
    found = crowd(Around(total([one] * 1000), near, total([]), []), seats=64)
    groups = found.ahead[: -len(near)]
    assert 1 < len(groups) < MOST_AHEAD
    assert sum(job.seconds for job in found.ahead) == pytest.approx(100.0, rel=1e-3)
    assert 1000 - len(near) <= sum(job.seats for job in groups) < 1000 - len(near) + groups[0].seats
    assert sum(job.blocks for job in groups) * 10 >= (1000 - len(near)) * 105
    assert {job.output for job in groups} == {40.0}
    assert not any(job.seated for job in found.ahead)


def test_a_group_larger_than_all_seats_takes_them_in_rounds() -> None:
    one = of_one(100, 100, LONG, room=100, output=40)
    found = crowd(Around(total([one] * 1024), [], total([]), []))
    # 32 groups of 32, where there are eight seats.
    assert {(job.seats, job.blocks, job.output) for job in found.ahead} == {(8, 80, 160.0)}
    assert len(found.ahead) == 32


def test_room_lacks_where_not_all_of_them_fit() -> None:
    one = of_one(30, 30, LONG, room=30)
    for waiting in range(10):
        found = crowd(Around(total([one] * waiting), [one] * waiting, total([]), []))
        for blocks in range(4):
            own = Job(1.0, False, blocks, seated=False)
            assert found.lacks_room(own, EMPTY) == (3 * waiting + blocks > 10 or waiting + 1 > 8)
