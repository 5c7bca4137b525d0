"""How a sequence's next token is to be drawn."""

from __future__ import annotations

from typing import Literal

import msgspec

GuideKind = Literal["json_schema", "regex", "grammar", "choice"]
FORBID = -100.0
"""A logit bias of this much, or less, forbids the token."""


class Guide(msgspec.Struct, frozen=True):
    """What the whole output must match. Compiled by :class:`engines.sampling.guides.GuideCompiler`."""

    kind: GuideKind
    text: str
    """A JSON schema as JSON, a regular expression, a Lark grammar, or the permitted outputs as a JSON list."""


class SamplingParams(msgspec.Struct, frozen=True):
    """A validated description of a draw. Validation happens at the server's boundary, once.

    Order of application: logit bias, repetition penalty, presence and frequency penalties, then everything that forbids (n-grams, bad
    tokens, endings before ``min_tokens``, the guide), then temperature, top-k, top-p, min-p, each on what the one before left.
    A draw is a function of the sequence's tokens and of (seed, sequence index, position, purpose) alone.
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
    logit_bias: tuple[tuple[int, float], ...] = ()
    """(token, what is added to its logit); ``FORBID`` or less forbids it."""
    repetition_penalty: float = 1.0
    """Above 0. Divides positive logits of tokens in prompt or output, multiplies negative ones (Keskar et al., CTRL, 2019)."""
    presence_penalty: float = 0.0
    """Taken off the logit of each token in the output."""
    frequency_penalty: float = 0.0
    """Taken off the logit of each token as often as it stands in the output."""
    no_repeat_ngram: int = 0
    """No run of so many tokens comes twice in prompt and output; 0 = any may."""
    bad_tokens: tuple[tuple[int, ...], ...] = ()
    """Runs of tokens that must not come; none is empty."""
    min_tokens: int = 0
    """None of ``ending_ids`` is drawn before the output has so many tokens."""
    ending_ids: tuple[int, ...] = ()
    """The tokens that would end the sequence."""
    guide: Guide | None = None

    @property
    def shapes(self) -> bool:
        """Whether anything changes the logits before the temperature does."""
        return bool(
            self.logit_bias
            or self.repetition_penalty != 1.0
            or self.presence_penalty
            or self.frequency_penalty
            or self.no_repeat_ngram
            or self.bad_tokens
            or (self.min_tokens and self.ending_ids)
            or self.guide is not None
        )
