"""What a simulated step costs: the declared truth that the server's own cost model has to find out.

The truth is the server's formula (`docs/scheduling.md`) and two things that the formula does not have: noise, and a
kink, beyond which new tokens cost more.
"""

from __future__ import annotations

import math
import random

import msgspec

from engines.contract import EngineLoadError


class StepShape(msgspec.Struct, frozen=True):
    """What of a step determines its cost. A row of one new token after some past is a decode; any other row is a chunk."""

    new: int
    """New tokens of the chunks."""
    decodes: int
    decode_context: int
    """Sum over decodes of the tokens that they attend to."""
    attention: float
    """Sum over chunks of new * (past + new / 2)."""


class CostModel(msgspec.Struct, frozen=True):
    """Seconds of a step. All coefficients are in seconds per unit and not negative."""

    fixed: float = 0.0
    per_new_token: float = 0.0
    per_decode: float = 0.0
    per_decode_context: float = 0.0
    per_attention: float = 0.0
    noise: float = 0.0
    """Standard deviation of the logarithm of a factor with median 1: 0.05 is about 5 %."""
    kink_at: int = 0
    """New tokens in a step beyond which each costs ``kink_factor`` times as much; 0 = no kink."""
    kink_factor: float = 1.0

    def expected(self, shape: StepShape) -> float:
        """Seconds without noise."""
        dear = max(0, shape.new - self.kink_at) if self.kink_at else 0
        return (
            self.fixed
            + self.per_new_token * (shape.new + dear * (self.kink_factor - 1.0))
            + self.per_decode * shape.decodes
            + self.per_decode_context * shape.decode_context
            + self.per_attention * shape.attention
        )

    def seconds(self, shape: StepShape, noise: random.Random) -> float:
        """Seconds with noise drawn from ``noise``: the same steps in the same order cost the same."""
        expected = self.expected(shape)
        return expected * math.exp(noise.gauss(0.0, self.noise)) if self.noise else expected


PROFILES: dict[str, CostModel] = {
    "instant": CostModel(),
    # Every step takes 10 ms, whatever is in it: for measuring what else a token costs.
    "steady": CostModel(fixed=10e-3),
    # SmolLM2-135M, weights as in its 4-bit GGUF, bf16, two cores of a server CPU: one stream 95 tokens/s, sixteen 480 tokens/s,
    # a 512-token prompt 350 ms.
    "laptop": CostModel(
        fixed=8.5e-3,
        per_new_token=0.6e-3,
        per_decode=1.3e-3,
        per_decode_context=0.7e-6,
        per_attention=2.5e-7,
        noise=0.05,
        kink_at=256,
        kink_factor=1.15,
    ),
    # Orders of magnitude of an 8-billion-parameter model in 16 bits on one data-centre GPU, from its arithmetic and bandwidth:
    # an assumption for capacity studies, not a measurement.
    "gpu": CostModel(
        fixed=6.0e-3,
        per_new_token=4.0e-5,
        per_decode=2.0e-5,
        per_decode_context=4.0e-8,
        per_attention=1.5e-9,
        noise=0.03,
        kink_at=4096,
        kink_factor=1.2,
    ),
}
"""Named cost models for ``engines.simulated.load``."""


def require_profile(name: str) -> CostModel:
    """Raises EngineLoadError where there is none of this name."""
    if name not in PROFILES:
        raise EngineLoadError(f"profile: must be one of {', '.join(sorted(PROFILES))}, got {name!r}")
    return PROFILES[name]
