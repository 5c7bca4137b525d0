"""All that changes one sequence's logits before the temperature does, in the order that params.py states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engines.sampling.bans import BadTokens, EarlyEndings, RepeatedNgrams
from engines.sampling.params import SamplingParams
from engines.sampling.penalties import Bias, Penalties
from engines.sampling.thresholds import Logits


class Shaper(Protocol):
    """One change. Engine thread only."""

    def apply(self, row: Logits) -> None:
        """Change ``row`` [vocabulary] in place."""
        ...

    def advance(self, token: int) -> None:
        """The sequence grew by ``token``."""
        ...

    def rollback(self, count: int) -> None:
        """The last ``count`` tokens did not stand (speculation)."""
        ...


def shapers(params: SamplingParams, prompt: Sequence[int]) -> list[Shaper]:
    """What ``params`` ask for, but the guide; empty where nothing is changed."""
    found: list[Shaper] = []
    if params.logit_bias:
        found.append(Bias(params.logit_bias))
    if params.repetition_penalty != 1.0 or params.presence_penalty or params.frequency_penalty:
        found.append(Penalties(params, prompt))
    if params.no_repeat_ngram:
        found.append(RepeatedNgrams(params.no_repeat_ngram, prompt))
    if params.bad_tokens:
        found.append(BadTokens(params.bad_tokens, prompt))
    if params.min_tokens and params.ending_ids:
        found.append(EarlyEndings(params.min_tokens, params.ending_ids))
    return found
