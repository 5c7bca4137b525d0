"""The two threads that drive a request executor: one feeds it, one awaits it.

The executor batches by itself; ours is to keep it fed just enough (server/scheduling/executor_feed.py) and to hand over what it says. The
feed is one pure object under one lock; whoever changes it also hands its events over, under the same lock, so that no two
batches of one request can overtake each other. Handing over is one non-blocking call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec
import structlog

from engines.contract import EngineError, ExecutorStats, PlanError, RequestExecutor
from server.engine import Deliver, EngineInfo, EngineStats, Event, FinishReason, GenerationRequest
from server.engine_life import EngineLife
from server.engine_stats import Snapshot, backlog, engine_stats
from server.flight import FlightRecorder
from server.inbox import Cancel, Inbox, Stop, Submit
from server.pulse import Pulse
from server.scheduling.admission import Admission
from server.scheduling.executor_feed import ExecutorFeed
from server.step_record import StepRecord

log = structlog.get_logger(__name__)

AWAIT = 0.25
"""Seconds of one call to await_responses: how long closing can take, and how old a heartbeat can get while all is well."""


class ExecutorEngine:
    """Implements :class:`server.engine.Engine` over a request executor."""

    def __init__(
        self,
        executor: RequestExecutor,
        feed: ExecutorFeed,
        admission: Admission,
        info: EngineInfo,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._executor = executor
        self._feed = feed
        self._admission = admission
        self._info = info
        self._clock = clock
        self._inbox = Inbox()
        self._life = EngineLife()
        self._pulse = Pulse(clock)
        self._flight = FlightRecorder(clock)
        self._lock = threading.Lock()
        self._deliver: Deliver = _refuse
        self._threads: list[threading.Thread] = []
        self._closing = False
        self._iterations = -1
        """The executor's, when it last gave nothing."""
        self._taken_requests = self._taken_tokens = 0
        self._snapshot = Snapshot(feed.stats(), 0, 0)

    # ------------------------------------------------------------------ any thread

    @property
    def info(self) -> EngineInfo:
        return self._info

    def start(self, deliver: Deliver) -> None:
        self._deliver = deliver
        self._threads = [
            threading.Thread(target=self._guarded, args=(turn,), name=name, daemon=True)
            for name, turn in (("engine", self._await), ("engine-feed", self._feed_turn))
        ]
        for thread in self._threads:
            thread.start()

    def require_room(self, tenant: str) -> None:
        self._admit(1, tenant)

    def require_time(self, shortest: GenerationRequest) -> None:
        outlook = self._snapshot.outlook
        if outlook is not None:
            self._feed.forecast.check_shortest(shortest, outlook, self._clock())

    def _admit(self, prompt_tokens: int, tenant: str) -> None:
        self._admission.check(prompt_tokens, backlog(self.stats(), self._feed.standing(tenant)))

    def submit(self, request: GenerationRequest) -> None:
        self._admit(len(request.prompt), request.tenant)
        outlook = self._snapshot.outlook
        if outlook is not None and not (request.ttft_deadline is None and request.deadline is None):
            self._feed.forecast.check(request, len(request.prompt), outlook, self._clock())
        self._life.enter(request)
        self._inbox.put(Submit(request))

    def cancel(self, request: int, reason: FinishReason = FinishReason.CANCELLED) -> None:
        self._inbox.put(Cancel(request, reason))

    def stop(self, request: int, sequence: int, after_token: int) -> None:
        self._inbox.put(Stop(request, sequence, after_token))

    def stats(self) -> EngineStats:
        picture = self._snapshot
        stats = engine_stats(picture, self._life, self._pulse)
        # Its steps are the executor's iterations: what the pulse counts here are batches of responses.
        return msgspec.structs.replace(stats, steps=picture.scheduling.steps)

    @property
    def prefixes(self) -> None:
        """Its cache is the executor's own."""

    def recent_steps(self) -> list[StepRecord]:
        return self._flight.records()

    def close(self, timeout: float, *, keep: bool = False) -> None:  # noqa: ARG002 - an executor's blocks cannot be read
        self._closing = True
        self._inbox.poke()
        deadline = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                log.warning("engine_thread_still_running", thread=thread.name, timeout_seconds=timeout)
        self._end(FinishReason.CANCELLED, "the server is shutting down")
        self._executor.close()

    # ------------------------------------------------------------------ the two threads

    def _guarded(self, turn: Callable[[], None]) -> None:
        try:
            while not self._closing and self._life.alive:
                turn()
        except Exception as error:
            self._flight.failed(error)
            log.exception("engine_died")
            self._end(FinishReason.ENGINE_FAILED, "the engine has died; the server is about to exit")

    def _await(self) -> None:
        began = time.perf_counter()
        responses = self._executor.await_responses(AWAIT)
        if not responses:
            if self._moves():
                self._pulse.beat()
            return
        seconds = time.perf_counter() - began
        self._pulse.step_ended(seconds, 0.0)
        self._flight.answered(len(responses), seconds, self._snapshot.scheduling)
        with self._lock:
            self._feed.apply(responses, self._clock())
            self._turn()

    def _moves(self) -> bool:
        """Whether the executor works on, or has nothing to do. A call that came back empty says only that this thread is alive."""
        with self._lock:
            stats = self._executor.stats()
            self._picture(stats)  # what the last requests left behind, such as cached blocks, is told too
        before, self._iterations = self._iterations, stats.iterations
        return stats.iterations != before or not (stats.active or stats.queued)

    def _feed_turn(self) -> None:
        with self._lock:
            self._take_commands()
            self._turn()
            expiry = self._feed.next_expiry()
        self._inbox.wait(None if expiry is None else max(0.0, expiry - self._clock()))

    def _turn(self) -> None:
        """Hand over what happened, then feed what fits. Under the lock."""
        self._hand_over()
        now = self._clock()
        started = time.perf_counter()
        requests = self._feed.feed(now)
        self._pulse.plan_seconds += time.perf_counter() - started
        if requests:
            try:
                self._executor.enqueue(requests)
            except PlanError as error:
                log.error("executor_refused", requests=len(requests), exc_info=error)  # noqa: TRY400 - structlog takes it so
                self._feed.fail([request.request for request in requests], now)
        for request in self._feed.take_cancellations(now):
            self._executor.cancel(request)
        self._hand_over()
        self._picture(self._executor.stats())

    def _picture(self, executor: ExecutorStats) -> None:
        """What everybody else sees from now on. Under the lock."""
        feed = self._feed
        self._snapshot = Snapshot(feed.stats(executor), self._taken_requests, self._taken_tokens, feed.outlook())

    def _take_commands(self) -> None:
        for command in self._inbox.take():
            if type(command) is Submit:
                self._feed.add(command.request, self._clock())
                self._taken_requests += 1
                self._taken_tokens += len(command.request.prompt)
            elif type(command) is Cancel:
                self._feed.cancel(command.request, command.reason)
            elif type(command) is Stop:
                self._feed.stop(command.request, command.sequence, command.after_token)

    def _hand_over(self) -> None:
        events = self._feed.collect()
        if not events:
            return
        began = time.perf_counter()
        self._life.leave(events)
        self._deliver(events)
        self._pulse.deliver_seconds += time.perf_counter() - began

    def _end(self, reason: FinishReason, because: str) -> None:
        with self._lock:
            ended = self._life.end_all(reason, because, self._clock())
            if ended:
                self._deliver(ended)
        self._inbox.poke()


def _refuse(events: list[Event]) -> None:
    raise EngineError(f"{len(events)} events before start()")
