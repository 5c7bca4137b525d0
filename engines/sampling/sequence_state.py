"""What the sampler keeps of one open sequence."""

from __future__ import annotations

from engines.contract import SequenceSpec
from engines.sampling.constraint import Constraint
from engines.sampling.draw_numbers import DrawNumbers
from engines.sampling.params import SamplingParams
from engines.sampling.shaping import shapers


class SequenceState:
    """Read at every step, so what follows from the parameters is worked out once."""

    __slots__ = ("constraint", "greedy", "numbers", "params", "plain", "shaped", "shapers")

    def __init__(self, spec: SequenceSpec, constraint: Constraint | None) -> None:
        self.params: SamplingParams = spec.sampling
        self.constraint = constraint
        self.shapers = shapers(spec.sampling, spec.prompt)
        self.shaped = bool(self.shapers) or constraint is not None
        """Logits are changed before the draw."""
        self.numbers = DrawNumbers(self.params.seed, spec.index)
        self.greedy = self.params.temperature == 0.0 or self.params.top_k == 1
        self.plain = self.greedy and self.params.logprobs is None and not self.shaped
        """The likeliest token is all there is to it."""

    def advance(self, token: int) -> None:
        """The sequence grew by ``token``."""
        for shaper in self.shapers:
            shaper.advance(token)
        if self.constraint is not None:
            self.constraint.advance(token)
