"""The parameters of a request: Triton's reserved names, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from protos.firsttoken.v1 import generation_pb2 as pb
from protos.inference import grpc_service_pb2 as wire
from server.errors import InvalidRequestError, NotBuiltError

_PRIORITIES = (pb.PRIORITY_INTERACTIVE, pb.PRIORITY_INTERACTIVE, pb.PRIORITY_STANDARD, pb.PRIORITY_BATCH)
"""By Triton's number: 0 = the default, 1 = highest."""
_LONGEST_TIMEOUT = 10**15
_SEQUENCES = ("sequence_id", "sequence_start", "sequence_end")


class Parameters(msgspec.Struct, frozen=True):
    priority: pb.Priority
    timeout_us: int
    """Until the first token must be out; 0 = no limit."""
    empty_final: bool
    """The stream's last response of this request shall be an empty one that says so."""


def read_parameters(given: Mapping[str, wire.InferParameter]) -> Parameters:
    """Raises InvalidRequestError for an unknown one: what is not understood is never ignored."""
    values = {name: _value(parameter) for name, parameter in given.items()}
    for name in _SEQUENCES:
        if values.pop(name, None):
            raise NotBuiltError(f"parameters.{name}")
    priority = _whole("priority", values.pop("priority", 0), len(_PRIORITIES) - 1)
    timeout = _whole("timeout", values.pop("timeout", 0), _LONGEST_TIMEOUT)
    empty_final = values.pop("triton_enable_empty_final_response", False)
    if not isinstance(empty_final, bool):
        raise InvalidRequestError("parameters.triton_enable_empty_final_response", "must be a bool")
    if values:
        raise InvalidRequestError(
            f"parameters.{next(iter(values))[:100]}",
            "does not exist; there are priority, timeout and triton_enable_empty_final_response",
        )
    return Parameters(_PRIORITIES[priority], timeout, empty_final)


def _value(parameter: wire.InferParameter) -> object:
    choice = parameter.WhichOneof("parameter_choice")
    return None if choice is None else getattr(parameter, choice)


def _whole(name: str, value: object, high: int) -> int:
    """Clients send numbers as int64, uint64 or text."""
    if isinstance(value, str) and value.isdecimal() and len(value) <= 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= high:
        raise InvalidRequestError(f"parameters.{name}", f"must be a whole number from 0 to {high}, it is {value!r}")
    return value
