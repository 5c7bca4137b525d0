"""What passes between the server and an engine survives a wire, so that the engine can live in a process of its own."""

from __future__ import annotations

import msgspec
import pytest

from engines.sampling.params import SamplingParams
from server.cache_tasks import CacheTask, ClearCache, ListPrefixes, PinPrefix, PinPrompt, Tend, UnpinPrefix
from server.engine import (
    EngineInfo,
    EngineStats,
    Event,
    FinishReason,
    GenerationRequest,
    PriorityClass,
    PromptChunk,
    PromptScored,
    RequestFinished,
    SequenceFinished,
    Timings,
    TokensEvent,
)
from server.inbox import Cancel, Command, Stop, Submit
from tests.engine_loop.rig import Rig, request

EVERY_EVENT: list[Event] = [
    TokensEvent(7, 1, (3, 4), logprobs=(-0.5, -1.25), top=(((3, -0.5), (9, -1.0)), ((4, -1.25),)), first=True),
    *(SequenceFinished(7, 1, reason, completion_tokens=5, discarded_tokens=2) for reason in FinishReason),
    PromptScored(7, 1, (-2.5, -0.125), top=(((3, -2.0),), ((4, -0.125),))),
    RequestFinished(
        7,
        FinishReason.END,
        12,
        8,
        Timings(0.1, None, 0.25, 1.5),
        preemptions=3,
        chunks=(PromptChunk(0.1, 0.2, 0, 64), PromptChunk(0.2, 0.25, 64, 3)),
    ),
]


EVERY_TASK: list[CacheTask] = [
    PinPrompt((3, 4), b"\x00salt", 0.5),
    PinPrefix(bytes(32), 60.0),
    UnpinPrefix(bytes(32)),
    ListPrefixes(10),
    ClearCache(pins=True),
]


def through_a_wire(value: object, kind: object) -> object:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=kind)


@pytest.mark.parametrize("event", EVERY_EVENT, ids=lambda event: type(event).__name__)
def test_every_event_comes_back_as_it_went(event: Event) -> None:
    assert through_a_wire(event, Event) == event


def test_every_kind_of_event_is_among_them() -> None:
    kinds = {type(event) for event in EVERY_EVENT}
    assert kinds == set(Event.__args__)


@pytest.mark.parametrize("priority", list(PriorityClass))
def test_every_command_comes_back_as_it_went(priority: PriorityClass) -> None:
    asked = msgspec.structs.replace(
        request(5, [3, 4, 5], deadline=9.5),
        priority=priority,
        traced=True,
        cache_salt=b"\x00salt",
        sampling=SamplingParams(temperature=0.7, top_k=4, seed=2**64 - 1),
    )
    commands: list[Command] = [Submit(asked), Cancel(5, FinishReason.DEADLINE), Stop(5, 0, 17)]
    commands += [Tend(number, task) for number, task in enumerate(EVERY_TASK)]
    for command in commands:
        assert through_a_wire(command, Command) == command
    assert isinstance(asked, GenerationRequest)


def test_what_a_real_run_says_comes_back_as_it_went() -> None:
    rig = Rig().start()
    for number in range(5):
        rig.engine.submit(request(number, [number, 3, 9], max_tokens=6))
    rig.wait_end(*range(5))
    rig.engine.close(5)
    said = [event for batch in rig.batches for event in batch]
    assert len(said) > 20
    assert [through_a_wire(event, Event) for event in said] == said
    assert through_a_wire(rig.engine.info, EngineInfo) == rig.engine.info
    stats = rig.engine.stats()
    assert through_a_wire(stats, EngineStats) == stats
