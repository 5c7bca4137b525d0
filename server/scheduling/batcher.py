"""The in-flight batcher: composes each step from who runs and who waits, and applies each step's outcome.

One thread, the engine's. The loop that drives it:

    plan = batcher.plan(now)            # complete step N
    handle = runner.start(plan)
    batcher.draft()                     # while it runs: the decode rows of step N + 1
    batcher.apply(handle.result(), now) # or fail(N): outcome, publication, finishes
    deliver(batcher.collect())

At most one step is in flight. Wishes (cancel, stop, deadline) are recorded at any moment and acted on in apply and plan.
"""

from __future__ import annotations

from engines.contract import RunnerLimits, StepPlan, StepResult
from engines.manifest import StepProfile
from server.engine import Event, FinishReason, GenerationRequest
from server.kv.block_pool import IntegrityError
from server.kv.hashing import identity_digest
from server.kv.sequence_blocks import SequenceBlocks, UnsharedBlocks
from server.scheduling.accounting import account
from server.scheduling.composition import Composition
from server.scheduling.config import BatcherConfig
from server.scheduling.cost import StepCost
from server.scheduling.counters import SchedulingStats
from server.scheduling.decodes import Decodes
from server.scheduling.forecast import Forecast, House
from server.scheduling.holds import check_holds
from server.scheduling.ledger import Ledger
from server.scheduling.making import make_budget, make_cache, make_reception, make_room, make_seating
from server.scheduling.outcomes import Outcomes, check_outputs
from server.scheduling.outlook import Outlook, Streaming
from server.scheduling.policies import Policies
from server.scheduling.prefills import Prefills
from server.scheduling.prefixes import Prefixes
from server.scheduling.reception import charge
from server.scheduling.reuse import Reuse
from server.scheduling.seats import Seats
from server.scheduling.sequence import Sequence, token_array
from server.scheduling.shares import ClassShares
from server.scheduling.snapshots import batcher_stats, read_outlook, read_streams
from server.scheduling.waiting_room import WaitingRoom


class Batcher:
    """See the module. Nothing in a step costs in proportion to what waits or to what was already generated."""

    def __init__(
        self,
        limits: RunnerLimits,
        *,
        fingerprint: str,
        config: BatcherConfig | None = None,
        policies: Policies | None = None,
        profile: StepProfile | None = None,
    ) -> None:
        """``fingerprint`` names the engine: equal fingerprints give equal keys and values. ``profile`` is where the cost model starts.
        Raises ValueError where the configuration and the engine's limits contradict each other, or the pool cannot hold one
        maximal sequence."""
        self._config = config = (config or BatcherConfig()).checked(limits)
        self._limits = limits
        self._fingerprint = fingerprint
        policies = policies or Policies()
        self.cache = make_cache(config, limits, policies, profile)
        self.cost = StepCost(profile)
        self._ledger: Ledger[Sequence] = Ledger()
        self._reception = make_reception(config, self.cost, policies)
        shares = ClassShares(config.class_shares, bound=2 * limits.max_step_tokens)
        self._room: WaitingRoom[Sequence] = make_room(config, shares)
        self.standing = self._room.standing
        house = House(self._room.around, self._streams, _seat_tokens, limits.block_size)
        self.forecast = Forecast(config, self.cost, self._reception, house)
        counters = self._ledger.counters
        fair_seats = config.max_sequences if config.fair_tenants else 0
        self._seats = Seats(self.cache, self._room, counters, fair_seats=fair_seats)
        self._decodes = Decodes(self._seats, policies.victims, limits.block_size)
        seating = make_seating(
            config, policies, cache=self.cache, room=self._room, seats=self._seats, counters=counters
        )
        reuse, budget = Reuse(self.cache, config, counters), policies.budget or make_budget(config, self.cost)
        self._seating = seating
        self._prefills = Prefills(config, limits, seats=self._seats, seating=seating, reuse=reuse, budget=budget)
        self._outcomes = Outcomes(ledger=self._ledger, room=self._room, seats=self._seats, reception=self._reception)
        self.prefixes = Prefixes(self.cache, limits, fingerprint=fingerprint, promised=seating.promised)
        self._flight: Composition | None = None
        self._last_step, self._planned = 0, 0.0
        """The last step, and when it was planned."""
        self._last_sequence = 0

    # ------------------------------------------------------------------ requests

    def add(self, request: GenerationRequest, now: float) -> None:  # noqa: ARG002 - orders to come rank by time
        """Queue a validated request. Raises DuplicateRequestError.

        Of n sequences one computes the prompt; the others are held until its first token, and then find the prompt's full blocks
        in the cache and copy the last, partly filled one.
        """
        root = identity_digest(self._fingerprint, self._limits.block_size, salt=request.cache_salt)
        forks = [token_array(request.prompt) for _ in range(request.n)]
        blocks = SequenceBlocks if self._config.prefix_cache else UnsharedBlocks
        tables = [blocks(self.cache, root, tokens, request.retention) for tokens in forks]
        uncached = self._uncached(request, tables[0])
        expected = self._reception.expect(request, uncached)
        record = self._ledger.open(request, expected.rank)
        self.forecast.arrived(request, uncached, expected.rank)
        for index, (tokens, kv) in enumerate(zip(forks, tables, strict=True)):
            self._last_sequence += 1
            sequence = Sequence(
                record,
                index,
                sequence_id=self._last_sequence,
                tokens=tokens,
                kv=kv,
                max_context=self._limits.max_context,
                # The first one computes the prompt for all.
                expected_charge=charge(0, expected.output) if index else expected.charge,
                expected_work=uncached,
                expected_output=round(expected.output),
            )
            record.sequences.append(sequence)
            record.unfinished += 1
            if index:
                sequence.held = True
                record.held += 1
            else:
                self._room.push(sequence)

    def uncached(self, request: GenerationRequest) -> int:
        """Prompt tokens that the request would have to compute now. Any thread: it only looks names up. O(prompt)."""
        root = identity_digest(self._fingerprint, self._limits.block_size, salt=request.cache_salt)
        return self._uncached(request, SequenceBlocks(self.cache, root, token_array(request.prompt)))

    def _uncached(self, request: GenerationRequest, kv: SequenceBlocks) -> int:
        length = len(request.prompt)
        if request.prompt_logprobs is not None or not self._config.prefix_cache:
            return length
        return length - len(kv.match(length - 1)) * self._limits.block_size

    def cancel(self, request: int, reason: FinishReason = FinishReason.CANCELLED) -> None:
        """Wish for the end of a request, whatever state it is in. Idempotent: the first reason stays. Unknown ids are ignored."""
        self._ledger.cancel(request, reason)

    def stop(self, request: int, sequence: int, after_token: int) -> None:
        """The sequence is over after its ``after_token``-th output token, counted from 1; later ones are discarded."""
        self._ledger.stop(request, sequence, after_token)

    def expire(self, now: float) -> None:
        """Wish for the end of requests whose deadline has come. plan does it too."""
        self._ledger.expire(now)

    def next_expiry(self) -> float | None:
        """The earliest deadline that counts, so that an idle loop can wake for it."""
        return self._ledger.next_expiry()

    def collect(self) -> list[Event]:
        """Events since the last call: first tokens, other tokens, finishes. Each request's own are in their right order."""
        outbox = self._ledger.outbox
        self.forecast.learn(outbox.finishes)
        return outbox.collect()

    # ------------------------------------------------------------------ steps

    def draft(self) -> None:
        """While a step runs, prepare what is known of the next: decode rows, and names of the blocks that the step fills."""
        self._decodes.draft()
        if self._flight is not None:
            for sequence in self._flight.chunked:
                sequence.kv.name(sequence.scheduled)

    def plan(self, now: float) -> StepPlan | None:
        """Complete the next step; None when nothing can run. Acts on wishes and deadlines first.

        Raises IntegrityError while a step is in flight, and should seated sequences ever be stuck.
        """
        if self._flight is not None:
            raise IntegrityError(f"a step was planned while step {self._flight.step} is in flight")
        self.cache.now = now
        self._ledger.expire(now)
        self.prefixes.expire(now)
        self._outcomes.end_marked(now)
        self._seating.yield_seats(now)
        step = Composition(self._last_step + 1)
        self._decodes.compose(step)
        self._prefills.compose(step, len(self._room), self._room.work, now)
        if not step.rows:
            if self._seats.running:
                # Seated prompts fit together without the decodes, so one of them can always go on; better dead than stuck.
                raise IntegrityError(f"{self.running} sequences are seated and none can run")
            return None
        self._last_step, self._planned = step.step, now
        self._flight = step
        account(step, self._room, self._seats)
        self.cache.pool.open_step(step.step)
        self._decodes.follow(step.sampled)
        step.closed, self._outcomes.closed = self._outcomes.closed, []
        return step.plan()

    def apply(self, result: StepResult, now: float) -> None:
        """A step's outcome: advance, publish full blocks, deliver tokens, finish whoever is at an end.

        Raises StepError, changing nothing, when the outcome is not what the plan asked for: then call :meth:`fail`.
        """
        check_outputs(self._flight, result)
        flight = self._land(result.step)
        seconds = result.engine_seconds + result.sample_seconds
        self.cost.observe(flight.new, flight.decodes, flight.context, flight.attention, seconds)
        self._outcomes.succeed(flight, result, now)
        self.cache.pool.complete_step(flight.step)

    def fail(self, step: int, now: float, *, started: bool = True) -> None:
        """The step failed: all that it named ends ENGINE_FAILED; nothing that it was to write is published.

        ``started``: False when the runner refused the plan (PlanError), so that it neither opened nor closed what the plan said.
        """
        flight = self._land(step)
        if not started:
            self._outcomes.closed.extend(flight.closed)
            for sequence in flight.chunked:
                sequence.opened = sequence.opened and sequence.id not in {spec.sequence for spec in flight.opened}
        self._outcomes.fail(flight, now)
        self.cache.pool.complete_step(flight.step)

    def abort(self, reason: FinishReason, now: float) -> None:
        """End every live request: the engine is gone, or closing. A step in flight is not waited for."""
        for request in list(self._ledger.records):
            self._ledger.cancel(request, reason)
        flight = self._flight
        if flight is not None:
            self._land(flight.step)
        self._outcomes.end_marked(now)
        if flight is not None:
            self.cache.pool.complete_step(flight.step)

    def _land(self, step: int) -> Composition:
        flight = self._flight
        if flight is None or flight.step != step:
            raise IntegrityError(f"step {step} ended, in flight is {None if flight is None else flight.step}")
        self._flight = None
        for source in flight.held:
            self.cache.release([source])
        return flight

    # ------------------------------------------------------------------ what is

    @property
    def idle(self) -> bool:
        """No request lives."""
        return not self._ledger.records

    @property
    def running(self) -> int:
        """Seats taken."""
        return len(self._seats.running)

    @property
    def evictions(self) -> int:
        """Cached blocks given up for others."""
        return self.cache.evictions

    def stats(self) -> SchedulingStats:
        """A snapshot, in time proportional to the prompts in progress."""
        return batcher_stats(
            self._room, self._seats, self.cache, self._ledger.counters, self.cost, pinned=self.prefixes.pinned
        )

    def outlook(self) -> Outlook:
        """What lies ahead of whoever comes now, in time proportional to the prompts in progress."""
        return read_outlook(
            self._room,
            self._seats,
            self._flight,
            self.cost,
            planned=self._planned,
            max_sequences=self._config.max_sequences,
            free_blocks=self._seating.free_blocks(),
            block_size=self._limits.block_size,
        )

    def _streams(self) -> list[Streaming]:
        return read_streams(self._seats, self._reception.lengths)

    def check_integrity(self) -> None:
        """Every law that can be checked from the inside; raises IntegrityError. O(blocks + requests)."""
        self._room.check_integrity()
        self._ledger.check_integrity()
        self.cache.check_integrity()
        self._seats.check_integrity()
        self.prefixes.check_integrity()
        check_holds(self.cache, self._seats, self._flight, self.prefixes)
        for record in self._ledger.records.values():
            for sequence in record.sequences:
                if sequence.queued + sequence.seated + sequence.held != (sequence.finish is None):
                    raise IntegrityError(f"sequence {sequence.id} neither waits nor runs nor is held, or more than one")


def _seat_tokens(_: GenerationRequest, uncached: int) -> int:
    """Blocks for output are taken as it is drawn."""
    return uncached
