"""In-flight batching inside the simulated executor: queue, seats, worst-case reservation, one iteration after another.

Pure mechanism without clock or thread: whoever drives it says what time it is. Semantics are those of the C++ executor under its
GUARANTEED_NO_EVICT policy: requests enter in order of priority and arrival, the first that does not fit blocks those behind it,
and what has entered always finishes.
"""

from __future__ import annotations

import random
from bisect import insort
from dataclasses import dataclass

from engines.contract import (
    ExecutorFinish,
    ExecutorLimits,
    ExecutorRequest,
    ExecutorResponse,
    ExecutorStats,
    SequenceSpec,
)
from engines.sampling.sampler import NO_TOKEN
from engines.simulated.cost import CostModel, StepShape
from engines.simulated.draws import Draw, Drawer, Drawn
from engines.simulated.faults import Faults
from engines.simulated.history import History
from engines.simulated.jobs import Job, Seat
from engines.simulated.reuse import Journal, ReusePool


@dataclass(frozen=True, slots=True)
class Iteration:
    """A planned iteration: which sequence computes how many tokens, and how long it takes."""

    ordinal: int
    work: list[tuple[Seat, int]]
    seconds: float


class InflightBatch:
    """One thread at a time."""

    def __init__(
        self,
        limits: ExecutorLimits,
        drawer: Drawer,
        *,
        cost: CostModel,
        faults: Faults,
        seed: int,
        cancel_lag: int,
        journal: Journal | None = None,
    ) -> None:
        """``cancel_lag``: whole iterations that still run with a request after the one in which its cancel arrived."""
        self._limits = limits
        self._drawer = drawer
        self._cost = cost
        self._faults = faults
        self._noise = random.Random(seed)  # noqa: S311 - the same iterations must cost the same
        self._cancel_lag = cancel_lag
        self._pool = ReusePool(limits.block_count)
        self._pool.journal = journal
        self._queue: list[Job] = []
        self._active: list[Job] = []
        self._jobs: dict[int, Job] = {}
        self._orders = 0
        self._sequences = 0
        self._iterations = 0

    def __contains__(self, request: int) -> bool:
        """Whether the request is queued or running."""
        return request in self._jobs

    @property
    def idle(self) -> bool:
        return not self._jobs

    def add(self, request: ExecutorRequest, now: float) -> None:
        job = Job(request, self._orders, now, self._limits.block_size)
        self._orders += 1
        self._jobs[request.request] = job
        insort(self._queue, job, key=lambda queued: queued.rank)

    def cancel(self, request: int) -> None:
        job = self._jobs.get(request)
        if job is not None and job.cancel_at is None:
            job.cancel_at = self._iterations + 1 + self._cancel_lag

    # ------------------------------------------------------------------ one iteration

    def border(self, now: float) -> list[ExecutorResponse]:
        """Between two iterations: cancels and timeouts take effect, then what fits is admitted."""
        responses: list[ExecutorResponse] = []
        for job in list(self._jobs.values()):
            error = None if job.admitted else self._faults.request_error(job.request.request)
            if error is not None:
                responses.append(job.failed(error))
            elif job.cancel_at is not None and (job.cancel_at <= self._iterations + 1 or not self._active):
                responses += job.ended(ExecutorFinish.CANCELLED)
            elif job.expired(now):
                responses += job.ended(ExecutorFinish.TIMED_OUT)
            else:
                continue
            self._end(job)
        while self._queue and self._fits(self._queue[0]):
            self._admit(self._queue.pop(0))
        return responses

    def begin(self) -> Iteration | None:
        """Plan the next iteration: a token for every sequence that decodes, the rest of the budget for prompts in order."""
        seats = [seat for job in self._active for seat in job.seats]
        if not seats:
            return None
        work = [(seat, 1) for seat in seats if not seat.remaining_prompt]
        budget = self._limits.max_num_tokens - len(work)
        for seat in seats:
            chunk = min(seat.remaining_prompt, budget)
            if chunk:
                work.append((seat, chunk))
                budget -= chunk
        self._iterations += 1
        seconds = self._cost.seconds(_shape(work), self._noise) + self._faults.delay(self._iterations)
        return Iteration(self._iterations, work, seconds)

    def complete(self, iteration: Iteration) -> list[ExecutorResponse]:
        """The planned iteration has run: draw, publish, end what is over."""
        if self._faults.fails(iteration.ordinal):
            return self._fail_all(f"iteration {iteration.ordinal} failed on purpose")
        drawing: list[Seat] = []
        for seat, tokens in iteration.work:
            seat.computed += tokens
            self._pool.grow(seat.holding, -(-seat.computed // self._limits.block_size))
            if not seat.remaining_prompt:
                drawing.append(seat)
        draws = [Draw(seat.spec, seat.history.state, len(seat.history)) for seat in drawing]
        drawn = self._drawer.draw(draws) if draws else []
        return [response for seat, one in zip(drawing, drawn, strict=True) for response in self._say(seat, one)]

    def _say(self, seat: Seat, drawn: Drawn) -> list[ExecutorResponse]:
        token, job = drawn.token, seat.job
        if job not in self._active:  # another of its sequences was stuck in this very iteration
            return []
        if token == NO_TOKEN:
            ended = job.ended(ExecutorFinish.IMPOSSIBLE)
            self._end(job)
            return ended
        if seat.generated == 0:
            self._pool.publish(seat.holding, seat.keys(seat.computed))
        seat.history.append(token)
        seat.generated += 1
        finish = seat.finish_after(token)
        response = job.token(seat, drawn, finish)
        if finish is not None:
            self._leave(seat)
            if not job.seats:
                self._end(job)
        return [response]

    # ------------------------------------------------------------------ coming and going

    def _fits(self, job: Job) -> bool:
        seats = sum(len(running.seats) for running in self._active)
        reserved = sum(running.demand for running in self._active)
        return (
            seats + job.request.n <= self._limits.max_batch_size and reserved + job.demand <= self._limits.block_count
        )

    def _admit(self, job: Job) -> None:
        request = job.request
        job.admitted = True
        self._active.append(job)
        for index in range(request.n):
            self._sequences += 1
            spec = SequenceSpec(self._sequences, index, request.sampling, request.tokens)
            self._drawer.open(spec)
            seat = Seat(job, spec, History(self._limits.block_size, request.tokens), self._pool.open(()), computed=0)
            # The last prompt token is always computed: its logits give the first token.
            seat.holding = self._pool.open(seat.keys(len(request.tokens) - 1))
            seat.computed = len(seat.holding) * self._limits.block_size
            job.seats.append(seat)
        job.cached_tokens = min(seat.computed for seat in job.seats)

    def _leave(self, seat: Seat) -> None:
        self._pool.publish(seat.holding, seat.keys(seat.computed))
        self._pool.close(seat.holding)
        self._drawer.close(seat.spec.sequence)
        seat.job.seats.remove(seat)

    def _end(self, job: Job) -> None:
        for seat in list(job.seats):
            self._leave(seat)
        del self._jobs[job.request.request]
        (self._active if job.admitted else self._queue).remove(job)

    def _fail_all(self, error: str) -> list[ExecutorResponse]:
        responses = [job.failed(error) for job in self._active]
        for job in list(self._active):
            self._end(job)
        return responses

    # ------------------------------------------------------------------ to look at

    def stats(self) -> ExecutorStats:
        return ExecutorStats(
            active=len(self._active),
            queued=len(self._queue),
            used_blocks=self._pool.used,
            max_blocks=self._pool.block_count,
            reused_blocks=self._pool.reused,
            missed_blocks=self._pool.missed,
            iterations=self._iterations,
            cached_blocks=self._pool.cached,
            evicted_blocks=self._pool.evicted,
        )

    def check_integrity(self) -> None:
        """Raises EngineError where blocks are lost or counted twice."""
        self._pool.check_integrity([seat.holding for job in self._active for seat in job.seats])


def _shape(work: list[tuple[Seat, int]]) -> StepShape:
    decodes = [seat for seat, _ in work if not seat.remaining_prompt]
    chunks = [(seat.computed, tokens) for seat, tokens in work if seat.remaining_prompt]
    return StepShape(
        new=sum(tokens for _, tokens in chunks),
        decodes=len(decodes),
        decode_context=sum(seat.computed + 1 for seat in decodes),
        attention=sum(tokens * (past + tokens / 2) for past, tokens in chunks),
    )
