"""A :class:`StepRunner` runs one step that *we* compose: what a step says, what comes of it, and what a runner promises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import msgspec

from engines.contract.arrays import BlockTable, TokenArray
from engines.contract.capabilities import Capabilities
from engines.sampling.params import SamplingParams


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
