"""The fields of ``stop``, checked one by one. Each function raises InvalidRequestError."""

from __future__ import annotations

from collections.abc import Sequence

from protos.firsttoken.v1 import generation_pb2 as pb
from server.errors import InvalidRequestError
from server.rpc.limits import RequestLimits
from server.rpc.prompts import check_ids
from server.text.stops import NO_STOPS, StopStrings


def check_min_tokens(stop: pb.Stop, limits: RequestLimits) -> int:
    if not 0 <= stop.min_tokens < limits.max_context:
        raise InvalidRequestError(
            "stop.min_tokens", f"must be from 0 to {limits.max_context - 1}, it is {stop.min_tokens}"
        )
    return stop.min_tokens


def check_stop_strings(strings: Sequence[str], limits: RequestLimits) -> StopStrings:
    if not strings:
        return NO_STOPS
    if len(strings) > limits.max_stop_strings:
        raise InvalidRequestError(
            "stop.strings", f"must have at most {limits.max_stop_strings} entries, it has {len(strings)}"
        )
    for index, string in enumerate(strings):
        size = len(string.encode())
        if not 1 <= size <= limits.max_stop_string_bytes:
            raise InvalidRequestError(
                f"stop.strings[{index}]", f"must have from 1 to {limits.max_stop_string_bytes} bytes, it has {size}"
            )
    return StopStrings(strings)


def check_stop_ids(ids: Sequence[int], limits: RequestLimits) -> tuple[int, ...]:
    if len(ids) > limits.max_stop_token_ids:
        raise InvalidRequestError(
            "stop.token_ids", f"must have at most {limits.max_stop_token_ids} entries, it has {len(ids)}"
        )
    check_ids("stop.token_ids", ids, limits.vocab_size)
    return tuple(dict.fromkeys(ids))
