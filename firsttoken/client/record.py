"""What a stream has brought so far: shared by the sync and the async stream."""

from __future__ import annotations

import time
from collections.abc import Callable

from firsttoken.client.replies import delta_of, final_of
from firsttoken.client.values import Delta, Final
from firsttoken.errors import ServerFaultError, StreamStateError
from protos.firsttoken.v1 import generation_pb2 as pb


class StreamRecord:
    """Follows one stream's messages. Times are seconds from the first sending, on this machine's clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._texts: list[str] = []
        self._final: Final | None = None
        self.messages = 0
        self.first_token_seconds: float | None = None
        self.last_token_seconds: float | None = None
        self.tokens = 0

    @property
    def ended(self) -> bool:
        return self._final is not None

    @property
    def text(self) -> str:
        return "".join(self._texts)

    @property
    def final(self) -> Final:
        if self._final is None:
            raise StreamStateError("the stream has not ended yet: read it first")
        return self._final

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens after the first by the time since the first."""
        if self.first_token_seconds is None or self.last_token_seconds is None or self.tokens < 2:
            return None
        took = self.last_token_seconds - self.first_token_seconds
        return (self.tokens - 1) / took if took > 0 else None

    def take(self, message: pb.GenerateResponse) -> Delta | None:
        """Note a message. The delta that it carries, or None for the final one."""
        self.messages += 1
        if message.HasField("final"):
            self._final = final_of(message.final)
            return None
        delta = delta_of(message.delta)
        self._texts.append(delta.text)
        self.tokens += len(delta.tokens)
        self.last_token_seconds = self._clock() - self._began
        if self.first_token_seconds is None:
            self.first_token_seconds = self.last_token_seconds
        return delta

    def require_end(self) -> None:
        """The call ended with OK: its final message must have come."""
        if self._final is None:
            raise ServerFaultError("the stream ended without its final message", status="OK")
