"""How a sequence's next token is to be drawn."""

from __future__ import annotations

import msgspec


class SamplingParams(msgspec.Struct, frozen=True):
    """A validated description of a draw. Validation happens at the server's boundary, once.

    Order of application: temperature, then top-k, then top-p, then min-p, each on what the one before left.
    A draw is a function of (seed, sequence index, position, purpose) alone.
    """

    temperature: float = 0.0
    """0 = greedy: the likeliest token, the lowest id among equals."""
    top_k: int = 0
    """Keep the k likeliest; 0 = all."""
    top_p: float = 1.0
    """Keep the smallest set of likeliest tokens whose probabilities sum to at least this; 1 = all."""
    min_p: float = 0.0
    """Keep tokens at least this fraction as likely as the likeliest; 0 = all."""
    seed: int = 0
    """0 .. 2**64 - 1. The server draws one where the client gives none."""
    logprobs: int | None = None
    """None = no log-probabilities; k = of the drawn token and of the k likeliest."""
