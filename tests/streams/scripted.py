"""Streams without sockets and threads: a silent engine, a recording observer, events by hand."""

from __future__ import annotations

from dataclasses import dataclass, field

from engines.sampling.params import SamplingParams
from engines.simulated.tokenizer import tokenizer_json
from server.engine import (
    Event,
    FinishReason,
    GenerationRequest,
    PriorityClass,
    RequestFinished,
    SequenceFinished,
    Timings,
    TokensEvent,
)
from server.stream_registry import StreamRegistry
from server.streams import Stream
from server.text.output import OutputText
from server.text.tokenizer import TextTokenizer
from tests.fakes.fake_engine import END, FakeEngine

TOKENIZER = TextTokenizer.from_json(tokenizer_json())


@dataclass
class Recorder:
    firsts: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    settled_streams: list[Stream] = field(default_factory=list)

    def first_delta(self, request: GenerationRequest, seconds: float) -> None:
        self.firsts.append(seconds)

    def next_delta(self, request: GenerationRequest, seconds_per_token: float) -> None:
        self.gaps.append(seconds_per_token)

    def settled(self, stream: Stream) -> None:
        self.settled_streams.append(stream)


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


class Desk:
    """A registry with what tests need around it."""

    def __init__(self) -> None:
        self.engine = FakeEngine()
        self.observer = Recorder()
        self.clock = Clock()
        self.registry = StreamRegistry(self.engine, self.observer, self.clock)

    def open(self, *, stops: tuple[str, ...] = (), stop_ids: tuple[int, ...] = (), max_tokens: int = 100) -> Stream:
        request = GenerationRequest(
            id=self.registry.new_id(),
            prompt=(72, 105),
            max_tokens=max_tokens,
            sampling=SamplingParams(),
            end_ids=(END,),
            stop_ids=stop_ids,
            priority=PriorityClass.INTERACTIVE,
            tenant="",
            cache_salt=b"",
            arrival=self.clock.now,
            deadline=None,
            ttft_deadline=None,
        )
        text = OutputText(TOKENIZER, prompt_ids=request.prompt, stop_strings=stops, hidden_ids={END, *stop_ids})
        return self.registry.open(request, [text])


def tokens(stream: Stream, data: bytes | tuple[int, ...], *, first: bool = False) -> TokensEvent:
    return TokensEvent(stream.request.id, 0, tuple(data), first=first)


def ending(stream: Stream, reason: FinishReason, completion: int, discarded: int = 0) -> list[Event]:
    timings = Timings(0.0, 0.1, 0.1, 0.2)
    return [
        SequenceFinished(stream.request.id, 0, reason, completion, discarded),
        RequestFinished(stream.request.id, reason, len(stream.request.prompt), 0, timings),
    ]


async def read_all(stream: Stream) -> tuple[bytes, str]:
    """What a reader gets. The events must already be there, or somebody must deliver them meanwhile."""
    ids: list[int] = []
    text = ""
    while deltas := await stream.read():
        for delta in deltas:
            ids += delta.tokens
            text += delta.text
    return bytes(ids), text
