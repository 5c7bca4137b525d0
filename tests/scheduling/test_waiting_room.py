"""The waiting room: order, lazy removal, exact counts."""

from __future__ import annotations

import random

import pytest

from server.kv.block_pool import IntegrityError
from server.scheduling.shares import ClassShares
from server.scheduling.tenants import RANK_STEP
from server.scheduling.waiting_room import WaitingRoom


class Guest:
    def __init__(self, level: int, number: float, work: int = 1, tenant: str = "") -> None:
        self.key = (float(level), float(number))
        self.waiting_work = self.expected_work = work
        self.queued = False
        self.tenant = tenant
        self.charged: float | None = None
        self.expected_charge = float(work)


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
            guest = Guest(rng.randrange(3), number, rng.randrange(9))
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
    with pytest.raises(IntegrityError, match=r"waiting work by class is \[0, 5, 0\] tokens, counted \[0, 1, 0\]"):
        room.check_integrity()
    guest.waiting_work, guest.expected_work = 1, 5
    with pytest.raises(IntegrityError, match=r"class 1: \(waiters, work\) are \[1, 5\], by rank \[1, 1\]"):
        room.check_integrity()


def test_who_waits_is_told_in_the_order_of_class_and_rank() -> None:
    room: WaitingRoom[Guest] = WaitingRoom(nobody_owed())
    guests = [
        Guest(level, number, work)
        for level, number, work in ((2, 1.01, 1000), (1, 5.01, 100), (0, 9.01, 1), (1, 3.01, 10), (1, 3.02, 10))
    ]
    for guest in guests:
        room.push(guest)
    standings = room.standings()
    # Ranks within a RANK_STEP are one.
    assert [(each.level, each.requests, each.work) for each in standings] == [
        (0, 1, 1),
        (1, 2, 20),
        (1, 1, 100),
        (2, 1, 1000),
    ]
    assert [each.rank for each in standings] == pytest.approx([9.0, 3.0, 5.0, 1.0], abs=RANK_STEP)
    room.remove(guests[1])
    room.pop()
    assert [(standing.level, standing.requests) for standing in room.standings()] == [(1, 2), (2, 1)]
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
