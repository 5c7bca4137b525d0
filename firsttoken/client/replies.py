"""From protocol messages to the client's values: one place for the sync and the async client."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

from firsttoken.client.values import (
    CachedPrefix,
    Capabilities,
    ClearedCache,
    ClientTimeouts,
    Delta,
    Final,
    FinishReason,
    Limits,
    Load,
    Priority,
    ServerInfo,
    Timings,
    Usage,
    Warmed,
)
from protos.firsttoken.v1 import generation_pb2 as pb
from protos.firsttoken.v1 import operations_pb2

_T = TypeVar("_T")


def delta_of(message: pb.Delta) -> Delta:
    return Delta(message.text, tuple(message.tokens), message.index)


def final_of(message: pb.Final) -> Final:
    name = pb.FinishReason.Name(message.finish_reason).removeprefix("FINISH_REASON_")
    return Final(
        FinishReason[name],
        _same(Usage, message.usage),
        _same(Timings, message.timings),
        stop_string=message.stop_string or None,
        seed=message.seed if message.HasField("seed") else None,
    )


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
        {priority: getattr(message.waiting, priority.value) for priority in Priority},
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


def _same(kind: type[_T], message: Any) -> _T:  # noqa: ANN401 - any message whose fields have the same names
    return kind(**{field.name: getattr(message, field.name) for field in fields(kind)})  # type: ignore[arg-type]
