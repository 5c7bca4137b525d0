"""What a stream has brought so far: shared by the sync and the async stream."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from firsttoken.client.outputs import Answer, Completion, Delta, Final, PositionLogprobs, PromptEcho
from firsttoken.client.replies import delta_of, final_of, prompt_of
from firsttoken.errors import ServerFaultError, StreamStateError
from protos.firsttoken.v1 import generation_pb2 as pb

REQUEST_ID_KEY = "firsttoken-request-id"
"""Where the server's initial metadata name the request."""


@dataclass(slots=True)
class _Output:
    """One output so far."""

    texts: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    logprobs: list[PositionLogprobs] = field(default_factory=list)

    def completion(self, index: int) -> Completion:
        return Completion(index, "".join(self.texts), tuple(self.tokens), tuple(self.logprobs))


class StreamRecord:
    """Follows one stream's messages. Times are seconds from the first sending, on this machine's clock."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._outputs: dict[int, _Output] = {}
        self._final: Final | None = None
        self.prompt: PromptEcho | None = None
        self.request_id: str | None = None
        self.messages = 0
        self.first_token_seconds: float | None = None
        self.last_token_seconds: float | None = None
        self.tokens = 0

    @property
    def ended(self) -> bool:
        return self._final is not None

    @property
    def text(self) -> str:
        """Of the first output."""
        return "".join(self._outputs[0].texts) if 0 in self._outputs else ""

    @property
    def answer(self) -> Answer:
        """Raises StreamStateError before the end."""
        final = self.final
        indices = sorted(self._outputs.keys() | {end.index for end in final.outputs})
        outputs = tuple(self._outputs.get(index, _Output()).completion(index) for index in indices)
        return Answer(outputs, self.prompt, final)

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
        """Note a message. The delta that it carries, or None for what is none."""
        self.messages += 1
        if message.HasField("final"):
            self._final = final_of(message.final)
            return None
        if message.HasField("prompt"):
            self._take_prompt(prompt_of(message.prompt))
            return None
        delta = delta_of(message.delta)
        self._take_delta(delta)
        return delta

    def _take_prompt(self, part: PromptEcho) -> None:
        """Its parts add up; only the first has text and ids."""
        whole = self.prompt
        if whole is None:
            self.prompt = part
        elif whole.logprobs:
            self.prompt = replace(whole, logprobs=whole.logprobs + part.logprobs)
        else:
            self.prompt = replace(whole, logprobs=part.logprobs, first_logprob=part.first_logprob)

    def _take_delta(self, delta: Delta) -> None:
        output = self._outputs.setdefault(delta.index, _Output())
        output.texts.append(delta.text)
        output.tokens += delta.tokens
        output.logprobs += delta.logprobs
        self.tokens += len(delta.tokens)
        self.last_token_seconds = self._clock() - self._began
        if self.first_token_seconds is None:
            self.first_token_seconds = self.last_token_seconds

    def require_end(self) -> None:
        """The call ended with OK: its final message must have come."""
        if self._final is None:
            raise ServerFaultError("the stream ended without its final message", status="OK")
