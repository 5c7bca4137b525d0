"""Where others ask about the prefix cache of a running engine: the engine thread answers between two steps."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from server.cache_tasks import (
    CachedPrefix,
    CacheTask,
    ClearCache,
    Cleared,
    ListPrefixes,
    PinPrefix,
    PinPrompt,
    Tend,
    UnpinPrefix,
)
from server.errors import ServerError, UnavailableError


class PrefixDesk:
    """Any thread asks; what the engine refuses becomes the future's exception, a ServerError."""

    def __init__(self, post: Callable[[Tend], None]) -> None:
        """``post`` puts a command where the engine thread finds it."""
        self._post = post
        self._lock = threading.Lock()
        self._asked: dict[int, Future[Any]] = {}
        self._tickets = itertools.count(1)
        self._closed_because: str | None = None

    def pin(self, task: PinPrompt | PinPrefix) -> Future[CachedPrefix]:
        return self._ask(task)

    def unpin(self, task: UnpinPrefix) -> Future[bool]:
        """False where it was not pinned."""
        return self._ask(task)

    def list(self, task: ListPrefixes) -> Future[list[CachedPrefix]]:
        return self._ask(task)

    def clear(self, task: ClearCache) -> Future[Cleared]:
        return self._ask(task)

    def _ask(self, task: CacheTask) -> Future[Any]:
        answer: Future[Any] = Future()
        with self._lock:
            if self._closed_because is not None:
                answer.set_exception(UnavailableError(self._closed_because))
                return answer
            ticket = next(self._tickets)
            self._asked[ticket] = answer
        self._post(Tend(ticket, task))
        return answer

    # ------------------------------------------------------------------ the engine thread

    def perform(self, command: Tend, tend: Callable[[CacheTask], object]) -> None:
        """Have ``tend`` do what was asked, and answer."""
        answer = self._asked.pop(command.ticket, None)
        if answer is None or not answer.set_running_or_notify_cancel():
            return  # who asked has gone
        try:
            answer.set_result(tend(command.task))
        except ServerError as error:
            answer.set_exception(error)

    def close(self, because: str) -> None:
        """Nobody will answer any more."""
        with self._lock:
            self._closed_because = because
            asked, self._asked = self._asked, {}
        for answer in asked.values():
            if answer.set_running_or_notify_cancel():
                answer.set_exception(UnavailableError(because))
