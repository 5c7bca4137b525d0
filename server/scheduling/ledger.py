"""Which requests live, what was wished of them, and the one place where they end."""

from __future__ import annotations

from engines.contract import Output
from server.engine import FinishReason, GenerationRequest, RequestFinished, SequenceFinished, Timings, TokensEvent
from server.errors import DuplicateRequestError
from server.kv.block_pool import IntegrityError
from server.scheduling.counters import Counters
from server.scheduling.deadlines import Deadlines
from server.scheduling.outbox import Outbox
from server.scheduling.policies import Order
from server.scheduling.sequence import RequestRecord, Sequence


class Ledger:
    """Live requests. A wish (cancel, deadline, stop) is only recorded here; the batcher acts on it between steps, whatever state
    the request is in. ``finish`` is the only writer of a finish reason. Engine thread only."""

    __slots__ = ("_arrivals", "_deadlines", "_marked", "_order", "counters", "outbox", "records")

    def __init__(self, order: Order) -> None:
        self.records: dict[int, RequestRecord] = {}
        self.outbox = Outbox()
        self.counters = Counters()
        self._order = order
        self._deadlines = Deadlines()
        self._marked: list[RequestRecord] = []
        self._arrivals = 0

    def open(self, request: GenerationRequest) -> RequestRecord:
        """Raises DuplicateRequestError."""
        if request.id in self.records:
            raise DuplicateRequestError(f"request {request.id} is alive")
        self._arrivals += 1
        record = RequestRecord(request, (int(request.priority), self._order.rank(request), self._arrivals))
        self.records[request.id] = record
        self._deadlines.add(request)
        return record

    def cancel(self, request: int, reason: FinishReason) -> None:
        """Wish for the end of a request. The first wish wins; unknown ids are ignored."""
        record = self.records.get(request)
        if record is None or record.ending is not None:
            return
        record.ending = reason
        for sequence in record.sequences:
            if sequence.ending is None:
                sequence.ending = reason
        self._marked.append(record)

    def stop(self, request: int, index: int, after_token: int) -> None:
        """Wish for the end of a sequence after so many of its output tokens."""
        record = self.records.get(request)
        if record is None or not 0 <= index < len(record.sequences):
            return
        sequence = record.sequences[index]
        if sequence.ending is None and sequence.finish is None:
            sequence.ending = FinishReason.STOP_STRING
            sequence.stop_after = after_token
            self._marked.append(record)

    def expire(self, now: float) -> None:
        """Turn deadlines that have come into wishes."""
        for request in self._deadlines.due(now):
            self.cancel(request, FinishReason.DEADLINE)

    def next_expiry(self) -> float | None:
        return self._deadlines.next()

    def take_marked(self) -> list[Sequence]:
        """The sequences that somebody wished to end and that have not ended; forgets them."""
        if not self._marked:
            return []
        marked, self._marked = self._marked, []
        return [s for record in marked for s in record.sequences if s.ending is not None and s.finish is None]

    def first_token(self, sequence: Sequence, output: Output, now: float) -> None:
        """Deliver a sequence's first token."""
        sequence.fresh = False
        self.outbox.first_tokens.append(
            TokensEvent(sequence.request, sequence.index, output.tokens, output.logprobs, output.top, first=True)
        )
        record = sequence.record
        if record.first_token_at is None:
            record.first_token_at = now
            self._deadlines.first_token(sequence.request)

    def finish(self, sequence: Sequence, reason: FinishReason, now: float) -> None:
        """End a sequence that holds neither seat nor place any more, and its request with the last of them."""
        if sequence.finish is not None or sequence.seated or sequence.queued:
            raise IntegrityError(f"sequence {sequence.id} ends twice or too early: {sequence.finish}, then {reason}")
        sequence.finish = reason
        record = sequence.record
        counted, late = sequence.generated, sequence.discarded
        if sequence.stop_after is not None and reason is FinishReason.STOP_STRING:
            counted = max(0, min(counted, sequence.stop_after))
            late += sequence.generated - counted
        self.counters.discarded_tokens += late
        if sequence.opened:
            self.outbox.finishes.append(SequenceFinished(sequence.request, sequence.index, reason, counted, late))
        record.unfinished -= 1
        if record.unfinished == 0:
            self._close(record, record.ending or reason, now)

    def _close(self, record: RequestRecord, reason: FinishReason, now: float) -> None:
        request = record.request
        del self.records[request.id]
        self._deadlines.remove(request.id)
        self.outbox.finishes.append(
            RequestFinished(
                request.id,
                reason,
                len(request.prompt),
                record.cached_tokens,
                _timings(request.arrival, record.planned_at, record.first_token_at, now),
                record.preemptions,
            )
        )

    def check_integrity(self) -> None:
        for request, record in self.records.items():
            unfinished = sum(sequence.finish is None for sequence in record.sequences)
            if unfinished != record.unfinished or unfinished == 0:
                raise IntegrityError(f"request {request}: {unfinished} sequences live, counted {record.unfinished}")


def _timings(arrival: float, planned: float | None, first: float | None, now: float) -> Timings:
    return Timings(
        queued=None if planned is None else planned - arrival,
        prefill=None if planned is None or first is None else first - planned,
        first_token=None if first is None else first - arrival,
        total=now - arrival,
    )
