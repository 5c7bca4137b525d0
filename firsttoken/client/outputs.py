"""What a request brings back, as plain frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class FinishReason(Enum):
    """Why an output ended."""

    END = "end"
    """The model ended its text."""
    STOP_TOKEN = "stop_token"
    STOP_STRING = "stop_string"
    LENGTH = "length"
    """``max_tokens``, or the model's context, is used up."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token and the natural logarithm of its probability."""

    token: int
    logprob: float


@dataclass(frozen=True, slots=True)
class PositionLogprobs:
    """One position's log-probability, of the model's own distribution: before temperature, penalties, filters and guide."""

    logprob: float
    """Of the token that stands there."""
    top: tuple[TokenLogprob, ...]
    """The likeliest, best first, as many as ``logprobs`` asked for."""


@dataclass(frozen=True, slots=True)
class Delta:
    """New output."""

    text: str
    """Appended to all text of the same index before it, this is that output so far."""
    tokens: tuple[int, ...]
    """New token ids; they may run ahead of the text, which waits while it is half a character or may become a stop string."""
    index: int = 0
    """Which of the request's ``n`` outputs."""
    logprobs: tuple[PositionLogprobs, ...] = ()
    """One for each of ``tokens``, where ``logprobs`` asked for them."""


@dataclass(frozen=True, slots=True)
class PromptEcho:
    """The prompt as the server saw it, where ``echo`` or ``prompt_logprobs`` asked for it."""

    text: str
    """Special tokens written out; empty without ``echo``."""
    tokens: tuple[int, ...]
    """Empty without ``echo``."""
    logprobs: tuple[PositionLogprobs, ...]
    """Of its tokens from ``first_logprob`` on; empty without ``prompt_logprobs``."""
    first_logprob: int
    """Place in the prompt, from 0, of the first of ``logprobs``: the first token has none."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What was used, in tokens, by all outputs together. Each is counted once."""

    prompt_tokens: int
    cached_tokens: int
    """Of the prompt's, how many came out of the prefix cache."""
    completion_tokens: int
    """The end-of-sequence or stop token included."""
    discarded_tokens: int
    """Generated and thrown away, because the output had ended before them."""


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time went, in seconds on the server's clock."""

    queued: float
    """From arrival until the prompt's computation began."""
    prefill: float
    """From there until the first token."""
    first_token: float
    """From arrival until the first token; 0 where there was none."""
    total: float


@dataclass(frozen=True, slots=True)
class OutputEnd:
    """The end of one output."""

    index: int
    finish_reason: FinishReason
    stop_string: str | None
    """The stop string that ended it, if one did."""
    completion_tokens: int
    """The end-of-sequence or stop token included."""


@dataclass(frozen=True, slots=True)
class Final:
    """The end of a request that succeeded."""

    finish_reason: FinishReason
    """Of several outputs, the first one's."""
    usage: Usage
    timings: Timings
    stop_string: str | None
    """The stop string that ended the first output, if one did."""
    seed: int | None
    """The seed that was used; None for greedy requests."""
    outputs: tuple[OutputEnd, ...] = ()
    """Each output's own end, by index."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One output, whole."""

    index: int
    text: str
    tokens: tuple[int, ...]
    """End-of-sequence and stop tokens are not among them, unless ``include_stop`` says so."""
    logprobs: tuple[PositionLogprobs, ...]
    """One for each of ``tokens``, where ``logprobs`` asked for them."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A request's whole answer."""

    outputs: tuple[Completion, ...]
    """By index; as many as ``n`` asked for."""
    prompt: PromptEcho | None
    """Where ``echo`` or ``prompt_logprobs`` asked for it."""
    final: Final

    @property
    def text(self) -> str:
        """Of the first output."""
        return self.outputs[0].text
