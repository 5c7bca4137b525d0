"""Tensors of the Open Inference Protocol, raw or typed, as Python lists and back."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from protos.inference import grpc_service_pb2 as wire
from server.errors import InvalidRequestError

MAX_DIMENSIONS = 8
_LENGTH = struct.Struct("<I")


class _Datatype(NamedTuple):
    code: str
    """Of :mod:`struct`; empty for BYTES."""
    contents: str
    """The field of InferTensorContents that carries it."""
    low: float = -math.inf
    high: float = math.inf


DATATYPES = {
    "BOOL": _Datatype("?", "bool_contents"),
    "INT8": _Datatype("b", "int_contents", -(2**7), 2**7 - 1),
    "INT16": _Datatype("h", "int_contents", -(2**15), 2**15 - 1),
    "INT32": _Datatype("i", "int_contents"),
    "INT64": _Datatype("q", "int64_contents"),
    "UINT8": _Datatype("B", "uint_contents", 0, 2**8 - 1),
    "UINT16": _Datatype("H", "uint_contents", 0, 2**16 - 1),
    "UINT32": _Datatype("I", "uint_contents"),
    "UINT64": _Datatype("Q", "uint64_contents"),
    "FP16": _Datatype("e", ""),
    "FP32": _Datatype("f", "fp32_contents"),
    "FP64": _Datatype("d", "fp64_contents"),
    "BYTES": _Datatype("", "bytes_contents"),
}


class Tensor(NamedTuple):
    """One input. ``values`` are flat, row-major."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    values: list[Any]


def read_inputs(request: wire.ModelInferRequest) -> dict[str, Tensor]:
    """All inputs by name. Raises InvalidRequestError naming the input."""
    raw = request.raw_input_contents
    if raw and len(raw) != len(request.inputs):
        raise InvalidRequestError(
            "raw_input_contents", f"must have an entry for each of the {len(request.inputs)} inputs, it has {len(raw)}"
        )
    found: dict[str, Tensor] = {}
    for place, tensor in enumerate(request.inputs):
        if tensor.name in found:
            raise InvalidRequestError(f"inputs[{place}].name", f"names {tensor.name!r} a second time")
        found[tensor.name] = _read(tensor, raw[place] if raw else None)
    return found


def _read(tensor: wire.ModelInferRequest.InferInputTensor, raw: bytes | None) -> Tensor:
    kind = DATATYPES.get(tensor.datatype)
    if kind is None:
        raise InvalidRequestError(
            tensor.name, f"has the datatype {tensor.datatype!r}; known are {', '.join(DATATYPES)}"
        )
    if raw is not None and tensor.HasField("contents") and tensor.contents.ByteSize():
        raise InvalidRequestError(tensor.name, "has contents and raw_input_contents; it must have one of them")
    count = _elements(tensor.name, tensor.shape)
    values = _typed(tensor, kind) if raw is None else _raw(tensor.name, kind, raw)
    if len(values) != count:
        raise InvalidRequestError(
            tensor.name, f"has the shape {list(tensor.shape)}, {count} elements, but contents of {len(values)}"
        )
    return Tensor(tensor.name, tensor.datatype, tuple(tensor.shape), values)


def _elements(name: str, shape: Sequence[int]) -> int:
    if len(shape) > MAX_DIMENSIONS or any(size < 0 for size in shape):
        raise InvalidRequestError(
            name, f"must have at most {MAX_DIMENSIONS} dimensions, none negative, its shape is {list(shape)}"
        )
    return math.prod(shape)


def _typed(tensor: wire.ModelInferRequest.InferInputTensor, kind: _Datatype) -> list[Any]:
    filled = [field.name for field, _ in tensor.contents.ListFields()]
    if filled not in ([], [kind.contents]):
        wanted = kind.contents or "raw_input_contents"
        raise InvalidRequestError(
            tensor.name, f"of datatype {tensor.datatype} must have {wanted}, it has {', '.join(filled)}"
        )
    values = list(getattr(tensor.contents, kind.contents)) if filled else []
    for value in values:
        if kind.code in "bhBH" and kind.code and not kind.low <= value <= kind.high:
            raise InvalidRequestError(tensor.name, f"of datatype {tensor.datatype} cannot hold {value}")
    return values


def _raw(name: str, kind: _Datatype, raw: bytes) -> list[Any]:
    if not kind.code:
        return _byte_strings(name, raw)
    size = struct.calcsize(f"<{kind.code}")
    if len(raw) % size:
        raise InvalidRequestError(name, f"has {len(raw)} raw bytes, no multiple of its elements' {size}")
    return list(struct.unpack(f"<{len(raw) // size}{kind.code}", raw))


def _byte_strings(name: str, raw: bytes) -> list[bytes]:
    """Each a little-endian length of 4 bytes and so many bytes."""
    values: list[bytes] = []
    position = 0
    while position < len(raw):
        end = position + _LENGTH.size
        size = _LENGTH.unpack_from(raw, position)[0] if end <= len(raw) else 0
        if end > len(raw) or end + size > len(raw):
            raise InvalidRequestError(name, f"has {len(raw)} raw bytes, which end inside element {len(values)}")
        values.append(raw[end : end + size])
        position = end + size
    return values


def add_output(
    response: wire.ModelInferResponse, name: str, datatype: str, shape: Sequence[int], values: Sequence[Any]
) -> None:
    """Append an output with raw contents, which is what Triton's own server sends."""
    response.outputs.add(name=name, datatype=datatype, shape=shape)
    response.raw_output_contents.append(_PACKERS[datatype](values))


def _pack_bytes(values: Sequence[bytes]) -> bytes:
    return b"".join(_LENGTH.pack(len(value)) + value for value in values)


def _packer(code: str) -> Callable[[Sequence[Any]], bytes]:
    return lambda values: struct.pack(f"<{len(values)}{code}", *values)


_PACKERS: dict[str, Callable[[Sequence[Any]], bytes]] = {
    name: _packer(kind.code) if kind.code else _pack_bytes for name, kind in DATATYPES.items()
}
