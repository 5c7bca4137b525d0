"""A flight recorder: the engine's last steps, for whoever asks afterwards what it was doing. Lengths, places and times, never tokens.

It keeps the plans themselves, which cost nothing, and makes records of them only when somebody asks.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from engines.contract import Row, StepPlan, StepResult
from server.scheduling.counters import SchedulingStats
from server.step_record import StepRecord, StepRow

KEPT = 256
"""Steps: some seconds of a busy server."""
RUNNING, OK = "running", "ok"


class _Entry:
    __slots__ = ("before", "engine_seconds", "outcome", "plan", "responses", "sample_seconds", "started")

    def __init__(self, plan: StepPlan | None, before: SchedulingStats, started: float) -> None:
        self.plan = plan
        self.before = before
        self.started = started
        self.outcome = RUNNING
        self.engine_seconds = self.sample_seconds = 0.0
        self.responses = 0


class FlightRecorder:
    """Written by the engine's thread; any thread may ask for :meth:`records`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, kept: int = KEPT) -> None:
        self._clock = clock
        self._entries: deque[_Entry] = deque(maxlen=kept)

    def started(self, plan: StepPlan, before: SchedulingStats) -> None:
        """A step begins. ``before``: the scheduler's figures as they were last published."""
        self._entries.append(_Entry(plan, before, self._clock()))

    def ended(self, result: StepResult) -> None:
        entry = self._entries[-1]
        entry.engine_seconds, entry.sample_seconds = result.engine_seconds, result.sample_seconds
        entry.outcome = OK

    def failed(self, error: BaseException) -> None:
        """The kind of the error alone: its text may quote what it was about."""
        if self._entries:
            self._entries[-1].outcome = f"failed: {type(error).__name__}"

    def answered(self, responses: int, seconds: float, before: SchedulingStats) -> None:
        """An executor, which plans for itself, gave so many responses after ``seconds``."""
        entry = _Entry(None, before, self._clock() - seconds)
        entry.responses, entry.engine_seconds, entry.outcome = responses, seconds, OK
        self._entries.append(entry)

    def records(self) -> list[StepRecord]:
        """Oldest first."""
        now = self._clock()
        return [_record(entry, now) for entry in self._entries.copy()]  # copying is atomic, iterating is not


def _record(entry: _Entry, now: float) -> StepRecord:
    plan, before = entry.plan, entry.before
    return StepRecord(
        step=plan.step if plan is not None else 0,
        age=now - entry.started,
        outcome=entry.outcome,
        engine_seconds=entry.engine_seconds,
        sample_seconds=entry.sample_seconds,
        rows=tuple(_row(row) for row in plan.rows) if plan is not None else (),
        copies=len(plan.copies) if plan is not None else 0,
        opened=tuple(spec.sequence for spec in plan.opened) if plan is not None else (),
        closed=tuple(plan.closed) if plan is not None else (),
        responses=entry.responses,
        waiting_by_class=before.waiting_by_class,
        running=before.running,
        blocks_free=before.blocks_free,
        preemptions=before.preemptions,
    )


def _row(row: Row) -> StepRow:
    return StepRow(
        sequence=row.sequence,
        new_tokens=1 if row.tokens is None else len(row.tokens),
        past=row.past,
        blocks=sum(len(table) for table in row.blocks),
        want=type(row.want).__name__.lower() if row.want is not None else "",
    )
