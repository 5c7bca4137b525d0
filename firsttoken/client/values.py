"""What goes into a call, and what a server tells of itself, as plain frozen values. No protobuf in the public interface."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class Priority(Enum):
    """How serious the wait is."""

    INTERACTIVE = "interactive"
    """Somebody waits for the first word (the default)."""
    STANDARD = "standard"
    """Somebody waits for the answer."""
    BATCH = "batch"
    """Nobody waits."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: str
    """``"system"``, ``"user"`` or ``"assistant"``; a model's chat template may know more."""
    content: str
    extra: Mapping[str, object] = field(default_factory=dict)
    """Further keys that the template reads: ``tool_calls``, ``tool_call_id``, ``name``, …"""


@dataclass(frozen=True, slots=True)
class Retention:
    """How long a stretch of the prompt is worth keeping in the prefix cache once no request uses it."""

    priority: int
    """0 to 100; the lowest is given up first, 35 is usual."""
    first: int = 0
    """Place of the stretch's first token in the prompt."""
    end: int | None = None
    """Place after its last token; None = the whole rest of the prompt."""
    seconds: float | None = None
    """After so long the priority is the usual one again; None = as late as the server permits."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request may ask for; GetServerInfo explains each."""

    vocab_size: int
    max_context: int
    max_prompt_tokens: int
    default_max_tokens: int
    max_message_bytes: int
    max_stop_strings: int
    max_stop_string_bytes: int
    max_stop_token_ids: int
    max_cache_salt_bytes: int
    max_sequences: int
    max_waiting_requests: int
    max_waiting_tokens: int
    block_size: int
    max_outputs: int
    max_top_logprobs: int
    max_logit_biases: int
    max_bad_words: int
    max_bad_word_size: int
    max_guide_bytes: int
    max_request_id_size: int


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the server's engine guarantees."""

    batch_invariant: bool
    preemption: bool
    score: bool
    masks: bool
    adapters: bool
    salts: bool
    retention: bool


@dataclass(frozen=True, slots=True)
class ClientTimeouts:
    """How long to wait for a request of each class at most, in seconds: what the server says now."""

    interactive: float
    standard: float
    batch: float


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """Facts that change only when the engine is swapped, but for the timeouts, which follow the load."""

    version: str
    engine: str
    model: str
    fingerprint: str
    limits: Limits
    capabilities: Capabilities
    client_timeouts: ClientTimeouts | None
    """None: the server is older than this."""


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """A beginning that prompts share, as the prefix cache has it. Nothing in it tells its tokens."""

    name: str
    """64 hexadecimal digits: a hash over its tokens, the engine and the salt."""
    tokens: int
    """From the prompt's first on."""
    blocks: int
    """KV blocks; longer prefixes that begin with it share them."""
    bytes: int
    """Of keys and values."""
    reuses: int
    """How often its last block was reused."""
    in_use: bool
    """Held by a running request, or by a pin."""
    pinned_for: float | None
    """Seconds that its pin still lasts; None = it has none."""


@dataclass(frozen=True, slots=True)
class Warmed:
    """What computing a prompt ahead took."""

    prompt_tokens: int
    cached_tokens: int
    """Of these, cached before."""


@dataclass(frozen=True, slots=True)
class ClearedCache:
    """What clearing the prefix cache did, in KV blocks."""

    forgotten_blocks: int
    kept_blocks: int
    """In use, or pinned."""


@dataclass(frozen=True, slots=True)
class Load:
    """The server's load at one moment."""

    ready: bool
    running: int
    """Sequences running."""
    waiting: dict[Priority, int]
    """Requests waiting, by class."""
    waiting_tokens: int
    """Prompt tokens yet to be computed."""
    kv_utilisation: float
    """Share of the KV blocks in use by running sequences, 0 to 1."""
    kv_cached: float
    """Share of the KV blocks that hold a reusable prefix and nobody's output."""
    open_streams: int
    busy: float
    """Share of the recent time in which the engine computed, 0 to 1; what was 10 s ago counts for a third."""


@dataclass(frozen=True, slots=True)
class StepRow:
    """One sequence's share of a step."""

    sequence: int
    """The engine's name for the sequence."""
    new_tokens: int
    """1 for a sequence that streams, more for a part of a prompt."""
    past: int
    """Tokens before them."""
    blocks: int
    """KV blocks that it names."""
    want: str
    """``"sample"``, ``"score"``, or empty for a part of a prompt."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the engine; of an executor, which plans for itself, one batch of its responses. Times in seconds."""

    step: int
    age: float
    """Since it began."""
    outcome: str
    """``"ok"``, ``"running"``, or ``"failed: "`` and the kind of the error."""
    engine_seconds: float
    sample_seconds: float
    rows: tuple[StepRow, ...]
    copies: int
    """KV blocks copied before it."""
    opened: tuple[int, ...]
    """Sequences that ran for the first time, or again after a preemption."""
    closed: tuple[int, ...]
    responses: int
    """An executor's."""
    waiting: dict[Priority, int]
    """Requests; this, and what follows, as it was when the step before was planned."""
    running: int
    blocks_free: int
    preemptions: int
    """Sequences set aside so far."""
