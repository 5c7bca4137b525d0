"""A figure that the project lives by: what was measured, against the bound that it must keep."""

from __future__ import annotations

import msgspec


class Figure(msgspec.Struct, frozen=True):
    """One line of `make figures`; with --json exactly these keys."""

    name: str
    bound: str
    value: str
    holds: bool


def at_most(name: str, limit: float, value: float, unit: str) -> Figure:
    return Figure(name, f"<= {_number(limit)} {unit}".strip(), f"{_number(value)} {unit}".strip(), value <= limit)


def at_least(name: str, limit: float, value: float, unit: str) -> Figure:
    return Figure(name, f">= {_number(limit)} {unit}".strip(), f"{_number(value)} {unit}".strip(), value >= limit)


def equal(name: str, expected: object, value: object) -> Figure:
    return Figure(name, f"= {expected}", f"{value}", expected == value)


def _number(value: float) -> str:
    """Four significant digits, without an exponent where people read them."""
    return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
