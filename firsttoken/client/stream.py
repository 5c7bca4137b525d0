"""The sync stream: an iterator of deltas that is cancelled by leaving it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

import grpc

from firsttoken.client.outputs import Answer, Delta, Final, PromptEcho
from firsttoken.client.record import REQUEST_ID_KEY, StreamRecord
from firsttoken.client.retries import Attempts
from firsttoken.errors import StreamStateError
from protos.firsttoken.v1 import generation_pb2 as pb


class Stream:
    """The output of one request, as it appears::

        for delta in client.generate("The capital of France is"):
            print(delta.text, end="", flush=True)

    Leaving the loop early, close() and the end of a ``with`` block cancel the request: the server stops computing it.
    One thread reads; any thread may close(), which ends the reading one with CallCancelledError.
    Reading raises the CallErrors of :mod:`firsttoken.errors`.
    """

    def __init__(self, send: Callable[[float | None], Any], attempts: Attempts) -> None:
        self._send = send
        self._attempts = attempts
        self._record = StreamRecord()
        self._closed = threading.Event()
        self._call = send(attempts.remaining())

    def __iter__(self) -> Iterator[Delta]:
        return self._deltas()

    def text(self) -> str:
        """Read to the end; the whole text, of several outputs the first one's."""
        for _ in self:
            pass
        return self._record.text

    def answer(self) -> Answer:
        """Read to the end; everything that came: each output's text, tokens and log-probabilities, the prompt, the end."""
        for _ in self:
            pass
        return self._record.answer

    @property
    def final(self) -> Final:
        """How the request ended. Raises StreamStateError before it has."""
        return self._record.final

    @property
    def prompt(self) -> PromptEcho | None:
        """What has come of the prompt so far, where ``echo`` or ``prompt_logprobs`` asked for it; it comes before the output."""
        return self._record.prompt

    @property
    def request_id(self) -> str | None:
        """The request's name in the server's logs and for abort(): yours or the server's. None before the first message."""
        return self._record.request_id

    @property
    def first_token_seconds(self) -> float | None:
        """From sending the request until its first token was here; None while there is none. Retries count."""
        return self._record.first_token_seconds

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens after the first, by the time since the first; None with fewer than two."""
        return self._record.tokens_per_second

    def close(self) -> None:
        """Cancel the request if it still runs. Idempotent."""
        self._closed.set()
        self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _deltas(self) -> Iterator[Delta]:
        if self._record.ended:
            return
        if self._closed.is_set():
            raise StreamStateError("the stream was closed before its end")
        try:
            while (message := self._next_message()) is not None:
                if (delta := self._record.take(message)) is not None:
                    yield delta
        finally:
            self.close()
        self._record.require_end()

    def _next_message(self) -> pb.GenerateResponse | None:
        """The next message, after as many attempts as it takes; None at the end."""
        while True:
            try:
                message: pb.GenerateResponse | None = next(self._call, None)
            except grpc.RpcError as failure:
                self._again(failure)
            else:
                if not self._record.messages:
                    self._record.request_id = dict(self._call.initial_metadata()).get(REQUEST_ID_KEY)
                return message

    def _again(self, failure: grpc.RpcError) -> None:
        """Send the call again, after a while. Raises the failure's CallError where that must not be done."""
        taken = bool(self._record.messages or self._call.initial_metadata())
        delay = self._attempts.next_delay(failure, taken=taken)
        if self._closed.wait(delay):
            raise StreamStateError("the stream was closed before its end") from failure
        self._call = self._send(self._attempts.remaining())
        if self._closed.is_set():  # meanwhile: close() may have cancelled the call before this one
            self._call.cancel()
