"""A workload against a machine, in virtual time: who comes when, what they are told, and when they give up."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from engines.contract import EngineDeadError
from engines.simulated.clock import VirtualClock
from loadtest.record import CLIENT_CANCELLED, OK, UNFINISHED, RequestRecord, Usage
from loadtest.sessions import Session, SessionMaker
from loadtest.simulation.agenda import Act, Agenda
from loadtest.simulation.gate import Gate
from loadtest.simulation.machine import Machine
from loadtest.simulation.requests import Client, RequestMaker
from loadtest.simulation.samples import Sampler
from server.engine import FinishReason, RequestFinished, TokensEvent
from server.errors import OverloadedError

READER_STALL = 30.0
"""Seconds after which the server gives up a client that does not read (its own default)."""
STATUSES = {
    FinishReason.CANCELLED: "CANCELLED",
    FinishReason.DEADLINE: "DEADLINE_EXCEEDED",
    FinishReason.OVERLOADED: "RESOURCE_EXHAUSTED",
    FinishReason.ENGINE_FAILED: "UNAVAILABLE",
}


class Replay:
    """Runs once. One thread."""

    def __init__(
        self, sessions: SessionMaker, maker: RequestMaker, machine: Machine, gate: Gate, clock: VirtualClock
    ) -> None:
        self._workload = sessions.workload
        self._maker = maker
        self._machine = machine
        self._gate = gate
        self._clock = clock
        self._open: dict[int, tuple[Client, RequestRecord]] = {}
        self._source = sessions.sessions()
        self._agenda = Agenda(self._arrivals())
        self._sampler = Sampler(machine)
        self._dead = False
        self._last_arrival = 0.0
        self.records: list[RequestRecord] = []

    @property
    def sampler(self) -> Sampler:
        return self._sampler

    # ------------------------------------------------------------------ time

    def run(self) -> None:
        """Until nobody comes and nobody waits any more, or the workload's drain is over."""
        while True:
            now = self._clock.now()
            self._agenda.until(now)
            self._sampler.until(now)
            if self._over(now):
                break
            ran = self._turn(now)
            self._take_events()
            if not ran and not self._skip():
                break
        self._give_up()
        self.records.sort(key=lambda record: (record.sent, record.session, record.turn))

    def _turn(self, now: float) -> bool:
        until = self._next_moment()
        try:
            return not self._dead and self._machine.turn(now + 3600.0 if until is None else until, self._meanwhile)
        except EngineDeadError:
            self._dead = True
            self._machine.abort(FinishReason.ENGINE_FAILED)
            return True

    def _meanwhile(self) -> None:
        self._agenda.until(self._clock.now())

    def _next_moment(self) -> float | None:
        moments = [at for at in (self._agenda.next, self._machine.next_expiry()) if at is not None]
        return min(moments, default=None)

    def _skip(self) -> bool:
        """Nothing runs: go to where something happens. False when nothing will."""
        until = self._next_moment()
        if until is None:
            return False
        self._clock.advance(max(0.0, until - self._clock.now()))
        return True

    def _over(self, now: float) -> bool:
        end = max(self._last_arrival, self._workload.duration or 0.0)
        return bool(self._open) and now > end + self._workload.drain and self._agenda_is_late(end)

    def _agenda_is_late(self, end: float) -> bool:
        upcoming = self._agenda.next
        return upcoming is None or upcoming > end + self._workload.drain

    # ------------------------------------------------------------------ clients

    def _arrivals(self) -> Iterator[tuple[float, Act]]:
        lanes = self._workload.concurrency
        for session in self._source:
            yield session.at, functools.partial(self._arrive, session)
            if lanes is not None:
                lanes -= 1
                if lanes == 0:
                    return  # the others come when one of these is over

    def _arrive(self, session: Session, at: float) -> None:
        client = Client(session)
        self._send(client, at)

    def _send(self, client: Client, at: float) -> None:
        self._last_arrival = max(self._last_arrival, at)
        self._maker.begin(client)
        request = self._maker.request(client, at)
        record = self._maker.record(client, request)
        if self._dead:
            return self._end(client, record, at, "UNAVAILABLE", "the engine has died")
        try:
            self._gate.check(request, at)
        except OverloadedError as error:
            return self._end(client, record, at, "RESOURCE_EXHAUSTED", error.reason)
        self._open[request.id] = (client, record)
        self._machine.add(request)
        after = client.session.turns[client.turn].cancel_after
        if after is not None:
            self._agenda.at(at + after, functools.partial(self._cancel, request.id, CLIENT_CANCELLED))
        return None

    def _cancel(self, request: int, status: str, _at: float) -> None:
        if request in self._open:
            self._open[request][1].status = status
            self._machine.cancel(request, FinishReason.CANCELLED)

    def _take_events(self) -> None:
        now, live = self._clock.now(), self._open
        for event in self._machine.collect():
            if type(event) is TokensEvent:
                record = live[event.request][1]
                if event.first and record.stalled:
                    stop = functools.partial(self._cancel, event.request, "CANCELLED")
                    self._agenda.at(now + READER_STALL, stop)
                record.times.append(now)
                record.tokens.append(len(event.tokens))
            elif type(event) is RequestFinished:
                client, record = live.pop(event.request)
                self._maker.forget(event.request)
                self._gate.seen(event)
                timings = event.timings
                record.usage = Usage(
                    event.prompt_tokens, event.cached_tokens, sum(record.tokens), timings.queued, timings.prefill
                )
                status = OK if event.reason.is_success else record.status or STATUSES[event.reason]
                self._end(client, record, now, status, "" if event.reason.is_success else event.reason.value)

    def _end(self, client: Client, record: RequestRecord, now: float, status: str, detail: str) -> None:
        record.status, record.detail, record.end = status, detail, now
        self.records.append(record)
        if status == OK and client.turn + 1 < len(client.session.turns):
            client.context += (1,) * sum(record.tokens)
            client.turn += 1
            self._agenda.at(now + client.session.turns[client.turn].think, functools.partial(self._send, client))
        elif self._workload.concurrency is not None:
            self._next_lane(now)

    def _next_lane(self, now: float) -> None:
        """Closed loop: somebody comes for somebody who leaves."""
        duration = self._workload.duration
        session = next(self._source, None) if duration is None or now < duration else None
        if session is not None:
            self._agenda.at(now, functools.partial(self._arrive, session))

    def _give_up(self) -> None:
        for request in list(self._open):
            self._cancel(request, UNFINISHED, self._clock.now())
        if self._open and not self._dead:
            self._machine.abort(FinishReason.CANCELLED)
        self._take_events()
