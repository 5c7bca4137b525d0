"""Sends one process's share of a workload at its times and measures what comes back.

Open loop: a request is sent at its time whatever became of the ones before it, so a slow server cannot slow its own
measurement down (no coordinated omission); how late the client itself was stands in every record.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator

import numpy as np

from loadtest.errors import TargetError
from loadtest.measured import Measured
from loadtest.progress import Progress
from loadtest.prompts import PromptMaker
from loadtest.record import CLIENT_CANCELLED, UNFINISHED, RequestRecord
from loadtest.sessions import Session, SessionMaker
from loadtest.transports.base import Ask, Call, Transport

AHEAD = 64
"""Requests that are encoded before their time, at most."""
ENCODE_MARGIN = 0.005
"""No encoding is begun within this many seconds of the next sending."""


class Encoded:
    """A session whose first request is ready to go."""

    def __init__(self, session: Session, ask: Ask, body: bytes) -> None:
        self.session = session
        self.ask = ask
        self.body = body


class Driver:
    """One event loop's client. ``emit`` is called with each finished record, on the loop."""

    def __init__(
        self,
        transport: Transport,
        maker: SessionMaker,
        prompts: PromptMaker,
        emit: Callable[[RequestRecord], None],
        *,
        share: int = 0,
        shares: int = 1,
        send_text: bool = False,
    ) -> None:
        self._transport = transport
        self._maker = maker
        self._workload = maker.workload
        self._prompts = prompts
        self._emit = emit
        self._share, self._shares = share, shares
        self._as_text = send_text or not transport.takes_ids
        self._start = 0.0
        self._calls: set[Call] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self._failure: BaseException | None = None
        self.progress = Progress()

    async def run(self, start: float) -> None:
        """Send from ``start`` (monotonic clock) on; returns when every request is over. Raises WorkloadError."""
        self._start = start
        lanes = self._workload.concurrency
        await (self._open_loop() if lanes is None else self._closed_loop(lanes))
        await self._drain()

    # ------------------------------------------------------------------ loops

    async def _open_loop(self) -> None:
        source = itertools.islice(self._maker.sessions(), self._share, None, self._shares)
        ready: deque[Encoded] = deque()
        while await self._fill(ready, source):
            item = ready.popleft()
            await self._until(self._start + item.session.at)
            self._spawn(self._session(item, due=self._start + item.session.at))

    async def _fill(self, ready: deque[Encoded], source: Iterator[Session]) -> bool:
        """Encode ahead while there is time; False when there is nothing left to send."""
        while len(ready) < AHEAD:
            if ready and self._start + ready[0].session.at - time.monotonic() < ENCODE_MARGIN:
                break
            session = next(source, None)
            if session is None:
                break
            ready.append(self._encode_first(session))
            await asyncio.sleep(0)
        return bool(ready)

    async def _closed_loop(self, lanes: int) -> None:
        mine = lanes // self._shares + (self._share < lanes % self._shares)
        source = itertools.islice(self._maker.sessions(), self._share, None, self._shares)
        await self._until(self._start)
        await asyncio.gather(*(self._lane(source) for _ in range(mine)))

    async def _lane(self, source: Iterator[Session]) -> None:
        duration = self._workload.duration
        while duration is None or time.monotonic() < self._start + duration:
            session = next(source, None)
            if session is None:
                return
            item = self._encode_first(session)
            task = self._spawn(self._session(item, due=time.monotonic()))
            if not await self._over_in_time(task):
                return

    async def _over_in_time(self, session: asyncio.Task[None]) -> bool:
        """Wait for a session; False where the run's end has come, or where nothing at all came for as long as a drain."""
        end = None if self._workload.duration is None else self._start + self._workload.duration + self._workload.drain
        while not session.done():
            seen = self.progress.all_messages
            limit = self._workload.drain if end is None else end - time.monotonic()
            await asyncio.wait({session}, timeout=limit)
            if not session.done() and (end is not None or self.progress.all_messages == seen):
                return False
        return True

    async def _until(self, moment: float) -> None:
        # Twice, because a timer may fire a hair early.
        for _ in range(2):
            await asyncio.sleep(max(0.0, moment - time.monotonic()))

    # ------------------------------------------------------------------ sessions

    def _encode_first(self, session: Session) -> Encoded:
        given = session.given
        if given is not None and given.text:
            ask = self._ask(session, 0, None, given.text)
        else:
            ids = self._prompts.first(session)
            ask = self._ask(session, 0, ids, self._prompts.space.text(ids) if self._as_text else None)
        return Encoded(session, ask, self._transport.encode(ask))

    async def _session(self, item: Encoded, *, due: float) -> None:
        session, ask, body = item.session, item.ask, item.body
        for number in range(len(session.turns)):
            measured = await self._request(session, number, ask, body, due)
            record = await measured.over
            if not record.ok or self._closing or number + 1 == len(session.turns):
                return
            await asyncio.sleep(session.turns[number + 1].think)
            due = time.monotonic()
            ask = self._next_ask(session, number + 1, ask, measured)
            body = self._transport.encode(ask)

    async def _request(self, session: Session, number: int, ask: Ask, body: bytes, due: float) -> Measured:
        measured = Measured(self._start, self.progress, self._emit)
        sent = time.monotonic()
        warmup = due - self._start < self._workload.warmup
        measured.begin(session, number, ask, due=due, sent=sent, warmup=warmup)
        try:
            call = await self._transport.start(ask, body, measured)
        except TargetError as error:
            measured.on_over("UNAVAILABLE", str(error), time.monotonic())
            return measured
        self._calls.add(call)
        measured.over.add_done_callback(lambda _: self._calls.discard(call))
        after = session.turns[number].cancel_after
        if after is not None:
            asyncio.get_running_loop().call_later(after, call.cancel, CLIENT_CANCELLED, "the workload cancelled it")
        return measured

    def _ask(self, session: Session, number: int, ids: np.ndarray | None, text: str | None) -> Ask:
        turn, workload = session.turns[number], self._workload
        return Ask(
            ids=ids if text is None else None,
            text=text,
            max_tokens=turn.output_tokens,
            priority=session.priority,
            salt=session.tenant,
            ttft_deadline=workload.behaviour.ttft_deadline,
            deadline=workload.behaviour.deadline,
            ignore_end=workload.ignore_end,
            stalls=turn.stalls,
        )

    def _next_ask(self, session: Session, number: int, before: Ask, answer: Measured) -> Ask:
        """The conversation so far, the server's answer included, and what the client says now."""
        fresh = self._prompts.later(session, number)
        if before.ids is not None:
            joined = np.concatenate([before.ids, np.array(answer.answer_ids, np.int32), fresh])
            return self._ask(session, number, joined, None)
        text = (before.text or "") + "".join(answer.answer_text) + self._prompts.space.text(fresh)
        return self._ask(session, number, None, text)

    # ------------------------------------------------------------------ the end

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_session_over)
        return task

    def _on_session_over(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure = self._failure or error

    async def _drain(self) -> None:
        """Let the rest finish; cancel what does not within the drain. Raises what a session raised."""
        ended = max(time.monotonic(), self._start + (self._workload.duration or 0.0))
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=ended + self._workload.drain - time.monotonic())
            if late:
                await self._give_up(late)
        if self._failure is not None:
            raise self._failure

    async def _give_up(self, late: set[asyncio.Task[None]]) -> None:
        self._closing = True
        for call in list(self._calls):
            call.cancel(UNFINISHED, f"not over {self._workload.drain:g} s after the last arrival")
        _, stuck = await asyncio.wait(late, timeout=1.0)
        for task in stuck:
            task.cancel()
