"""What an engine is: the one contract between the server and whatever turns token ids into the next token.

Two kinds of engine exist in the field, and both are honest here:

* a :class:`StepRunner` runs one step that *we* compose (OpenVINO, simulated);
* a :class:`RequestExecutor` takes whole requests and batches them itself (TensorRT-LLM, simulated).

Logits never cross this contract: sampling lives behind the engine, results carry token ids and log-probabilities.
Every message is a frozen struct, so that a process boundary can come later without changing a caller.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec

from engines.sampling.params import SamplingParams

if TYPE_CHECKING:
    TokenArray: TypeAlias = array[int]
    BlockTable: TypeAlias = array[int]
else:  # array takes no subscript before Python 3.12, and msgspec evaluates these annotations
    TokenArray = BlockTable = array
"""A TokenArray holds token ids, ``array('i')``: 4 bytes each, appended in O(1), read by NumPy without a copy.

A BlockTable holds the block ids of one sequence in one KV group, ``array('i')``. The owner only ever appends while a step is planned; the runner
reads the first ``ceil((past + new) / block_size)`` entries *during* :meth:`StepRunner.start` and keeps no view of it."""


# --------------------------------------------------------------------------- errors


class EngineError(Exception):
    """Root of what an engine may raise. Its text is for logs, never for clients.

    EngineError
    ├── PlanError        a plan breaks the contract (id out of range, unknown sequence, too many rows); nothing was run
    ├── StepError        a step failed inside the library; the KV contents it was to write are undefined, the runner lives
    ├── EngineLoadError  an engine cannot be loaded: its files, its numerics on this machine
    │   └── EngineMemoryError   ... or its memory
    └── EngineDeadError  the engine cannot run anything any more
    """


class PlanError(EngineError):
    """A step plan or request breaks the contract. Nothing was run and no block was touched."""


class StepError(EngineError):
    """One step failed. Blocks that it was to write hold garbage; the engine can run further steps."""


class EngineLoadError(EngineError):
    """An engine cannot be loaded; names what is wrong and what was found. Raised by loaders, never by a loaded engine."""


class EngineMemoryError(EngineLoadError):
    """There is no room for it beside what is loaded already; names what it needs and what is available."""


class EngineDeadError(EngineError):
    """The engine is gone: closed, crashed or hung. Every further call raises this."""


# --------------------------------------------------------------------------- what an engine guarantees


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


class KvGroup(msgspec.Struct, frozen=True):
    """Layers that share one block table."""

    layers: tuple[int, ...]
    window: int | None
    """Attention window in tokens; None = full attention."""
    bytes_per_token: int


class RunnerLimits(msgspec.Struct, frozen=True):
    """Hard limits of a loaded step runner. Exceeding one is a :class:`PlanError`."""

    vocab_size: int
    block_size: int
    """Tokens per KV block."""
    block_count: int
    """Blocks the runner owns; ids are 0 .. block_count - 1."""
    bytes_per_block: int
    max_rows: int
    """Sequences in one step."""
    max_step_tokens: int
    """New tokens in one step, all rows together."""
    max_context: int
    """Tokens of one sequence, prompt and output together."""
    kv_groups: tuple[KvGroup, ...]
    block_format: str = ""
    """What the contents of a block depend on beside the engine's fingerprint, such as the processor. What read_blocks gives means the same
    to another process only where both are equal."""


# --------------------------------------------------------------------------- the step


class Sample(msgspec.Struct, frozen=True, tag="sample"):
    """Draw a token after each of the row's last ``count`` positions."""

    count: int = 1


class Score(msgspec.Struct, frozen=True, tag="score"):
    """Log-probabilities of ``targets`` after the row's last ``len(targets)`` positions, and the ``top`` likeliest beside them."""

    targets: TokenArray
    top: int = 0


Want: TypeAlias = Sample | Score | None


class SequenceSpec(msgspec.Struct, frozen=True):
    """Told once, with the first step that names the sequence: what the sampler must know about it."""

    sequence: int
    """Never reused while the runner lives."""
    index: int
    """Which of the request's n sequences; part of the identity of every draw."""
    sampling: SamplingParams
    prompt: TokenArray
    """The prompt's ids (penalties look at them). The runner must not change them."""


class Row(msgspec.Struct, frozen=True):
    """One sequence's share of a step."""

    sequence: int
    tokens: TokenArray | None
    """New token ids. None = exactly one: the last token that the *previous started step* drew for this sequence, so that
    a step can be planned before that token is known."""
    past: int
    """Tokens of this sequence whose keys and values are already in its blocks."""
    blocks: tuple[BlockTable, ...]
    """One table per KV group, covering at least past + new tokens."""
    want: Want
    adapter: int = 0
    """Adapter slot; 0 = none. Others are refused where capabilities.adapters is False."""


class BlockCopy(msgspec.Struct, frozen=True):
    """Copy one whole block, all layers of the group, before the step's rows run."""

    source: int
    target: int
    group: int = 0


class StepPlan(msgspec.Struct, frozen=True):
    """One step. Copies happen first, in order; then every row in one pass of the model."""

    step: int
    """Strictly increasing."""
    rows: list[Row]
    copies: Sequence[BlockCopy] = ()
    opened: Sequence[SequenceSpec] = ()
    """Sequences that this plan names for the first time."""
    closed: Sequence[int] = ()
    """Sequences that no later plan will name: the sampler forgets them *before* this step runs."""


class Output(msgspec.Struct, frozen=True):
    """What one row that wanted something got."""

    sequence: int
    tokens: tuple[int, ...] = ()
    """Drawn tokens, one or more (speculation); empty for Score, and where the sequence's own bans and guide leave no token."""
    logprobs: tuple[float, ...] = ()
    """Natural log-probabilities: of the drawn tokens where the sampler was asked for them, or of Score's targets."""
    top: tuple[tuple[tuple[int, float], ...], ...] = ()
    """Per position the likeliest (token, log-probability) pairs, best first, where asked for."""


class StepResult(msgspec.Struct, frozen=True):
    step: int
    outputs: list[Output]
    """In the order of the plan's rows, only rows whose want was not None."""
    engine_seconds: float = 0.0
    """Time in the model."""
    sample_seconds: float = 0.0
    """Time in the sampler."""


class StepHandle(Protocol):
    """A started step. Only the thread that started it may use it."""

    def done(self) -> bool:
        """True when result() would not block."""
        ...

    def result(self) -> StepResult:
        """Wait for the step. Raises StepError or EngineDeadError. May be called once."""
        ...


class StepRunner(Protocol):
    """Runs steps that the caller composes. All methods are for one thread, the engine thread, except close().

    At most one step is in flight: start() while a handle's result is outstanding raises PlanError.
    Within one step no block is written by two rows, and no row reads a block that another row of that step writes.
    """

    @property
    def limits(self) -> RunnerLimits: ...

    @property
    def capabilities(self) -> Capabilities: ...

    def start(self, plan: StepPlan) -> StepHandle:
        """Check every id of the plan, stage the inputs, start the step and return at once.

        Raises PlanError (nothing was run) or EngineDeadError.
        """
        ...

    def read_blocks(self, blocks: Sequence[int], group: int = 0) -> list[bytes]:
        """The raw contents of blocks, for saving the cache. Not while a step is in flight."""
        ...

    def write_blocks(self, blocks: Sequence[int], contents: Sequence[bytes], group: int = 0) -> None:
        """Put back what read_blocks gave. Not while a step is in flight."""
        ...

    def close(self) -> None:
        """Free everything. Idempotent."""
        ...


# --------------------------------------------------------------------------- the executor


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
