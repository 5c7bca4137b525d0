"""The waiting room: order, lazy removal, exact counts."""

from __future__ import annotations

import random

import pytest

from server.kv.block_pool import IntegrityError
from server.scheduling.rank_sums import Sums
from server.scheduling.shares import ClassShares
from server.scheduling.waiting_room import WaitingRoom
from tests.scheduling.guest import Guest


def nobody_owed() -> ClassShares:
    return ClassShares((0.0, 0.0, 0.0), bound=1)


def drain(room: WaitingRoom[Guest]) -> list[tuple[float, ...]]:
    keys: list[tuple[float, ...]] = []
    while len(room):
        keys.append(room.pop().key)
    return keys


def test_classes_in_their_order_and_within_a_class_by_key() -> None:
    room: WaitingRoom[Guest] = WaitingRoom(nobody_owed())
    for level, number in ((2, 1), (1, 3), (0, 9), (1, 2), (0, 4)):
        room.push(Guest(level, number))
    assert room.by_class == (2, 2, 1)
    assert drain(room) == [(0, 4), (0, 9), (1, 2), (1, 3), (2, 1)]


def test_who_comes_back_has_its_old_place_case_E4() -> None:
    room: WaitingRoom[Guest] = WaitingRoom(nobody_owed())
    first = Guest(1, 1)
    for guest in (first, Guest(1, 2)):
        room.push(guest)
    assert room.pop() is first
    room.push(Guest(1, 3))
    room.push(first)
    assert drain(room) == [(1, 1), (1, 2), (1, 3)]


def test_the_removed_are_gone_at_once_and_never_come_up() -> None:
    room: WaitingRoom[Guest] = WaitingRoom(nobody_owed())
    guests = [Guest(1, number, work=number) for number in range(5)]
    for guest in guests:
        room.push(guest)
    room.remove(guests[0])
    room.remove(guests[3])
    assert (len(room), room.work) == (3, 1 + 2 + 4)
    room.check_integrity()
    assert drain(room) == [(1, 1), (1, 2), (1, 4)]
    assert room.peek() is None
    with pytest.raises(IndexError, match="nobody waits"):
        room.pop()


def test_the_dead_never_outnumber_the_living_by_more_than_a_constant() -> None:
    room: WaitingRoom[Guest] = WaitingRoom(nobody_owed())
    survivor = Guest(1, 0)
    room.push(survivor)
    for number in range(1, 5000):
        guest = Guest(1, number)
        room.push(guest)
        room.remove(guest)
        queue = room._queues[1]
    assert sum(len(tenant.heap) for tenant in queue._tenants.values()) <= 2 * len(room) + 66
    assert len(queue._backlogged) <= 4 * len(queue._tenants) + 66
    assert drain(room) == [(1, 0)]


def test_random_comings_and_goings_equal_a_sorted_list() -> None:
    rng = random.Random(3)  # noqa: S311 - replays
    room: WaitingRoom[Guest] = WaitingRoom(nobody_owed())
    model: list[Guest] = []
    for number in range(4000):
        action = rng.random()
        if action < 0.5 or not model:
            guest = Guest(rng.randrange(3), number, work=rng.randrange(9))
            room.push(guest)
            model.append(guest)
        elif action < 0.75:
            expected = min(model, key=lambda guest: guest.key)
            assert room.peek() is expected
            assert room.pop() is expected
            model.remove(expected)
        else:
            guest = model.pop(rng.randrange(len(model)))
            room.remove(guest)
        assert len(room) == len(model)
        assert room.work == sum(guest.waiting_work for guest in model)
    room.check_integrity()


def test_integrity_notices_a_wrong_count() -> None:
    room: WaitingRoom[Guest] = WaitingRoom(nobody_owed())
    guest = Guest(1, 1)
    room.push(guest)
    guest.queued = False
    with pytest.raises(IntegrityError, match="class 1, tenant '': 0 wait, counted 1"):
        room.check_integrity()
    guest.queued = True
    guest.waiting_work = 5
    with pytest.raises(IntegrityError, match=r"in truth 1; .*known=1,.*known=5,"):
        room.check_integrity()
    guest.waiting_work, guest.expected_work = 1, 0
    with pytest.raises(IntegrityError, match=r"in truth 1; .*work=1.*work=0"):
        room.check_integrity()


def test_who_waits_is_told_in_the_order_of_class_and_rank() -> None:
    room: WaitingRoom[Guest] = WaitingRoom(nobody_owed(), long=50)
    guests = [
        Guest(level, number, work=work)
        for level, number, work in ((2, 1, 1000), (1, 5, 100), (0, 9, 1), (1, 3, 10), (0, 2, 7))
    ]
    for guest in guests:
        room.push(guest)

    def around(level: int, rank: float, ahead: int = 9, behind: int = 9) -> tuple[list[int], list[int]]:
        found = room.around(level, rank, ahead, behind)
        assert (found.ahead.requests + found.behind.requests, found.ahead.work + found.behind.work) == (
            len(room),
            room.work,
        )
        return [one.work for one in found.nearest], [one.work for one in found.following]

    assert around(0, 1.0) == ([], [7, 1, 10, 100, 1000])
    assert around(1, 0.0) == ([7, 1], [10, 100, 1000])
    assert around(1, 3.0) == ([7, 1, 10], [100, 1000])
    assert around(1, 3.0, ahead=2, behind=1) == ([1, 10], [100])
    assert around(1, 3.0, ahead=0, behind=0) == ([], [])
    assert around(2, 9.0) == ([7, 1, 10, 100, 1000], [])
    assert room.around(1, 3.0, 1, 1).ahead == Sums(3, 18, 7**2 + 1**2 + 10**2, 18, 18, 18, 3)
    assert room.around(1, 3.0, 1, 1).behind.capped == 2 * 50
    room.remove(guests[1])
    room.pop()
    assert around(1, 3.0) == ([1, 10], [1000])
    room.check_integrity()


def test_a_tenant_stands_beside_the_others_whatever_class_they_fill() -> None:
    room: WaitingRoom[Guest] = WaitingRoom(nobody_owed())
    assert room.standing("quiet") == (0, 1)
    for number in range(3):
        room.push(Guest(0, number, tenant="flood"))
    assert room.standing("flood") == (3, 1)
    assert room.standing("quiet") == (0, 2)
    room.push(Guest(1, 9, tenant="quiet"))
    assert room.standing("quiet") == (1, 2)
