"""A request on its way into a request executor and back: what it is called there, and what its answers mean here."""

from __future__ import annotations

import math
from collections.abc import Callable, Container

from engines.contract import ExecutorFinish, ExecutorRequest, ExecutorResponse
from server.engine import FinishReason, GenerationRequest, PriorityClass
from server.scheduling.lengths import ExpectedLengths
from server.scheduling.outlook import Streaming
from server.scheduling.record import RequestRecord, SequenceRecord
from server.scheduling.salts import SaltNumbers
from server.scheduling.sequence import token_array

_REASONS = {
    ExecutorFinish.END_ID: FinishReason.END,
    ExecutorFinish.STOP_WORDS: FinishReason.STOP_TOKEN,
    ExecutorFinish.LENGTH: FinishReason.LENGTH,
    ExecutorFinish.TIMED_OUT: FinishReason.DEADLINE,
    ExecutorFinish.CANCELLED: FinishReason.CANCELLED,
    ExecutorFinish.IMPOSSIBLE: FinishReason.IMPOSSIBLE,
}
_PRIORITIES = {PriorityClass.INTERACTIVE: 1.0, PriorityClass.STANDARD: 0.5, PriorityClass.BATCH: 0.0}


class FedSequence(SequenceRecord):
    """One sequence of a request for an executor. The first one waits in the room for all of them."""

    __slots__ = ("delivered",)

    def __init__(
        self, record: RequestRecord[FedSequence], index: int, expected_charge: float, expected_output: int
    ) -> None:
        super().__init__(record, index, expected_charge, expected_output)
        self.delivered = 0

    @property
    def generated(self) -> int:
        return self.delivered

    @property
    def waiting_work(self) -> int:
        return len(self.record.request.prompt)

    @property
    def expected_work(self) -> int:
        """All of it: what the executor has cached it does not tell beforehand."""
        return self.waiting_work

    @property
    def seat_tokens(self) -> int:
        return seat_tokens(self.record.request)


def seat_tokens(request: GenerationRequest, uncached: int = 0) -> int:  # noqa: ARG001 - what is cached it does not tell beforehand
    """The executor sets the worst case aside, for all sequences of a request."""
    return request.n * (len(request.prompt) + max(1, request.max_tokens))


Fed = RequestRecord[FedSequence]


def reason_of(sequence: FedSequence, response: ExecutorResponse) -> FinishReason:
    """A wish that came first decides; an answer without a reason is a failure, and so is a final one about another sequence."""
    if sequence.ending is not None:
        return sequence.ending
    if response.error is not None or response.finish is None or response.sequence_index != sequence.index:
        return FinishReason.ENGINE_FAILED
    if sequence.record.request.max_tokens == 0:
        return FinishReason.LENGTH
    return _REASONS[response.finish]


def _allotted(deadline: float | None, now: float) -> int | None:
    """Milliseconds that are left, rounded up: the executor ends in time even what we cannot, held up elsewhere."""
    return None if deadline is None else max(1, math.ceil((deadline - now) * 1000.0))


def executor_request(request: GenerationRequest, max_context: int, salts: SaltNumbers, now: float) -> ExecutorRequest:
    """An executor always draws a token: for a request that wants none (warming) it is thrown away, and a prompt of the model's whole
    context goes in without its last token."""
    max_tokens = max(1, request.max_tokens)
    return ExecutorRequest(
        request=request.id,
        tokens=token_array(request.prompt[: max_context - max_tokens]),
        max_tokens=max_tokens,
        sampling=request.sampling,
        end_ids=request.end_ids,
        stop_ids=request.stop_ids,
        n=request.n,
        priority=_PRIORITIES[request.priority],
        allotted_ms=_allotted(request.deadline, now),
        salt=salts.number(request.cache_salt),
        adapter=request.adapter,
        retention=request.retention,
    )


def read_streams(
    inside: dict[int, Fed], silent: Container[int], lengths: ExpectedLengths, blocks: Callable[[int], int]
) -> list[Streaming]:
    """``inside``: whoever was handed over; ``silent``: those of them who have not answered. Any thread: who comes or goes meanwhile may be missing."""
    # One call of C: no other thread changes the dictionary meanwhile.
    return [
        Streaming(
            lengths.rest(record.request, record.sequences[0].delivered), blocks(record.request.id), record.request.n
        )
        for record in list(inside.values())
        if record.request.id not in silent
    ]
