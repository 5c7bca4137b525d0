"""One request while it is measured."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable

from loadtest.progress import Progress
from loadtest.record import RequestRecord, Usage
from loadtest.sessions import Session
from loadtest.transports.base import Ask


class Measured:
    """Takes a transport's events (see transports.base.Measurement); ``over`` is done once the request is."""

    def __init__(self, start: float, progress: Progress, emit: Callable[[RequestRecord], None]) -> None:
        self._start = start
        self._progress = progress
        self._emit = emit
        self._times = array("d")
        self._tokens = array("i")
        self._usage = Usage()
        self.answer_ids: list[int] = []
        self.answer_text: list[str] = []
        self.over: asyncio.Future[RequestRecord] = asyncio.get_running_loop().create_future()

    def begin(self, session: Session, turn: int, ask: Ask, *, due: float, sent: float, warmup: bool) -> None:
        """The request is about to be sent. ``due`` and ``sent`` on the monotonic clock."""
        self._record = RequestRecord(
            session=session.index,
            turn=turn,
            due=due - self._start,
            sent=sent - self._start,
            end=0.0,
            status="",
            detail="",
            priority=session.priority,
            tenant=session.tenant,
            prompt_tokens=len(ask.ids) if ask.ids is not None else 0,
            max_tokens=ask.max_tokens,
            usage=self._usage,
            stalled=ask.stalls,
            warmup=warmup,
            times=self._times,
            tokens=self._tokens,
        )
        self._progress.on_sent()

    def on_content(self, tokens: int, now: float, *, ids: list[int] | None = None, text: str = "") -> None:
        self._times.append(now - self._start)
        self._tokens.append(tokens)
        self._progress.on_content(tokens)
        if ids:
            self.answer_ids += ids
        if text:
            self.answer_text.append(text)

    def on_usage(self, usage: Usage) -> None:
        self._usage = usage

    def on_over(self, status: str, detail: str, now: float) -> None:
        record = self._record
        record.end = now - self._start
        record.status, record.detail, record.usage = status, detail, self._usage
        self._progress.on_record(record)
        self._emit(record)
        if not self.over.done():
            self.over.set_result(record)
