"""What an engine guarantees."""

from __future__ import annotations

import msgspec


class Capabilities(msgspec.Struct, frozen=True):
    """What an engine guarantees. The server refuses by name what an engine does not offer; nothing is imitated."""

    batch_invariant: bool
    """Output tokens do not depend on batch mates, chunking or cache hits."""
    preemption: bool
    """A running sequence can be set aside and recomputed later."""
    score: bool
    """Log-probabilities of given targets (prompt log-probabilities)."""
    masks: bool
    """Constraint masks are applied to the distribution before the draw."""
    adapters: bool
    """LoRA adapters."""
    salts: bool
    """KV reuse can be kept apart by salt."""
    block_io: bool
    """KV blocks can be copied, read and written from outside."""
    immediate_cancel: bool
    """A cancelled sequence frees its seat at the next step (a step runner), not at some later response (an executor)."""
    lookahead: int = 0
    """How many tokens beyond one a sequence may produce in one step (speculation)."""
    held_back: int | None = None
    """How many ids ``SamplingParams.min_tokens`` can keep from ending a sequence, the model's ends and then stop ids; None = any."""
    guides: tuple[str, ...] = ("json_schema", "regex", "grammar", "choice")
    """Kinds of guide, where ``masks`` says that there are any."""
    top_logprobs: int | None = None
    """Likeliest tokens that can be told beside the drawn one; None = as many as one asks for."""
    retention: bool = False
    """Requests can say which of their blocks are worth keeping. A step runner's blocks are kept by its caller, who knows."""
