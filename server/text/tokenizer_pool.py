"""Tokenizing off the event loop: a few threads, a bounded number of jobs."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from server.errors import OverloadedError, UnavailableError
from server.text.chat import ChatMessage, ChatTemplate, Conversation
from server.text.tokenizer import TextTokenizer

_T = TypeVar("_T")
_LONG = 32_768
"""Characters, or ids, from which on a job is long: some 5 to 10 ms."""
_SMOOTHING = 0.1
_SHORTEST_RETRY = 0.05


class TokenizerPool:
    """Runs a TextTokenizer's work in threads. The coroutines belong to one event loop; the sizes were checked before.

    The tokenizer gives up the interpreter's lock, so that the loop and the engine thread go on meanwhile. Texts of up to
    ``inline_characters`` are encoded where they are: that takes less time than handing them to a thread and back (measured:
    75 us for 256 characters, against 100 us and more for the hand-over). Long texts have threads of their own: a prompt of
    a million characters takes as long as a thousand short ones, which must not wait behind it.
    """

    def __init__(
        self, tokenizer: TextTokenizer, *, workers: int = 2, max_jobs: int = 1024, inline_characters: int = 256
    ) -> None:
        """``workers``: threads for short texts; half as many, at least one, are for long ones.
        ``max_jobs``: running and waiting together; one more is refused."""
        self.tokenizer = tokenizer
        self._workers = workers
        self._max_jobs = max_jobs
        self._inline = inline_characters
        self._short = ThreadPoolExecutor(workers, thread_name_prefix="tokenizer")
        self._long = ThreadPoolExecutor(max(1, workers // 2), thread_name_prefix="tokenizer-long")
        self._lock = threading.Lock()
        self._jobs = 0
        self._job_seconds = 0.0
        self._closed = False

    @property
    def jobs(self) -> int:
        """Running and waiting. Any thread may ask."""
        return self._jobs

    async def encode(self, text: str, *, field: str = "prompt.text") -> list[int]:
        """See TextTokenizer.encode. Raises InvalidRequestError, OverloadedError and UnavailableError (closed)."""
        if len(text) <= self._inline and not self._closed:
            return self.tokenizer.encode(text, field=field)
        return await self._run(len(text), lambda: self.tokenizer.encode(text, field=field))

    async def encode_chat(
        self,
        template: ChatTemplate,
        conversation: Conversation | Sequence[ChatMessage],
        *,
        field: str = "prompt.messages",
    ) -> list[int]:
        """See TextTokenizer.encode_chat. Raises as encode()."""
        messages = conversation.messages if isinstance(conversation, Conversation) else conversation
        size = sum(len(message.role) + len(message.content) for message in messages)
        return await self._run(size, lambda: self.tokenizer.encode_chat(template, conversation, field=field))

    async def encode_words(self, words: Sequence[str], *, field: str) -> list[list[int]]:
        """The ids of each word, alone and after a space. Raises as encode()."""

        def encode() -> list[list[int]]:
            spaced = [form for word in words for form in (word, word if word[0].isspace() else f" {word}")]
            return [self.tokenizer.encode(form, add_bos=False, field=field) for form in spaced]

        return await self._run(sum(map(len, words)), encode)

    async def decode(self, ids: Sequence[int], *, show_special_tokens: bool = False, field: str = "ids") -> str:
        """See TextTokenizer.decode. Raises as encode()."""
        return await self._run(
            len(ids), lambda: self.tokenizer.decode(ids, show_special_tokens=show_special_tokens, field=field)
        )

    def close(self) -> None:
        """Drop the jobs that wait, wait for those that run. Idempotent."""
        with self._lock:
            self._closed = True
        for executor in (self._short, self._long):
            executor.shutdown(wait=True, cancel_futures=True)

    async def _run(self, size: int, job: Callable[[], _T]) -> _T:
        """Run a job in a thread. Cancelled while it waits, it never runs."""
        future = self._submit(self._long if size >= _LONG else self._short, job)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._closed and task is not None and not task.cancelling():
                raise _closed() from None  # close() dropped the job; nobody cancelled the caller
            raise

    def _submit(self, executor: ThreadPoolExecutor, job: Callable[[], _T]) -> Future[_T]:
        with self._lock:
            if self._closed:
                raise _closed()
            if self._jobs >= self._max_jobs:
                raise self._overloaded()
            self._jobs += 1
            future = executor.submit(self._timed, job)
        future.add_done_callback(self._done)
        return future

    def _timed(self, job: Callable[[], _T]) -> _T:
        began = time.perf_counter()
        try:
            return job()
        finally:
            self._job_seconds += _SMOOTHING * (time.perf_counter() - began - self._job_seconds)

    def _done(self, _: Future[_T]) -> None:
        with self._lock:
            self._jobs -= 1

    def _overloaded(self) -> OverloadedError:
        wait = max(_SHORTEST_RETRY, self._jobs * self._job_seconds / self._workers)
        return OverloadedError(
            f"{self._jobs} texts wait to be tokenized, the limit is {self._max_jobs}",
            reason="tokenizer",
            retry_after=wait,
        )


def _closed() -> UnavailableError:
    return UnavailableError("the server is shutting down")
