"""Feeds an engine that batches by itself: keeps the order outside, where it still counts, and just enough inside.

The loop that drives it:

    executor.enqueue(feed.feed(now))
    for request in feed.take_cancellations(now): executor.cancel(request)
    feed.apply(executor.await_responses(timeout), now)
    deliver(feed.collect())

A request that was handed over keeps its seat until the executor's final response, whatever was wished meanwhile: its
finish comes then, with all tokens that arrived too late counted as discarded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from engines.contract import ExecutorLimits, ExecutorRequest, ExecutorResponse, ExecutorStats
from engines.manifest import StepProfile
from server.engine import Event, FinishReason, GenerationRequest, PriorityClass
from server.kv.block_pool import IntegrityError
from server.scheduling.config import BatcherConfig
from server.scheduling.cost import StepCost
from server.scheduling.counters import SchedulingStats
from server.scheduling.executor_mirror import ExecutorMirror
from server.scheduling.executor_progress import ExecutorProgress
from server.scheduling.fed_sequence import Fed, FedSequence, executor_request, read_streams, reason_of, seat_tokens
from server.scheduling.forecast import House
from server.scheduling.ledger import Ledger
from server.scheduling.making import make_reception, make_room
from server.scheduling.outlook import Outlook
from server.scheduling.policies import Policies
from server.scheduling.reception import Reception, charge
from server.scheduling.salts import SaltNumbers
from server.scheduling.shares import ClassShares
from server.scheduling.snapshots import feed_stats
from server.scheduling.waiting_room import WaitingRoom


class ExecutorFeed:
    """The batcher's counterpart for a :class:`engines.contract.RequestExecutor`. Engine thread only."""

    def __init__(
        self,
        limits: ExecutorLimits,
        *,
        inner_queue: int = 2,
        config: BatcherConfig | None = None,
        policies: Policies | None = None,
        profile: StepProfile | None = None,
    ) -> None:
        """Of ``config`` what concerns the waiting room counts, of ``policies`` the order. Raises ValueError where the executor cannot hold
        one maximal sequence, or ``inner_queue`` is below 1."""
        config = config or BatcherConfig()
        self._limits = limits
        self._mirror = ExecutorMirror(limits, inner_queue)
        self._ledger: Ledger[FedSequence] = Ledger()
        self._salts = SaltNumbers()
        cost = StepCost(profile)
        self._reception: Reception = make_reception(config, cost, policies or Policies())
        self._shares = ClassShares(config.class_shares, bound=2 * limits.max_context)
        self._room: WaitingRoom[FedSequence] = make_room(config, self._shares)
        self.standing = self._room.standing
        self._inside: dict[int, Fed] = {}
        self._silent: dict[int, int] = {}
        """Prompt tokens of the requests inside that have not answered yet."""
        streams = partial(read_streams, self._inside, self._silent, self._reception.lengths, self._mirror.blocks)
        house = House(self._room.around, streams, seat_tokens, limits.block_size)
        self._progress = ExecutorProgress(limits, config, cost, self._reception, house)
        self.forecast = self._progress.forecast
        self._uncounted: set[int] = set()
        """Those that have answered without saying how much of their prompt was reused."""
        self._cancellations: list[int] = []
        self._cancelling: set[int] = set()

    # ------------------------------------------------------------------ requests

    def add(self, request: GenerationRequest, now: float) -> None:  # noqa: ARG002 - orders to come rank by time
        """Queue a validated request. Raises DuplicateRequestError."""
        expectation = self._reception.expect(request, len(request.prompt))
        record = self._ledger.open(request, expectation.rank)
        self.forecast.arrived(request, len(request.prompt), expectation.rank)
        # The first one waits, and is charged, for all of them.
        everything = charge(len(request.prompt), request.n * expectation.output)
        output = round(expectation.output)
        record.sequences.extend(FedSequence(record, index, everything, output) for index in range(request.n))
        record.unfinished = request.n
        record.held = request.n - 1
        for sequence in record.sequences[1:]:
            sequence.held = True
        self._room.push(record.sequences[0])

    def cancel(self, request: int, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """Wish for the end of a request, whatever state it is in. Idempotent: the first reason stays. Unknown ids are ignored."""
        self._ledger.cancel(request, reason)

    def stop(self, request: int, sequence: int, after_token: int) -> None:
        """The sequence is over after its ``after_token``-th output token, counted from 1; later ones are discarded."""
        self._ledger.stop(request, sequence, after_token)

    def expire(self, now: float) -> None:
        """Wish for the end of requests whose deadline has come. feed and take_cancellations do it too."""
        self._ledger.expire(now)

    def next_expiry(self) -> float | None:
        """The earliest deadline that counts, so that a waiting loop can wake for it."""
        return self._ledger.next_expiry()

    def collect(self) -> list[Event]:
        """Events since the last call: first tokens, other tokens, finishes. Each request's own are in their right order."""
        outbox = self._ledger.outbox
        self.forecast.learn(outbox.finishes)
        return outbox.collect()

    # ------------------------------------------------------------------ to and from the executor

    def feed(self, now: float) -> list[ExecutorRequest]:
        """What to enqueue now, in order: as much as can run, and ``inner_queue`` more."""
        self._settle(now)
        fed: list[ExecutorRequest] = []
        while self._mirror.can_enter and self._room.peek() is not None:
            sequence = self._room.pop()
            record: Fed = sequence.record
            self._account(sequence)
            self._enter(record, now)
            fed.append(executor_request(record.request, self._limits.max_context, self._salts, now))
        return fed

    def _enter(self, record: Fed, now: float) -> None:
        request = record.request
        record.planned_at = now
        record.held = 0
        for sequence in record.sequences:
            sequence.held = False
            sequence.seated = sequence.opened = True
        # In this order: whoever is inside and not silent streams, for other threads too.
        self._silent[request.id] = len(request.prompt)
        self._inside[request.id] = record
        self._progress.enter(request.id, len(request.prompt), record.sequences[0].expected_output, request.n, now)
        self._ledger.counters.prompt_tokens += len(request.prompt)
        demand = self._mirror.demand(len(request.prompt), max(1, request.max_tokens))
        self._progress.begin(self._mirror.enter(request.id, request.n * demand, request.n), now)

    def _account(self, sequence: FedSequence) -> None:
        """Whoever goes in takes of its class's due what it is expected to take."""
        tokens = [0] * len(PriorityClass)
        tokens[sequence.level] = max(1, int(sequence.expected_charge))
        has_work = [count > 0 for count in self._room.by_class]
        has_work[sequence.level] = True
        self._shares.serve(tokens, has_work)

    def take_cancellations(self, now: float) -> list[int]:
        """Requests whose end to ask the executor for, at once; each is named once."""
        self._settle(now)
        cancellations, self._cancellations = self._cancellations, []
        return cancellations

    def apply(self, responses: Sequence[ExecutorResponse], now: float) -> None:
        """What the executor said: tokens go out, or are dropped after a wish; a final response gives the seats back."""
        self._progress.answers(responses, now)
        for response in responses:
            record = self._inside.get(response.request)
            if record is None:
                # It was given up with the executor's failure; what still arrives belongs to nobody.
                self._ledger.counters.discarded_tokens += len(response.tokens)
                continue
            sequence = record.sequences[response.sequence_index]
            if response.tokens:
                self._take_tokens(sequence, response, now)
            if response.final:
                self._count_prompt(record, response)
                self._end_all(record, partial(reason_of, response=response), now)
            elif response.finish is not None and sequence.finish is None:
                self._end(sequence, reason_of(sequence, response), now)

    def fail(self, requests: Iterable[int], now: float) -> None:
        """The executor refused or lost these requests: they end ENGINE_FAILED, unless somebody wished for their end before."""
        for request in requests:
            record = self._inside.get(request)
            if record is not None:
                self._end_all(record, lambda one: one.ending or FinishReason.ENGINE_FAILED, now)

    def abort(self, reason: FinishReason, now: float) -> None:
        """End every live request without waiting for the executor: it is gone, or closing."""
        for request in list(self._ledger.records):
            self._ledger.cancel(request, reason)
        for record in list(self._ledger.records.values()):
            self._end_all(record, lambda one: one.ending or reason, now)
        self._ledger.take_marked()
        self._cancellations.clear()

    def _take_tokens(self, sequence: FedSequence, response: ExecutorResponse, now: float) -> None:
        counters, request = self._ledger.counters, sequence.record.request
        counters.computed_tokens += len(response.tokens)
        if self._silent.pop(request.id, None) is not None:
            self._mirror.runs(request.id)
            self._uncounted.add(request.id)
            self._count_prompt(sequence.record, response)
        if sequence.ending is not None or sequence.finish is not None or request.max_tokens == 0:
            sequence.discarded += len(response.tokens)
            return
        self._ledger.deliver(sequence, response.tokens, now, response.logprobs, response.top)
        sequence.delivered += len(response.tokens)

    def _count_prompt(self, record: Fed, response: ExecutorResponse) -> None:
        """Once, when the executor says how much of the prompt it had: with its first response, or only with the final one."""
        if response.cached_tokens is None and not response.final:
            return
        if record.request.id in self._uncounted:
            self._uncounted.remove(record.request.id)
            record.cached_tokens = response.cached_tokens or 0
            self._ledger.counters.cached_tokens += record.cached_tokens
            # The first token comes out of the last prompt token's row, counted with the tokens.
            self._ledger.counters.computed_tokens += len(record.request.prompt) - record.cached_tokens - 1

    def _settle(self, now: float) -> None:
        """Act on wishes: who waits outside ends now, who is inside when the executor says so. An executor ends whole requests, so one
        of n sequences runs on, unheard, until all of them are to end."""
        self._ledger.expire(now)
        for sequence in self._ledger.take_marked():
            record: Fed = sequence.record
            request = record.request.id
            if request not in self._inside:
                self._end(sequence, sequence.ending or FinishReason.CANCELLED, now)
            elif request not in self._cancelling and all(one.ending or one.finish for one in record.sequences):
                self._cancelling.add(request)
                self._cancellations.append(request)

    def _end_all(self, record: Fed, reason: Callable[[FedSequence], FinishReason], now: float) -> None:
        for sequence in record.sequences:
            if sequence.finish is None:
                self._end(sequence, reason(sequence), now)

    def _end(self, sequence: FedSequence, reason: FinishReason, now: float) -> None:
        record: Fed = sequence.record
        if sequence.queued:
            self._room.remove(sequence)
        elif sequence.held:
            sequence.held = False
            record.held -= 1
        sequence.seated = False
        self._reception.learn(record.request, reason, sequence.delivered)
        self._ledger.finish(sequence, reason, now)
        if not record.unfinished:
            self._settle_up(record)
        if not record.unfinished and self._inside.pop(record.request.id, None) is not None:
            self._silent.pop(record.request.id, None)
            self._uncounted.discard(record.request.id)
            self._cancelling.discard(record.request.id)
            self._progress.leave(record.request.id)
            self._progress.begin(self._mirror.leave(record.request.id), now)

    def _settle_up(self, record: Fed) -> None:
        """All of a request's sequences are over: its tenant is charged what they took."""
        delivered = sum(sequence.delivered for sequence in record.sequences)
        computed = len(record.request.prompt) - record.cached_tokens if delivered else 0
        self._room.settle(record.sequences[0], charge(computed, delivered))

    # ------------------------------------------------------------------ what is

    @property
    def idle(self) -> bool:
        """No request lives."""
        return not self._ledger.records

    @property
    def running(self) -> int:
        """Sequences inside the executor."""
        return sum(record.request.n for record in self._inside.values())

    def outlook(self) -> Outlook:
        """What lies ahead of whoever comes now, in time proportional to the requests inside."""
        return self._progress.outlook(self._room, self._mirror)

    def stats(self, executor: ExecutorStats | None = None) -> SchedulingStats:
        """A snapshot. Of the blocks the executor knows best; without its word, what our picture of it says."""
        return feed_stats(
            self._room,
            self._ledger.counters,
            self.running,
            unanswered=sum(self._silent.values()),
            blocks=(self._limits.block_count, self._mirror.reserved),
            executor=executor,
        )

    def check_integrity(self) -> None:
        """Raises IntegrityError where the books contradict each other. O(requests)."""
        self._room.check_integrity()
        self._ledger.check_integrity()
        self._mirror.check_integrity(set(self._inside))
        self._progress.check_integrity(set(self._inside))
        if not self._silent.keys() | self._cancelling <= self._inside.keys():
            raise IntegrityError(
                f"unanswered {sorted(self._silent)}, cancelled {sorted(self._cancelling)}: not all are inside"
            )
        if len(self._inside) + len(self._room) != len(self._ledger.records):
            raise IntegrityError(
                f"{len(self._ledger.records)} requests live, {len(self._inside)} inside and {len(self._room)} outside"
            )
