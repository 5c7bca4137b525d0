"""From values to places on a plot, and where its ticks stand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec


class Scale(msgspec.Struct, frozen=True):
    """Maps [low, high] to [start, stop] (in SVG units), linearly or by the logarithm."""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def place(self, value: float) -> float:
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(at)
        return self.start + (at - low) / (high - low) * (self.stop - self.start)

    def ticks(self, wanted: int = 6) -> list[float]:
        return log_ticks(self.low, self.high) if self.log else linear_ticks(self.low, self.high, wanted)


def fit(values: Sequence[float], start: float, stop: float, *, log: bool = False, zero: bool = False) -> Scale:
    """A scale that shows all values; with ``zero`` it begins there. A logarithmic one shows the positive values."""
    usable = [value for value in values if math.isfinite(value) and (not log or value > 0)]
    low, high = (min(usable), max(usable)) if usable else (1.0, 10.0)
    if zero and not log:
        low = min(0.0, low)
        high = high * 1.05
    if log:
        low, high = low / 1.1, high * 1.1
    if high <= low:
        low, high = (low / 2, high * 2) if log else (low - 0.5, high + 0.5)
    return Scale(low, high, start, stop, log)


def linear_ticks(low: float, high: float, wanted: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten."""
    raw = (high - low) / max(1, wanted)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 12) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2, 5 of each decade; powers of ten only where there are many decades; even steps where there is hardly one."""
    factors = (1, 2, 5) if high / low < 2000 else (1,)
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    values = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
    shown = [value for value in values if low <= value <= high]
    return shown if len(shown) >= 3 else linear_ticks(low, high, 4)


def tick_label(value: float) -> str:
    if value == 0:
        return "0"
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:g}k"
    return f"{value:g}"
