"""The engine as the server sees it: requests in, one batch of events per step out.

One facade over both kinds of engine. Its messages are frozen and encodable (a test sends each through msgpack and back),
so that the engine can move to a process of its own without a change above this line.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, IntEnum
from typing import Protocol, TypeAlias

import msgspec

from engines.contract import Capabilities, Retention
from engines.sampling.params import SamplingParams
from server.cache_tasks import SavedCacheStats
from server.prefix_desk import PrefixDesk
from server.step_record import StepRecord


class PriorityClass(IntEnum):
    """Who waits for whom. Lower is served first."""

    INTERACTIVE = 0
    STANDARD = 1
    BATCH = 2


class FinishReason(Enum):
    """Why a sequence or request ended. Each ends exactly once, with one of these."""

    END = "end"
    """The model's end-of-sequence token."""
    STOP_TOKEN = "stop_token"
    """A stop id of the request's."""
    STOP_STRING = "stop_string"
    """The text stage found a stop string and called stop()."""
    LENGTH = "length"
    """max_tokens, or the model's context, is used up."""
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    """A deadline of the client's passed."""
    OVERLOADED = "overloaded"
    """Dropped by a cap after it was queued."""
    IMPOSSIBLE = "impossible"
    """The request's own bans and guide leave no token that may come next."""
    ENGINE_FAILED = "engine_failed"

    @property
    def is_success(self) -> bool:
        return self in _SUCCESSES


_SUCCESSES = frozenset({FinishReason.END, FinishReason.STOP_TOKEN, FinishReason.STOP_STRING, FinishReason.LENGTH})


class GenerationRequest(msgspec.Struct, frozen=True):
    """A validated request: only server/rpc's validation may make one. All times are ``time.monotonic()`` seconds."""

    id: int
    """The engine's handle; never reused while the process lives."""
    prompt: tuple[int, ...]
    """1 .. max_prompt ids, each below the vocabulary's size."""
    max_tokens: int
    """0 .. ; prompt + max_tokens <= max_context. 0 warms the prefix cache and ends with LENGTH."""
    sampling: SamplingParams
    end_ids: tuple[int, ...]
    """The model's end-of-sequence ids; empty to ignore them."""
    stop_ids: tuple[int, ...]
    priority: PriorityClass
    tenant: str
    cache_salt: bytes
    """Prefix blocks are shared only between equal salts."""
    arrival: float
    """When the server read the request."""
    deadline: float | None
    """The whole request must be over by then."""
    ttft_deadline: float | None
    """Its first token must be out by then."""
    adapter: int = 0
    """LoRA adapter; 0 = none. Prefix blocks are shared only between requests of the same one."""
    n: int = 1
    """Sequences that share the prompt. Above 1, max_tokens is at least 1."""
    prompt_logprobs: int | None = None
    """None = none; k = log-probabilities of the prompt's own tokens, and of the k likeliest beside each. Such a prompt reads nothing
    from the prefix cache."""
    traced: bool = False
    """Note each chunk of its prompt for RequestFinished.chunks."""
    retention: tuple[Retention, ...] = ()
    """How long the blocks of stretches of the prompt are worth keeping: in order, not overlapping, within the prompt."""


class PromptScored(msgspec.Struct, frozen=True, tag="prompt_scored"):
    """Log-probabilities of a run of the prompt's tokens. Before the request's first TokensEvent, in order, without gaps."""

    request: int
    first: int
    """Place in the prompt, counted from 0, of the first token scored: at least 1."""
    logprobs: tuple[float, ...]
    top: tuple[tuple[tuple[int, float], ...], ...] = ()


class TokensEvent(msgspec.Struct, frozen=True, tag="tokens"):
    """New tokens of one sequence. End-of-sequence and stop tokens are included: the text stage hides them."""

    request: int
    sequence: int
    """Index among the request's n sequences."""
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...] = ()
    top: tuple[tuple[tuple[int, float], ...], ...] = ()
    first: bool = False
    """These are the sequence's first tokens."""


class SequenceFinished(msgspec.Struct, frozen=True, tag="sequence_finished"):
    request: int
    sequence: int
    reason: FinishReason
    completion_tokens: int
    """Tokens that were delivered as TokensEvents and count."""
    discarded_tokens: int
    """Tokens generated and thrown away: after a stop, a cancel or a preemption race."""


class Timings(msgspec.Struct, frozen=True):
    """Seconds, from arrival unless said otherwise. None = it never came to that."""

    queued: float | None
    """Until the first step that ran part of the prompt was planned."""
    prefill: float | None
    """From then until the first token."""
    first_token: float | None
    total: float


class PromptChunk(msgspec.Struct, frozen=True):
    """A part of a prompt that one step computed. Times in seconds from the request's arrival."""

    began: float
    """When its step was planned."""
    ended: float
    past: int
    """Tokens before it."""
    tokens: int


class RequestFinished(msgspec.Struct, frozen=True, tag="request_finished"):
    """The last event of a request; its seat is free. Comes after the SequenceFinished of every sequence that ever ran."""

    request: int
    reason: FinishReason
    """Of n sequences: the first failure, in their order, where one failed."""
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens whose keys and values came from the prefix cache when the request was first seated."""
    timings: Timings
    preemptions: int = 0
    chunks: tuple[PromptChunk, ...] = ()
    """Of a traced request on an engine whose steps we compose; those after a preemption included."""


Event: TypeAlias = PromptScored | TokensEvent | SequenceFinished | RequestFinished
Deliver: TypeAlias = Callable[[list[Event]], None]
"""Called on the engine thread, once per step, with first tokens first. Must not block."""


class EngineInfo(msgspec.Struct, frozen=True):
    """Facts that do not change while the engine lives."""

    kind: str
    """"openvino", "trtllm", "simulated" or "simulated-executor"."""
    model: str
    fingerprint: str
    vocab_size: int
    end_ids: tuple[int, ...]
    max_context: int
    block_size: int
    block_count: int
    bytes_per_block: int
    max_sequences: int
    """Seats: sequences that can run at once."""
    max_step_tokens: int
    capabilities: Capabilities
    adapters: tuple[str, ...] = ()
    """Names of its LoRA adapters; GenerationRequest.adapter n is the n-th, counted from 1."""


class EngineStats(msgspec.Struct, frozen=True):
    """A snapshot; any thread may ask. Counters only grow."""

    alive: bool
    last_step_age: float | None
    """Seconds since the loop last showed life (a step's end, or an idle turn); None before it started."""
    step_running_for: float | None
    """Seconds that the current step has been running; None between steps."""
    waiting_by_class: tuple[int, int, int]
    waiting_tokens: int
    """Uncached prompt tokens not yet computed, waiting and running."""
    running: int
    blocks_free: int
    blocks_cached: int
    blocks_in_use: int
    blocks_quarantined: int
    steps: int
    prompt_tokens: int
    """Prompt tokens of all requests that were seated."""
    cached_tokens: int
    computed_tokens: int
    """Tokens run through the model."""
    generated_tokens: int
    discarded_tokens: int
    preemptions: int
    plan_seconds: float
    engine_seconds: float
    sample_seconds: float
    deliver_seconds: float
    held_calls: int = 0
    """Calls into an executor's library that keep every Python thread waiting; 0 for engines that have none."""
    held_seconds: float = 0.0
    """How long these took, all together."""
    blocks_evicted: int = 0
    """Cached blocks given up to make room for others."""
    busy: float = 0.0
    """Share of the recent time in which the engine computed, 0 to 1."""
    predicted_seconds: float = 0.0
    """What the cost model said beforehand that the steps would take, all together; 0 for engines that have none."""
    step_cost_error: float = 0.0
    """How far off such a prediction usually is, relative to the step."""
    saved_cache: SavedCacheStats = SavedCacheStats()
    blocks_pinned: int = 0


class Engine(Protocol):
    """All that the server knows of an engine. Every method may be called from any thread, unless it says otherwise."""

    @property
    def info(self) -> EngineInfo: ...

    def start(self, deliver: Deliver) -> None:
        """Start the engine thread. Once."""
        ...

    def require_room(self, tenant: str) -> None:
        """Admission before anything is known of a request but whose it is, and so before its prompt is tokenized. Never blocks.
        Raises OverloadedError where a cap would refuse the tenant's shortest request; who passes may still be refused by submit."""
        ...

    def require_time(self, shortest: GenerationRequest) -> None:
        """The forecast before the prompt is tokenized: ``shortest`` is the request as if its prompt were a single token. Never blocks.
        Raises OverloadedError where even that would miss a deadline of its own; who passes may still be refused by submit."""
        ...

    def submit(self, request: GenerationRequest) -> None:
        """Queue a request. Never blocks. Raises UnavailableError when the engine is dead or closing, OverloadedError at a cap."""
        ...

    def cancel(self, request: int, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """Record the wish to end a request, whatever state it is in; applied at the next step's border. Idempotent; unknown
        ids are ignored. RequestFinished still comes, exactly once."""
        ...

    def stop(self, request: int, sequence: int, after_token: int) -> None:
        """The text stage found a stop string: the sequence is over after its ``after_token``-th token (counted from 1)."""
        ...

    def stats(self) -> EngineStats: ...

    @property
    def prefixes(self) -> PrefixDesk | None:
        """Where its prefix cache is tended; None for an engine that keeps one of its own."""

    def recent_steps(self) -> list[StepRecord]:
        """The flight recorder's, oldest first."""

    def close(self, timeout: float, *, keep: bool = False) -> None:
        """Cancel what runs, end the thread, free the engine; ``keep``: save its prefix cache first, if so configured. Idempotent."""
        ...
