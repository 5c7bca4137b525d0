"""What is expected of a request when it comes, and what is learned from it when it is over."""

from __future__ import annotations

from typing import NamedTuple

from server.engine import FinishReason, GenerationRequest
from server.scheduling.lengths import ExpectedLengths
from server.scheduling.order import Order

OUTPUT_WEIGHT = 2.0
"""What an output token counts against its tenant, beside a prompt token's 1: it occupies a seat for a whole step."""
_NATURAL = frozenset({FinishReason.END, FinishReason.STOP_TOKEN, FinishReason.STOP_STRING, FinishReason.LENGTH})


class Expectation(NamedTuple):
    rank: float
    """Place within class and tenant; lower goes first."""
    output: float
    """Tokens of each sequence."""
    charge: float
    """Weighted tokens of each sequence, prompt and output."""


class Reception:
    """Ranks who comes, learns from who leaves. Engine thread only."""

    __slots__ = ("_order", "lengths")

    def __init__(self, order: Order, lengths: ExpectedLengths) -> None:
        self._order = order
        self.lengths = lengths

    def expect(self, request: GenerationRequest, uncached: int) -> Expectation:
        """``uncached``: prompt tokens that must be computed, as far as is known now."""
        output = self.lengths.expect(request)
        return Expectation(self._order.rank(request, uncached, output), output, charge(uncached, output))

    def learn(self, request: GenerationRequest, reason: FinishReason, generated: int) -> None:
        """One of the request's sequences ended with so many tokens."""
        if reason in _NATURAL and request.max_tokens > 0:
            self.lengths.observe(request, generated)


def charge(prompt: float, output: float) -> float:
    """What so many tokens count against their tenant."""
    return prompt + OUTPUT_WEIGHT * output
