"""The one thread that drives a step runner, and hands each step's tokens to the streams at once.

A turn of the loop, with step N just finished::

    apply(N) ─ first tokens? hand over ─ commands ─ plan(N+1) ─ start(N+1) ─ hand over ─ draft(N+2) ─ wait for N+1

What lies between one step's end and the next one's start is kept short: tokens that are not somebody's first go out
while the next step runs, and the next decode rows are drafted then, too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog

from engines.contract import EngineDeadError, EngineError, StepHandle, StepPlan, StepRunner
from server.cache_tasks import Tend
from server.engine import (
    Deliver,
    EngineInfo,
    EngineStats,
    Event,
    FinishReason,
    GenerationRequest,
    TokensEvent,
)
from server.engine_life import EngineLife
from server.engine_stats import Snapshot, backlog, engine_stats
from server.flight import FlightRecorder
from server.inbox import Cancel, Inbox, Stop, Submit
from server.prefix_desk import PrefixDesk
from server.pulse import Pulse
from server.saved_cache.keeper import PAUSE, CacheKeeper
from server.scheduling.admission import Admission
from server.scheduling.batcher import Batcher
from server.step_record import StepRecord

log = structlog.get_logger(__name__)

MAX_STEP_FAILURES = 3
"""Failed steps in a row after which the engine counts as dead: one bad step may be one bad request, three are not."""

IDLE_BEAT = 1.0
"""Seconds: an idle loop turns at least this often, so that a heartbeat older than a few seconds means trouble."""


class StepEngine:
    """Implements :class:`server.engine.Engine` over a step runner and our own batcher."""

    def __init__(
        self,
        runner: StepRunner,
        batcher: Batcher,
        admission: Admission,
        info: EngineInfo,
        *,
        keeper: CacheKeeper | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``keeper``: saves the prefix cache; None = nobody does."""
        self._runner = runner
        self._batcher = batcher
        self._admission = admission
        self._info = info
        self._keeper = keeper
        self._clock = clock
        self._inbox = Inbox()
        self._life = EngineLife()
        self._pulse = Pulse(clock)
        self._flight = FlightRecorder(clock)
        self.prefixes = PrefixDesk(self._inbox.put)
        self._deliver: Deliver = _refuse
        self._thread: threading.Thread | None = None
        self._closing = False
        self._keep_until: float | None = None
        """When the last save must be over; None = there is none."""
        self._failures = 0
        self._taken_requests = self._taken_tokens = 0
        self._held: list[Event] = []
        """Events of the last step that go out once the next step runs."""
        self._snapshot = Snapshot(batcher.stats(), 0, 0)
        """What other threads see of the batcher: replaced as a whole, once a turn."""

    # ------------------------------------------------------------------ any thread

    @property
    def info(self) -> EngineInfo:
        return self._info

    def start(self, deliver: Deliver) -> None:
        self._deliver = deliver
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def require_room(self, tenant: str) -> None:
        self._admit(1, tenant)

    def require_time(self, shortest: GenerationRequest) -> None:
        outlook = self._snapshot.outlook
        if outlook is not None:
            self._batcher.forecast.check_shortest(shortest, outlook, self._clock())

    def _admit(self, prompt_tokens: int, tenant: str) -> None:
        self._admission.check(prompt_tokens, backlog(self.stats(), self._batcher.standing(tenant)))

    def submit(self, request: GenerationRequest) -> None:
        self._admit(len(request.prompt), request.tenant)
        outlook = self._snapshot.outlook
        if outlook is not None and not (request.ttft_deadline is None and request.deadline is None):
            batcher = self._batcher
            batcher.forecast.check(request, batcher.uncached(request), outlook, self._clock())
        self._life.enter(request)
        self._inbox.put(Submit(request))

    def cancel(self, request: int, reason: FinishReason = FinishReason.CANCELLED) -> None:
        self._inbox.put(Cancel(request, reason))

    def stop(self, request: int, sequence: int, after_token: int) -> None:
        self._inbox.put(Stop(request, sequence, after_token))

    def stats(self) -> EngineStats:
        keeper = self._keeper
        return engine_stats(self._snapshot, self._life, self._pulse, None if keeper is None else keeper.stats)

    def recent_steps(self) -> list[StepRecord]:
        return self._flight.records()

    def close(self, timeout: float, *, keep: bool = False) -> None:
        self._keep_until = self._clock() + timeout if keep else None
        self._closing = True
        self._inbox.poke()
        if self._thread is None:
            self._runner.close()
            return
        self._thread.join(timeout)
        if self._thread.is_alive():
            log.warning("engine_thread_still_running", timeout_seconds=timeout)

    # ------------------------------------------------------------------ the engine thread

    def _run(self) -> None:
        reason, because = FinishReason.ENGINE_FAILED, "the engine has died; the server is about to exit"
        try:
            while not self._closing:
                self._turn()
            reason, because = FinishReason.CANCELLED, "the server is shutting down"
        except Exception as error:
            self._flight.failed(error)
            log.exception("engine_died")
        finally:
            self._deliver(self._life.end_all(reason, because, self._clock()))
            self.prefixes.close(because)
            self._keep(well=reason is FinishReason.CANCELLED)
            self._runner.close()

    def _keep(self, *, well: bool) -> None:
        if self._keeper is None:
            return
        if not well or self._keep_until is None:
            self._keeper.abandon()
            return
        try:
            self._keeper.finish(self._keep_until - self._clock())
        except EngineError as error:
            log.warning("cache not saved", why=str(error))

    def _turn(self) -> None:
        self._take_commands()
        if self._keeper is not None:
            self._keeper.turn()
        plan = self._plan()
        handle = None if plan is None else self._start(plan)
        self._hand_over(self._held + self._batcher.collect())
        self._held = []
        batcher = self._batcher
        self._snapshot = Snapshot(batcher.stats(), self._taken_requests, self._taken_tokens, batcher.outlook())
        if plan is None:
            self._sleep()
        elif handle is not None:
            self._batcher.draft()
            self._finish(plan, handle)

    def _take_commands(self) -> None:
        for command in self._inbox.take():
            if type(command) is Submit:
                self._batcher.add(command.request, self._clock())
                self._taken_requests += 1
                self._taken_tokens += len(command.request.prompt)
            elif type(command) is Cancel:
                self._batcher.cancel(command.request, command.reason)
            elif type(command) is Stop:
                self._batcher.stop(command.request, command.sequence, command.after_token)
            elif type(command) is Tend:
                self.prefixes.perform(command, lambda task: self._batcher.prefixes.perform(task, self._clock()))

    def _plan(self) -> StepPlan | None:
        started = time.perf_counter()
        plan = self._batcher.plan(self._clock())
        self._pulse.plan_seconds += time.perf_counter() - started
        return plan

    def _start(self, plan: StepPlan) -> StepHandle | None:
        self._pulse.step_started()
        self._flight.started(plan, self._snapshot.scheduling)
        try:
            return self._runner.start(plan)
        except EngineDeadError:
            raise
        except EngineError as error:
            self._failed(plan, error, started=False)
            return None

    def _finish(self, plan: StepPlan, handle: StepHandle) -> None:
        try:
            result = handle.result()
        except EngineDeadError:
            raise
        except EngineError as error:
            self._failed(plan, error, started=True)
            return
        self._failures = 0
        self._pulse.step_ended(result.engine_seconds, result.sample_seconds)
        self._flight.ended(result)
        self._batcher.apply(result, self._clock())
        events = self._batcher.collect()
        if events and type(events[0]) is TokensEvent and events[0].first:
            self._hand_over(events)  # somebody waits for the first word: not a microsecond longer
        else:
            self._held = events

    def _failed(self, plan: StepPlan, error: EngineError, *, started: bool) -> None:
        self._pulse.step_failed()
        self._flight.failed(error)
        self._failures += 1
        log.error("step_failed", step=plan.step, rows=len(plan.rows), in_a_row=self._failures, exc_info=error)
        if self._failures >= MAX_STEP_FAILURES:
            raise EngineDeadError(f"{self._failures} steps in a row failed") from error
        self._batcher.fail(plan.step, self._clock(), started=started)

    def _hand_over(self, events: list[Event]) -> None:
        if not events:
            return
        began = time.perf_counter()
        self._life.leave(events)
        self._deliver(events)
        self._pulse.deliver_seconds += time.perf_counter() - began

    def _sleep(self) -> None:
        self._pulse.beat()
        expiry = self._batcher.next_expiry()
        timeout = IDLE_BEAT if expiry is None else min(IDLE_BEAT, max(0.0, expiry - self._clock()))
        if self._keeper is not None and self._keeper.saving:
            timeout = min(timeout, PAUSE)
        self._inbox.wait(timeout)


def _refuse(events: list[Event]) -> None:
    raise EngineDeadError(f"{len(events)} events before start()")
