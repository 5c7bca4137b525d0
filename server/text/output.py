"""The text of one sequence as its client sees it: detokenized, cut at the stop, without the tokens that end it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from server.engine import FinishReason
from server.text.stops import NO_STOPS, StopMatcher, StopStrings
from server.text.tokenizer import TextTokenizer


class StopHit(msgspec.Struct, frozen=True):
    """A stop string is complete."""

    string: str
    after_token: int
    """The sequence's token, counted from 1 and hidden ones included, with which it became complete: for Engine.stop()."""


class OutputDelta(msgspec.Struct, frozen=True):
    """What is new. ``tokens`` may run ahead of ``text``, which is held back while it is half a character or may become a stop."""

    tokens: tuple[int, ...] = ()
    text: str = ""
    stopped: StopHit | None = None
    """Set once, in the delta whose text ends at the stop."""
    reason: FinishReason | None = None
    """Set by finish() only."""

    def __bool__(self) -> bool:
        """Whether there is anything to send."""
        return bool(self.tokens or self.text)


class OutputText:
    """Turns the tokens of one sequence into deltas. One thread at a time; cost per call in proportion to the new tokens.

    ``hidden_ids`` are the ids at which the engine ends this request: its end-of-sequence and stop tokens. They show neither
    among the tokens nor in the text. Special tokens show among the tokens only.
    """

    __slots__ = ("_detokenizer", "_hidden", "_include_stop", "_stops", "stopped", "tokens_seen")

    def __init__(
        self,
        tokenizer: TextTokenizer,
        *,
        prompt_ids: Sequence[int] = (),
        stop_strings: StopStrings | Sequence[str] = NO_STOPS,
        hidden_ids: Collection[int] = (),
        include_stop: bool = False,
    ) -> None:
        """``include_stop``: the text ends behind the stop string instead of before it."""
        strings = stop_strings if isinstance(stop_strings, StopStrings) else StopStrings(stop_strings)
        self._detokenizer = tokenizer.detokenizer(prompt_ids)
        self._stops = StopMatcher(strings)
        self._hidden = hidden_ids if isinstance(hidden_ids, frozenset) else frozenset(hidden_ids)
        self._include_stop = include_stop
        self.tokens_seen = 0
        """Tokens fed so far, hidden ones included, those after a stop not."""
        self.stopped: StopHit | None = None

    def feed(self, tokens: Sequence[int]) -> OutputDelta:
        """Take the sequence's next tokens. Those after a stop are ignored: they are not part of the output."""
        if self.stopped is not None:
            return OutputDelta()
        shown: list[int] = []
        texts: list[str] = []
        for token in tokens:
            self.tokens_seen += 1
            if token in self._hidden:
                continue
            shown.append(token)
            if self._scan(self._detokenizer.feed(token), texts):
                break
        return OutputDelta(tuple(shown), "".join(texts), self.stopped)

    def finish(self, reason: FinishReason) -> OutputDelta:
        """The sequence is over: whatever was held back. Call once, last.

        A stop string that cut the text is the reason, even where the engine ended the sequence at the same token for another
        one (its last permitted token can complete a stop string); a failure stays a failure.
        """
        if self.stopped is not None:
            return OutputDelta(reason=self._resolve(reason))
        texts: list[str] = []
        if not self._scan(self._detokenizer.finish(), texts):
            texts.append(self._stops.finish())
        return OutputDelta((), "".join(texts), self.stopped, self._resolve(reason))

    def _scan(self, text: str, texts: list[str]) -> bool:
        """Append what of ``text`` is certain to ``texts``; True when it completed a stop string."""
        if not text:
            return False
        scan = self._stops.feed(text)
        texts.append(scan.text)
        if scan.stop is not None:
            self.stopped = StopHit(scan.stop, self.tokens_seen)
            if self._include_stop:
                texts.append(scan.stop)
        return scan.stop is not None

    def _resolve(self, reason: FinishReason) -> FinishReason:
        return FinishReason.STOP_STRING if self.stopped is not None and reason.is_success else reason
