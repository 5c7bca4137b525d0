"""From protocol messages to the client's values: one place for the sync and the async client."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any, TypeVar

from firsttoken.client.outputs import (
    Answer,
    Completion,
    Delta,
    Final,
    FinishReason,
    OutputEnd,
    PositionLogprobs,
    PromptEcho,
    Timings,
    TokenLogprob,
    Usage,
)
from firsttoken.client.values import (
    CachedPrefix,
    Capabilities,
    ClearedCache,
    ClientTimeouts,
    Limits,
    Load,
    Priority,
    ServerInfo,
    Step,
    StepRow,
    Warmed,
)
from protos.firsttoken.v1 import generation_pb2 as pb
from protos.firsttoken.v1 import operations_pb2

_T = TypeVar("_T")


def delta_of(message: pb.Delta) -> Delta:
    logprobs = logprobs_of(message.logprobs) if message.logprobs else ()
    return Delta(message.text, tuple(message.tokens), message.index, logprobs)


def logprobs_of(positions: Iterable[pb.PositionLogprobs]) -> tuple[PositionLogprobs, ...]:
    return tuple(
        PositionLogprobs(position.logprob, tuple(TokenLogprob(top.token, top.logprob) for top in position.top))
        for position in positions
    )


def prompt_of(message: pb.PromptEvent) -> PromptEcho:
    return PromptEcho(message.text, tuple(message.tokens), logprobs_of(message.logprobs), message.first_logprob)


def final_of(message: pb.Final) -> Final:
    return Final(
        _reason(message.finish_reason),
        _same(Usage, message.usage),
        _same(Timings, message.timings),
        stop_string=message.stop_string or None,
        seed=message.seed if message.HasField("seed") else None,
        outputs=tuple(
            OutputEnd(end.index, _reason(end.finish_reason), end.stop_string or None, end.completion_tokens)
            for end in message.outputs
        ),
    )


def answer_of(message: pb.CompleteResponse) -> Answer:
    outputs = tuple(
        Completion(output.index, output.text, tuple(output.tokens), logprobs_of(output.logprobs))
        for output in message.outputs
    )
    prompt = prompt_of(message.prompt) if message.HasField("prompt") else None
    return Answer(outputs, prompt, final_of(message.final))


def _reason(number: int) -> FinishReason:
    return FinishReason[pb.FinishReason.Name(number).removeprefix("FINISH_REASON_")]


def server_info_of(message: operations_pb2.GetServerInfoResponse) -> ServerInfo:
    return ServerInfo(
        message.version,
        message.engine,
        message.model,
        message.fingerprint,
        _same(Limits, message.limits),
        _same(Capabilities, message.capabilities),
        _same(ClientTimeouts, message.client_timeouts) if message.HasField("client_timeouts") else None,
    )


def load_of(message: operations_pb2.GetLoadResponse) -> Load:
    return Load(
        message.ready,
        message.running,
        _by_class(message.waiting),
        message.waiting_tokens,
        message.kv_utilisation,
        message.kv_cached,
        message.open_streams,
        message.busy,
    )


def prefix_of(message: operations_pb2.CachedPrefix) -> CachedPrefix:
    left = message.pinned_for
    return CachedPrefix(
        message.name,
        message.tokens,
        message.blocks,
        message.bytes,
        message.reuses,
        message.in_use,
        left.seconds + left.nanos / 1e9 if message.HasField("pinned_for") else None,
    )


def warmed_of(message: operations_pb2.WarmPrefixResponse) -> Warmed:
    return _same(Warmed, message)


def cleared_of(message: operations_pb2.ClearCacheResponse) -> ClearedCache:
    return _same(ClearedCache, message)


def step_of(message: operations_pb2.Step) -> Step:
    return Step(
        message.step,
        message.age,
        message.outcome,
        message.engine_seconds,
        message.sample_seconds,
        tuple(_same(StepRow, row) for row in message.rows),
        message.copies,
        tuple(message.opened),
        tuple(message.closed),
        message.responses,
        _by_class(message.waiting),
        message.running,
        message.blocks_free,
        message.preemptions,
    )


def _by_class(message: operations_pb2.WaitingByClass) -> dict[Priority, int]:
    return {priority: getattr(message, priority.value) for priority in Priority}


def _same(kind: type[_T], message: Any) -> _T:  # noqa: ANN401 - any message whose fields have the same names
    return kind(**{field.name: getattr(message, field.name) for field in fields(kind)})  # type: ignore[arg-type]
