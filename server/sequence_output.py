"""One sequence's record: what came of it, what counts, and its one end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from server.engine import FinishReason, SequenceFinished
from server.text.output import OutputDelta, StopHit

Likeliest = tuple[tuple[int, float], ...]
"""The likeliest tokens of one position with their log-probabilities, best first."""


class TextStage(Protocol):
    """The text of one sequence: :class:`server.text.output.OutputText`."""

    stopped: StopHit | None
    tokens_seen: int

    def feed(self, tokens: Sequence[int]) -> OutputDelta: ...

    def finish(self, reason: FinishReason) -> OutputDelta: ...


class Delta(NamedTuple):
    """New output of one sequence, all that was waiting."""

    sequence: int
    tokens: list[int]
    """End-of-sequence and stop tokens are not among them."""
    text: str
    logprobs: Sequence[float] = ()
    """One for each of ``tokens``, where asked for."""
    top: Sequence[Likeliest] = ()
    """As ``logprobs``."""


class SequenceOutput:
    """A sequence ends once: where the text stage finds a stop string, or where the engine ends it, whichever comes first in the
    order of its tokens. Event loop only."""

    __slots__ = ("_generated", "_logprobs", "_received", "_text", "_texts", "_tokens", "_top", "ended", "index")

    def __init__(self, index: int, text: TextStage) -> None:
        self.index = index
        self.ended: FinishReason | None = None
        self._text = text
        self._received = 0
        """Tokens that the engine delivered."""
        self._generated = 0
        """Tokens that the engine says it generated; 0 until it ended the sequence."""
        self._tokens: list[int] = []
        self._texts: list[str] = []
        self._logprobs: list[float] = []
        self._top: list[Likeliest] = []

    @property
    def completion_tokens(self) -> int:
        """Tokens up to the end, which count and are billed."""
        return self._text.tokens_seen

    @property
    def discarded_tokens(self) -> int:
        return max(self._received, self._generated) - self._text.tokens_seen

    @property
    def stop_string(self) -> str:
        """What ended the output; empty where it was no stop string."""
        return self._text.stopped.string if self._text.stopped is not None else ""

    def take(self, tokens: Sequence[int], logprobs: Sequence[float] = (), top: Sequence[Likeliest] = ()) -> bool:
        """Further tokens. True where they complete a stop string, which ends the sequence here and now."""
        self._received += len(tokens)
        if self.ended is not None:
            return False
        new = self._text.feed(tokens)
        self._keep(new)
        if logprobs:
            # Hidden tokens, and those after a stop, come last: those shown are the first.
            self._logprobs.extend(logprobs[: len(new.tokens)])
            self._top.extend(top[: len(new.tokens)])
        if self._text.stopped is None:
            return False
        self.ended = FinishReason.STOP_STRING
        return True

    def finish(self, event: SequenceFinished) -> None:
        """The engine ended the sequence. Without effect on the end where the text stage came first."""
        self._generated = event.completion_tokens + event.discarded_tokens
        if self.ended is None:
            last = self._text.finish(event.reason)
            self._keep(last)
            self.ended = last.reason or event.reason

    def abort(self, reason: FinishReason) -> None:
        """The request ended without success. Without effect on a sequence that has its end."""
        if self.ended is None:
            self.ended = reason

    def drain(self) -> Delta | None:
        """What no reader has had yet; None where there is nothing."""
        if not self._tokens and not self._texts:
            return None
        delta = Delta(self.index, self._tokens, "".join(self._texts), self._logprobs, self._top)
        self._tokens, self._texts = [], []
        if self._logprobs:
            self._logprobs, self._top = [], []
        return delta

    def _keep(self, new: OutputDelta) -> None:
        self._tokens.extend(new.tokens)
        if new.text:
            self._texts.append(new.text)
