"""Seats that a tenant who holds most of them leaves to others."""

from __future__ import annotations

from server.scheduling.seat_reserve import SeatReserve


def test_alone_a_tenant_gets_every_seat() -> None:
    reserve = SeatReserve(32)
    for _ in range(31):
        reserve.take("a")
    assert reserve.kept_from("a") == 0


def test_beside_others_the_greatest_leaves_the_last_sixteenth_to_them_case_E11() -> None:
    reserve = SeatReserve(32)
    reserve.take("quiet")
    for _ in range(20):
        reserve.take("flood")
    assert reserve.kept_from("flood") == 2
    assert reserve.kept_from("quiet") == reserve.kept_from("new") == 0
    for _ in range(10):
        reserve.leave("flood")
    assert reserve.kept_from("flood") == 0, "ten of 32 are no majority"


def test_others_who_have_not_come_for_long_are_forgotten() -> None:
    reserve = SeatReserve(32)
    reserve.take("quiet")
    reserve.leave("quiet")
    for _ in range(20):
        reserve.take("flood")
    assert reserve.kept_from("flood") == 2
    for _ in range(600):
        reserve.take("flood")
        reserve.leave("flood")
    assert reserve.kept_from("flood") == 0
