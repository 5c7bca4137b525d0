"""A :class:`RequestExecutor` takes whole requests and batches them itself: what it is asked, what it answers, and what it promises."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

import msgspec

from engines.contract.arrays import TokenArray
from engines.contract.capabilities import Capabilities
from engines.sampling.params import SamplingParams


class ExecutorFinish(Enum):
    """Why an executor ended a sequence (the names that TensorRT-LLM's results use)."""

    END_ID = "end_id"
    STOP_WORDS = "stop_words"
    LENGTH = "length"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    IMPOSSIBLE = "impossible"
    """The request's own bans and guide leave no token. TensorRT-LLM does not tell this apart from other failures."""


class Retention(msgspec.Struct, frozen=True):
    """How long the blocks of a stretch of the prompt are worth keeping, for an executor that evicts by such wishes."""

    first: int
    """Index of the stretch's first token."""
    end: int | None
    """Index after its last one; None = the whole rest of the prompt."""
    priority: int
    """0 .. 100; the lowest goes first."""
    seconds: float | None = None
    """None = until evicted; else the priority falls back to the usual one after so long."""


class ExecutorRequest(msgspec.Struct, frozen=True):
    request: int
    """Our id; responses carry it. Never reused while the executor lives."""
    tokens: TokenArray
    max_tokens: int
    sampling: SamplingParams
    end_ids: tuple[int, ...]
    """Model's end-of-sequence ids."""
    stop_ids: tuple[int, ...] = ()
    """Further single tokens at which to stop."""
    n: int = 1
    priority: float = 0.5
    """0 .. 1, higher first (the executor's own scale)."""
    allotted_ms: int | None = None
    salt: int | None = None
    """KV reuse happens only between requests of the same salt."""
    stop_sequences: tuple[tuple[int, ...], ...] = ()
    """Further runs of tokens at whose end to stop."""
    adapter: int = 0
    """LoRA adapter, 1 .. the number of limits.adapters; 0 = none."""
    retention: tuple[Retention, ...] = ()
    """Stretches of the prompt, in order, not overlapping."""


class ExecutorResponse(msgspec.Struct, frozen=True):
    request: int
    sequence_index: int = 0
    tokens: tuple[int, ...] = ()
    """New tokens only."""
    finish: ExecutorFinish | None = None
    """Set on the last response of this sequence."""
    final: bool = False
    """True on the last response of the request: only then is its seat free."""
    logprobs: tuple[float, ...] = ()
    """Of ``tokens``, where the request asked for them."""
    top: tuple[tuple[tuple[int, float], ...], ...] = ()
    """Beside each of ``tokens`` the likeliest (token, log-probability) pairs, best first, where asked for."""
    cached_tokens: int | None = None
    """Prompt tokens served by block reuse, where the executor tells. It may tell first with the final response."""
    error: str | None = None


class ExecutorLimits(msgspec.Struct, frozen=True):
    vocab_size: int
    block_size: int
    block_count: int
    max_batch_size: int
    max_num_tokens: int
    max_context: int
    adapters: tuple[str, ...] = ()
    """Names of its LoRA adapters: ExecutorRequest.adapter n is the n-th, counted from 1."""


class ExecutorStats(msgspec.Struct, frozen=True):
    active: int
    queued: int
    used_blocks: int
    max_blocks: int
    reused_blocks: int
    missed_blocks: int
    iterations: int
    calls: int = 0
    """Calls into the library that keep every Python thread waiting ..."""
    call_seconds: float = 0.0
    """... and how long they took, all together."""
    cached_blocks: int = 0
    """Blocks that no sequence holds and that a later prompt may reuse, as far as the executor tells."""
    evicted_blocks: int = 0
    """Cached blocks given up to make room, since the start."""


class RequestExecutor(Protocol):
    """Takes whole requests and batches them itself. await_responses may run on one thread while another enqueues or cancels."""

    @property
    def limits(self) -> ExecutorLimits: ...

    @property
    def capabilities(self) -> Capabilities: ...

    def enqueue(self, requests: Sequence[ExecutorRequest]) -> None:
        """Hand over requests, in order. Raises PlanError naming the first that breaks a limit; then none was taken."""
        ...

    def cancel(self, request: int) -> None:
        """Ask for the end of a request. Asynchronous: tokens may still arrive, the seat is free with the final response.
        Unknown or ended requests are ignored."""
        ...

    def await_responses(self, timeout: float) -> list[ExecutorResponse]:
        """Whatever is ready, waiting at most ``timeout`` seconds for the first. Raises EngineDeadError."""
        ...

    def stats(self) -> ExecutorStats: ...

    def close(self) -> None: ...
