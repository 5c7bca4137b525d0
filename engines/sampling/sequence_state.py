"""What the sampler keeps of one open sequence."""

from __future__ import annotations

from engines.contract import SequenceSpec
from engines.sampling.constraint import Constraint
from engines.sampling.draw_numbers import DrawNumbers
from engines.sampling.params import SamplingParams


class SequenceState:
    """Read at every step, so what follows from the parameters is worked out once."""

    __slots__ = ("constraint", "greedy", "numbers", "params", "plain")

    def __init__(self, spec: SequenceSpec, constraint: Constraint | None) -> None:
        self.params: SamplingParams = spec.sampling
        self.constraint = constraint
        self.numbers = DrawNumbers(self.params.seed, spec.index)
        self.greedy = self.params.temperature == 0.0 or self.params.top_k == 1
        self.plain = self.greedy and self.params.logprobs is None and constraint is None
        """The likeliest token is all there is to it."""
