"""Distributions that a user can type: ``512``, ``uniform:low=1,high=9``, ``lognormal:mean=512,cv=0.8,max=2048``, ``choice:128=0.5,1024=0.5``.

Every kind but ``choice`` and ``values`` takes ``min`` and ``max``, to which draws are clipped.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeAlias

import msgspec
import numpy as np

from loadtest.errors import WorkloadError

Draw: TypeAlias = Callable[[np.random.Generator, dict[str, float]], float]


class Distribution(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``parameters`` are the named numbers of ``kind``; ``values`` and ``weights`` serve "choice" and "values"."""

    kind: str
    parameters: dict[str, float] = {}
    values: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()

    def draw(self, rng: np.random.Generator) -> float:
        if self.values:
            return self.values[int(rng.choice(len(self.values), p=self.weights or None))]
        given = self.parameters
        value = _KINDS[self.kind][1](rng, given)
        return min(max(value, given.get("min", -math.inf)), given.get("max", math.inf))

    def draw_count(self, rng: np.random.Generator) -> int:
        """A whole number, at least 1."""
        return max(1, round(self.draw(rng)))

    def mean(self, samples: int = 4096) -> float:
        """The mean of what :meth:`draw` gives, clipping included, by sampling with a seed of its own."""
        rng = np.random.default_rng(0)
        return float(np.mean([self.draw(rng) for _ in range(samples)]))

    def quantile(self, share: float, samples: int = 4096) -> float:
        rng = np.random.default_rng(0)
        return float(np.quantile([self.draw(rng) for _ in range(samples)], share))


def _gamma(rng: np.random.Generator, given: dict[str, float]) -> float:
    shape = 1.0 / given["cv"] ** 2
    return float(rng.gamma(shape, given["mean"] / shape))


def _lognormal(rng: np.random.Generator, given: dict[str, float]) -> float:
    variance = math.log1p(given["cv"] ** 2)
    return float(rng.lognormal(math.log(given["mean"]) - variance / 2, math.sqrt(variance)))


_KINDS: Final[dict[str, tuple[tuple[str, ...], Draw]]] = {
    "constant": (("value",), lambda _, given: given["value"]),
    "uniform": (("low", "high"), lambda rng, given: float(rng.uniform(given["low"], given["high"]))),
    "normal": (("mean", "sd"), lambda rng, given: float(rng.normal(given["mean"], given["sd"]))),
    "exponential": (("mean",), lambda rng, given: float(rng.exponential(given["mean"]))),
    "gamma": (("mean", "cv"), _gamma),
    "lognormal": (("mean", "cv"), _lognormal),
}


def parse_distribution(text: str, option: str) -> Distribution:
    """Read what a user typed. Raises WorkloadError naming ``option`` and what is wrong with it."""
    kind, colon, rest = text.partition(":")
    if not colon:
        return Distribution("constant", {"value": _number(kind, option)})
    if kind == "values":
        return read_values(Path(rest), option)
    pairs = [part.partition("=") for part in rest.split(",") if part]
    if kind == "choice":
        return choice({_number(key, option): _number(value, option) for key, _, value in pairs}, option)
    if kind not in _KINDS:
        raise WorkloadError(f"{option}: {kind!r} is none of {', '.join([*_KINDS, 'choice', 'values'])}")
    given = {key: _number(value, option) for key, _, value in pairs}
    needed = _KINDS[kind][0]
    if missing := [name for name in needed if name not in given]:
        raise WorkloadError(f"{option}: {kind} needs {', '.join(missing)}")
    if unknown := sorted(set(given) - set(needed) - {"min", "max"}):
        raise WorkloadError(f"{option}: {kind} takes {', '.join(needed)}, min and max, not {', '.join(unknown)}")
    if bad := [name for name in ("mean", "cv", "sd") if given.get(name, 1.0) <= 0]:
        raise WorkloadError(f"{option}: {bad[0]} must be above 0, not {given[bad[0]]:g}")
    return Distribution(kind, given)


def choice(weights: dict[float, float], option: str) -> Distribution:
    """One of the keys, by weight; weights need not sum to 1. Raises WorkloadError naming ``option``."""
    total = sum(weights.values())
    if not weights or total <= 0 or min(weights.values()) < 0:
        raise WorkloadError(f"{option}: weights must be at least 0 and not all 0, not {weights}")
    return Distribution("choice", values=tuple(weights), weights=tuple(weight / total for weight in weights.values()))


def read_values(path: Path, option: str) -> Distribution:
    """One of a file's numbers, one a line, equally likely. Raises WorkloadError naming ``option``."""
    try:
        values = tuple(_number(line, option) for line in path.read_text().split())
    except OSError as error:
        raise WorkloadError(f"{option}: cannot read {path}: {error.strerror}") from error
    if not values:
        raise WorkloadError(f"{option}: {path} holds no number")
    return Distribution("values", values=values)


def _number(text: str, option: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise WorkloadError(f"{option}: {text!r} is no number") from None
    if not math.isfinite(value):
        raise WorkloadError(f"{option}: {text!r} is not finite")
    return value
