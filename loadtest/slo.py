"""Service-level objectives of one request, and what share of requests keeps them."""

from __future__ import annotations

import math
import re
from typing import Final

import msgspec

from loadtest.errors import WorkloadError
from loadtest.record import CLIENT_CANCELLED, RequestRecord

_UNITS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0}
PRESETS: Final = {
    "chat": "ttft=200ms,itl=50ms",
    "rag": "ttft=300ms,itl=100ms",
    "code": "ttft=500ms,itl=150ms",
}


class Slo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds in seconds; None = not asked for. A request that fails keeps none of them."""

    ttft: float | None = None
    """Time to first token."""
    itl: float | None = None
    """Mean time per output token after the first."""
    gap: float | None = None
    """Longest silence between two content messages."""
    e2e: float | None = None
    """Whole request."""

    @property
    def bounds(self) -> dict[str, float]:
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        return {name: value for name, value in values.items() if value is not None}

    def kept(self, record: RequestRecord) -> bool:
        """Whether this request was answered within every bound."""
        if not record.ok:
            return False
        seen = {"ttft": record.ttft, "itl": record.tpot, "gap": max(record.gaps(), default=0.0), "e2e": record.latency}
        for name, bound in self.bounds.items():
            value = seen[name]
            if value is None and name == "itl":
                continue  # a single token has no gap to judge
            if value is None or value > bound:
                return False
        return True

    def __str__(self) -> str:
        return ", ".join(f"{name} <= {value * 1e3:g} ms" for name, value in self.bounds.items())


def parse_slo(text: str) -> Slo:
    """Read ``ttft=200ms,itl=50ms``, or a preset's name. Raises WorkloadError."""
    bounds: dict[str, float] = {}
    for part in PRESETS.get(text, text).split(","):
        name, _, value = (piece.strip() for piece in part.partition("="))
        if name not in Slo.__struct_fields__:
            raise WorkloadError(
                f"--slo: {part!r} is none of {', '.join(Slo.__struct_fields__)}=TIME, nor {', '.join(PRESETS)}"
            )
        bounds[name] = parse_seconds(value, "--slo")
    return Slo(**bounds)


def parse_seconds(text: str, option: str) -> float:
    """Read ``200ms``, ``1.5s`` or ``2``. Above 0. Raises WorkloadError naming the option."""
    match = re.fullmatch(r"([0-9.]+)\s*(us|ms|s|)", text.strip())
    try:
        value = float(match[1]) * _UNITS[match[2]] if match else math.nan
    except ValueError:
        value = math.nan
    if not value > 0:
        raise WorkloadError(f"{option}: {text!r} is no time above 0, such as 200ms or 1.5s")
    return value


def judged(record: RequestRecord) -> bool:
    """Requests that say something about the server: neither warm-up, nor given up or stalled by the workload's own wish."""
    return not (record.warmup or record.stalled or record.status == CLIENT_CANCELLED)
