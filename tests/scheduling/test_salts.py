"""Salts as numbers: never two salts under one, never one under two while it is remembered."""

from __future__ import annotations

import random

import pytest

from server.scheduling.salts import SaltNumbers


def test_no_salt_has_no_number() -> None:
    assert SaltNumbers().number(b"") is None


def test_a_number_is_never_given_twice_even_after_salts_were_forgotten_case_f7() -> None:
    numbers, draw = SaltNumbers(capacity=8), random.Random(1)  # noqa: S311 - the same salts every run
    owner: dict[int, bytes] = {}
    for _ in range(2000):
        salt = b"%d" % draw.randrange(40)
        number = numbers.number(salt)
        assert number is not None
        assert number >= 1
        assert owner.setdefault(number, salt) == salt


def test_what_is_asked_for_often_keeps_its_number() -> None:
    numbers = SaltNumbers(capacity=2)
    kept = numbers.number(b"kept")
    for other in range(10):
        numbers.number(b"%d" % other)
        assert numbers.number(b"kept") == kept
    assert numbers.number(b"0") != 2


def test_it_must_remember_something() -> None:
    with pytest.raises(ValueError, match="capacity must be at least 1, got 0"):
        SaltNumbers(0)
