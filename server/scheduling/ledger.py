"""Which requests live, what was wished of them, and the one place where they end."""

from __future__ import annotations

from typing import Any, Generic

from server.engine import FinishReason, GenerationRequest, RequestFinished, SequenceFinished, Timings, TokensEvent
from server.errors import DuplicateRequestError
from server.kv.block_pool import IntegrityError
from server.scheduling.counters import Counters
from server.scheduling.deadlines import Deadlines
from server.scheduling.outbox import Outbox
from server.scheduling.record import RequestRecord, S

Logprobs = tuple[float, ...]
Top = tuple[tuple[tuple[int, float], ...], ...]


class Ledger(Generic[S]):
    """Live requests. A wish (cancel, deadline, stop) is only recorded here; the batcher acts on it between steps, whatever state
    the request is in. ``finish`` is the only writer of a finish reason. Engine thread only."""

    __slots__ = ("_arrivals", "_deadlines", "_marked", "counters", "outbox", "records")

    def __init__(self) -> None:
        self.records: dict[int, RequestRecord[S]] = {}
        self.outbox = Outbox()
        self.counters = Counters()
        self._deadlines = Deadlines()
        self._marked: list[S] = []
        self._arrivals = 0

    def open(self, request: GenerationRequest, rank: float) -> RequestRecord[S]:
        """``rank``: its place within its class and tenant, lower first. Raises DuplicateRequestError."""
        if request.id in self.records:
            raise DuplicateRequestError(f"request {request.id} is alive")
        self._arrivals += 1
        record: RequestRecord[S] = RequestRecord(request, (int(request.priority), rank, self._arrivals))
        self.records[request.id] = record
        self._deadlines.add(request)
        return record

    def cancel(self, request: int, reason: FinishReason) -> None:
        """Wish for the end of a request: of those of its sequences that nobody wished to end before. Unknown ids are ignored."""
        record = self.records.get(request)
        if record is not None:
            for sequence in record.sequences:
                self._mark(sequence, reason)

    def stop(self, request: int, index: int, after_token: int) -> None:
        """Wish for the end of a sequence after so many of its output tokens."""
        record = self.records.get(request)
        if record is not None and 0 <= index < len(record.sequences):
            sequence = record.sequences[index]
            if self._mark(sequence, FinishReason.STOP_STRING):
                sequence.stop_after = after_token

    def _mark(self, sequence: S, reason: FinishReason) -> bool:
        """Record a wish; False when it comes too late."""
        if sequence.ending is not None or sequence.finish is not None:
            return False
        sequence.ending = reason
        self._marked.append(sequence)
        return True

    def expire(self, now: float) -> None:
        """Turn deadlines that have come into wishes."""
        for request in self._deadlines.due(now):
            self.cancel(request, FinishReason.DEADLINE)

    def next_expiry(self) -> float | None:
        return self._deadlines.next()

    def take_marked(self) -> list[S]:
        """The sequences that somebody wished to end and that have not ended otherwise since; forgets them."""
        if not self._marked:
            return []
        marked, self._marked = self._marked, []
        return [sequence for sequence in marked if sequence.finish is None]

    def deliver(self, sequence: S, tokens: tuple[int, ...], now: float, logprobs: Logprobs = (), top: Top = ()) -> None:
        """Send out tokens, and note when the first came."""
        first = sequence.fresh
        event = TokensEvent(sequence.request, sequence.index, tokens, logprobs, top, first)
        (self.outbox.first_tokens if first else self.outbox.tokens).append(event)
        self.counters.generated_tokens += len(tokens)
        if first:
            sequence.fresh = False
            record = sequence.record
            if record.first_token_at is None:
                record.first_token_at = now
                self._deadlines.first_token(sequence.request)

    def finish(self, sequence: S, reason: FinishReason, now: float) -> None:
        """End a sequence that holds neither seat nor place any more, and its request with the last of them."""
        if sequence.finish is not None or sequence.seated or sequence.queued or sequence.held:
            raise IntegrityError(
                f"request {sequence.request}: a sequence ends twice or too early: {sequence.finish}, then {reason}"
            )
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
            self._close(record, reason, now)

    def _close(self, record: RequestRecord[Any], reason: FinishReason, now: float) -> None:
        """The last of its sequences has finished, and says why, unless one has failed."""
        request = record.request
        failures = (sequence.finish for sequence in record.sequences if not sequence.finish.is_success)
        reason = next(failures, reason)
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
                tuple(record.chunks),
            )
        )

    def check_integrity(self) -> None:
        for request, record in self.records.items():
            unfinished = held = 0
            for sequence in record.sequences:
                unfinished += sequence.finish is None
                held += sequence.held
            if unfinished != record.unfinished or unfinished == 0:
                raise IntegrityError(f"request {request}: {unfinished} sequences live, counted {record.unfinished}")
            if held != record.held or held == unfinished:
                raise IntegrityError(
                    f"request {request}: {held} sequences of {unfinished} are held, counted {record.held}"
                )


def _timings(arrival: float, planned: float | None, first: float | None, now: float) -> Timings:
    return Timings(
        queued=None if planned is None else planned - arrival,
        prefill=None if planned is None or first is None else first - planned,
        first_token=None if first is None else first - arrival,
        total=now - arrival,
    )
