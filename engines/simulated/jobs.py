"""The requests inside the simulated executor, and the responses that they lead to."""

from __future__ import annotations

from dataclasses import dataclass, field

from engines.contract import ExecutorFinish, ExecutorRequest, ExecutorResponse, SequenceSpec
from engines.executor_checks import worst_case_blocks
from engines.simulated.draws import Drawn
from engines.simulated.history import History
from engines.simulated.reuse import BlockKey, Holding


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

    def token(self, seat: Seat, drawn: Drawn, finish: ExecutorFinish | None) -> ExecutorResponse:
        """Response for a token just drawn; final when no other sequence runs."""
        return ExecutorResponse(
            request=self.request.request,
            sequence_index=seat.spec.index,
            tokens=(drawn.token,),
            logprobs=() if drawn.logprob is None else (drawn.logprob,),
            top=(drawn.top,) if drawn.top else (),
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
