"""The machine in virtual time: one scheduler and one engine, driven turn by turn as the server's loops drive them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from engines.contract import EngineDeadError, EngineError, StepRunner
from engines.simulated.clock import VirtualClock
from engines.simulated.executor import SimulatedExecutor
from server.engine import Event, FinishReason, GenerationRequest
from server.scheduling.batcher import Batcher
from server.scheduling.counters import SchedulingStats
from server.scheduling.executor_feed import ExecutorFeed

Meanwhile: TypeAlias = Callable[[], None]
"""Called when time has passed, before what the engine did meanwhile is taken in."""


class Machine(Protocol):
    """What a replay drives. Turns happen one after the other; requests may come between and within them."""

    busy_seconds: float
    """Time in which the engine computed."""

    def add(self, request: GenerationRequest) -> None: ...

    def cancel(self, request: int, reason: FinishReason) -> None: ...

    def predict(self, request: GenerationRequest, now: float, *, refuse: bool) -> float:
        """Predicted seconds to the first token. Raises OverloadedError where ``refuse`` and the server would."""
        ...

    def standing(self, tenant: str) -> tuple[int, int]:
        """The tenant's waiting requests, and how many tenants wait in one class at least."""
        ...

    def turn(self, until: float, meanwhile: Meanwhile) -> bool:
        """One step, or whatever the engine does until ``until``. False when nothing can run now. Raises EngineDeadError."""
        ...

    def collect(self) -> list[Event]: ...

    def next_expiry(self) -> float | None: ...

    def stats(self) -> SchedulingStats: ...

    def abort(self, reason: FinishReason) -> None: ...

    def check_integrity(self) -> None: ...


class StepMachine:
    """Our batcher and a step runner."""

    def __init__(self, batcher: Batcher, runner: StepRunner, clock: VirtualClock, overhead: float) -> None:
        self._batcher = batcher
        self._runner = runner
        self._clock = clock
        self._overhead = overhead
        self.busy_seconds = 0.0
        self.collect = batcher.collect
        self.next_expiry = batcher.next_expiry
        self.stats = batcher.stats
        self.check_integrity = batcher.check_integrity
        self.cancel = batcher.cancel
        self.standing = batcher.standing

    def add(self, request: GenerationRequest) -> None:
        self._batcher.add(request, self._clock.now())

    def predict(self, request: GenerationRequest, now: float, *, refuse: bool) -> float:
        batcher = self._batcher
        uncached, outlook = batcher.uncached(request), batcher.outlook()
        if refuse:
            batcher.forecast.check(request, uncached, outlook, now)
        return batcher.forecast.first_token(request, uncached, outlook, now)

    def turn(self, until: float, meanwhile: Meanwhile) -> bool:  # noqa: ARG002 - a step runs to its end
        batcher, clock = self._batcher, self._clock
        plan = batcher.plan(clock.now())
        if plan is None:
            return False
        try:
            handle = self._runner.start(plan)
            batcher.draft()
            result = handle.result()
        except EngineDeadError:
            raise
        except EngineError:
            batcher.fail(plan.step, clock.now())
            return True
        clock.advance(self._overhead)
        self.busy_seconds += result.engine_seconds
        meanwhile()
        batcher.apply(result, clock.now())
        return True

    def abort(self, reason: FinishReason) -> None:
        self._batcher.abort(reason, self._clock.now())


class ExecutorMachine:
    """The feed and a request executor, which batches by itself."""

    def __init__(self, feed: ExecutorFeed, executor: SimulatedExecutor, clock: VirtualClock) -> None:
        self._feed = feed
        self._executor = executor
        self._clock = clock
        self.busy_seconds = 0.0
        self.collect = feed.collect
        self.next_expiry = feed.next_expiry
        self.cancel = feed.cancel
        self.standing = feed.standing

    def add(self, request: GenerationRequest) -> None:
        self._feed.add(request, self._clock.now())

    def predict(self, request: GenerationRequest, now: float, *, refuse: bool) -> float:
        feed, uncached = self._feed, len(request.prompt)
        outlook = feed.outlook()
        if refuse:
            feed.forecast.check(request, uncached, outlook, now)
        return feed.forecast.first_token(request, uncached, outlook, now)

    def turn(self, until: float, meanwhile: Meanwhile) -> bool:
        feed, executor, began = self._feed, self._executor, self._clock.now()
        requests = feed.feed(began)
        if requests:
            executor.enqueue(requests)
        for request in feed.take_cancellations(began):
            executor.cancel(request)
        if not feed.running:
            return False
        responses = executor.await_responses(max(0.0, until - began))
        self.busy_seconds += self._clock.now() - began
        meanwhile()
        feed.apply(responses, self._clock.now())
        return bool(responses) or self._clock.now() > began

    def stats(self) -> SchedulingStats:
        return self._feed.stats(self._executor.stats())

    def abort(self, reason: FinishReason) -> None:
        self._feed.abort(reason, self._clock.now())

    def check_integrity(self) -> None:
        self._feed.check_integrity()
        self._executor.check_integrity()
