"""Rotary position embeddings and their scalings, as frequencies.

Position p turns the pair (i, i + dims / 2) of a head by the angle p * frequency[i], and the turned vector is stretched by
``stretch`` (RoFormer, Su et al. 2021; half-split order). A scaling changes the frequencies so that a model reaches beyond
the context it was trained on:

* linear: positions interpolated (Chen et al. 2023);
* dynamic: the base grows with the sequence (NTK-aware, as transformers defines it);
* yarn: fast turns kept, slow ones interpolated, attention stretched (Peng et al. 2023);
* llama3: as yarn in kind, with bounds in wavelengths (Llama 3.1's published rule);
* longrope: one factor for each frequency, another list beyond the original context (Ding et al. 2024);
* factors: one factor for each frequency, as a file states them (how GGUF keeps Llama 3.1's scaling).

dynamic and longrope depend on the length of the whole sequence, so keys that were turned while it was short are wrong once
it is long. An engine that caches keys serves them exactly up to ``static_context`` and no further.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Frequencies: TypeAlias = NDArray[np.float64]
ScalingKind: TypeAlias = Literal["none", "linear", "dynamic", "llama3", "yarn", "longrope", "factors"]


@dataclass(frozen=True)
class RopeScaling:
    """Only the fields of its kind are set; each is named as public configs name it."""

    kind: ScalingKind = "none"
    factor: float = 1.0
    original_context: int = 0
    """Tokens of the context before scaling; 0 where the kind does not need it."""
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    """yarn: the ramp's ends rounded to whole dimensions."""
    attention_factor: float = 1.0
    """yarn, longrope: stretch of the turned vectors."""
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()


@dataclass(frozen=True)
class Rope:
    theta: float
    dims: int
    """Leading values of a head that are turned; the rest pass unchanged."""
    scaling: RopeScaling = RopeScaling()

    @property
    def stretch(self) -> float:
        return self.scaling.attention_factor

    @property
    def static_context(self) -> int | None:
        """Longest sequence whose frequencies do not depend on its length; None = any."""
        return self.scaling.original_context if self.scaling.kind in ("dynamic", "longrope") else None

    def frequencies(self, length: int) -> Frequencies:
        """Radians per position, [dims / 2], for a sequence of ``length`` tokens in all."""
        return _RULES[self.scaling.kind](self, length)


def plain(theta: float, dims: int) -> Frequencies:
    return np.asarray(theta ** -(np.arange(0, dims, 2, dtype=np.float64) / dims))


def _none(rope: Rope, length: int) -> Frequencies:
    del length
    return plain(rope.theta, rope.dims)


def _linear(rope: Rope, length: int) -> Frequencies:
    del length
    return np.asarray(plain(rope.theta, rope.dims) / rope.scaling.factor)


def _dynamic(rope: Rope, length: int) -> Frequencies:
    scaling = rope.scaling
    reach = max(length, scaling.original_context) / scaling.original_context
    growth = scaling.factor * reach - (scaling.factor - 1)
    return plain(rope.theta * growth ** (rope.dims / (rope.dims - 2)), rope.dims)


def _llama3(rope: Rope, length: int) -> Frequencies:
    del length
    scaling = rope.scaling
    fast = plain(rope.theta, rope.dims)
    # Full turns within the original context.
    turns = scaling.original_context * fast / (2 * math.pi)
    share = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    share = np.clip(share, 0.0, 1.0)
    return (1 - share) * fast / scaling.factor + share * fast


def _yarn(rope: Rope, length: int) -> Frequencies:
    del length
    scaling = rope.scaling
    fast = plain(rope.theta, rope.dims)
    low, high = (_dimension_of(rope, turns) for turns in (scaling.beta_fast, scaling.beta_slow))
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.dims - 1)
    ramp = (np.arange(rope.dims // 2) - low) / (high - low if high != low else 0.001)
    interpolated = np.clip(ramp, 0.0, 1.0)
    return np.asarray(interpolated * fast / scaling.factor + (1 - interpolated) * fast)


def _dimension_of(rope: Rope, turns: float) -> float:
    """The (fractional) dimension that makes ``turns`` full turns within the original context."""
    return rope.dims * math.log(rope.scaling.original_context / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))


def _longrope(rope: Rope, length: int) -> Frequencies:
    scaling = rope.scaling
    factors = scaling.long_factors if length > scaling.original_context else scaling.short_factors
    return plain(rope.theta, rope.dims) / np.asarray(factors, dtype=np.float64)


def _factors(rope: Rope, length: int) -> Frequencies:
    del length
    return plain(rope.theta, rope.dims) / np.asarray(rope.scaling.short_factors, dtype=np.float64)


_RULES = {
    "none": _none,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "factors": _factors,
}


def yarn_attention_factor(factor: float, mscale: float | None = None, mscale_all_dim: float | None = None) -> float:
    """The paper's 0.1 ln(factor) + 1; where both mscales are given, the quotient of their stretches (DeepSeek's form)."""

    def stretch(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if mscale and mscale_all_dim:
        return stretch(mscale) / stretch(mscale_all_dim)
    return stretch(1.0)


def longrope_attention_factor(factor: float, original_context: int) -> float:
    return 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original_context))
