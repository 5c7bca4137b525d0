"""The requests inside the simulated executor, and the responses that they lead to."""

from __future__ import annotations

from dataclasses import dataclass, field

from engines.contract import ExecutorFinish, ExecutorLimits, ExecutorRequest, ExecutorResponse, PlanError, SequenceSpec
from engines.simulated.history import History
from engines.simulated.reuse import BlockKey, Holding


def worst_case_blocks(request: ExecutorRequest, block_size: int) -> int:
    """What the request may ever need: no reuse is counted on, every sequence goes on to max_tokens."""
    return request.n * -(-(len(request.tokens) + request.max_tokens) // block_size)


def check_request(request: ExecutorRequest, limits: ExecutorLimits) -> None:
    """Raises PlanError naming the field, the limit and the value."""
    who, tokens = f"request {request.request}", request.tokens
    total = len(tokens) + request.max_tokens
    if not tokens or min(tokens) < 0 or max(tokens) >= limits.vocab_size:
        raise PlanError(f"{who}: tokens must be one or more ids of 0 .. {limits.vocab_size - 1}")
    if request.max_tokens < 1 or total > limits.max_context:
        raise PlanError(f"{who}: max_tokens must be 1 .. {limits.max_context - len(tokens)}, got {request.max_tokens}")
    if not 1 <= request.n <= limits.max_batch_size:
        raise PlanError(f"{who}: n must be 1 .. {limits.max_batch_size}, got {request.n}")
    if not 0.0 <= request.priority <= 1.0:
        raise PlanError(f"{who}: priority must be 0 .. 1, got {request.priority}")
    if request.allotted_ms is not None and request.allotted_ms < 1:
        raise PlanError(f"{who}: allotted_ms must be at least 1, got {request.allotted_ms}")
    for token in (*request.end_ids, *request.stop_ids):
        if not 0 <= token < limits.vocab_size:
            raise PlanError(f"{who}: end and stop ids must be 0 .. {limits.vocab_size - 1}, got {token}")
    blocks = worst_case_blocks(request, limits.block_size)
    if blocks > limits.block_count:
        raise PlanError(f"{who}: needs up to {blocks} blocks, the executor has {limits.block_count}")


@dataclass(slots=True, eq=False)
class Seat:
    """One running sequence. ``computed`` of its tokens are in blocks; ``history`` holds all of them."""

    job: Job
    spec: SequenceSpec
    history: History
    holding: Holding
    computed: int
    generated: int = 0

    @property
    def remaining_prompt(self) -> int:
        """Prompt tokens yet to be computed; 0 = it decodes."""
        return max(0, len(self.job.request.tokens) - self.computed)

    def keys(self, tokens: int) -> list[BlockKey]:
        """Identities of the full blocks among the first ``tokens``."""
        size, salt = self.job.block_size, self.job.request.salt
        return [(salt, index, self.history.borders[index + 1]) for index in range(tokens // size)]

    def finish_after(self, token: int) -> ExecutorFinish | None:
        """Whether ``token``, just drawn, is the last."""
        request = self.job.request
        if token in request.end_ids:
            return ExecutorFinish.END_ID
        if token in request.stop_ids:
            return ExecutorFinish.STOP_WORDS
        return ExecutorFinish.LENGTH if self.generated >= request.max_tokens else None


@dataclass(slots=True, eq=False)
class Job:
    """One request from enqueue to its final response."""

    request: ExecutorRequest
    order: int
    enqueued_at: float
    block_size: int
    seats: list[Seat] = field(default_factory=list)
    """Sequences still running."""
    admitted: bool = False
    cached_tokens: int | None = None
    cancel_at: int | None = None
    """Iteration before which the cancel takes effect."""

    @property
    def rank(self) -> tuple[float, int]:
        """Order in the queue: priority first, then arrival."""
        return (-self.request.priority, self.order)

    @property
    def demand(self) -> int:
        return worst_case_blocks(self.request, self.block_size)

    def expired(self, now: float) -> bool:
        allotted = self.request.allotted_ms
        return allotted is not None and now >= self.enqueued_at + allotted / 1000.0

    def token(self, seat: Seat, token: int, finish: ExecutorFinish | None) -> ExecutorResponse:
        """Response for a token just drawn; final when no other sequence runs."""
        return ExecutorResponse(
            request=self.request.request,
            sequence_index=seat.spec.index,
            tokens=(token,),
            finish=finish,
            final=finish is not None and self.seats == [seat],
            cached_tokens=self.cached_tokens,
        )

    def ended(self, finish: ExecutorFinish) -> list[ExecutorResponse]:
        """Responses for an end from outside: one for each sequence still running, all where it never ran."""
        indices = [seat.spec.index for seat in self.seats] if self.admitted else list(range(self.request.n))
        return [
            ExecutorResponse(
                request=self.request.request,
                sequence_index=index,
                finish=finish,
                final=index == indices[-1],
                cached_tokens=self.cached_tokens,
            )
            for index in indices
        ]

    def failed(self, error: str) -> ExecutorResponse:
        return ExecutorResponse(request=self.request.request, final=True, error=error)
