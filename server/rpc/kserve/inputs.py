"""A request's input tensors by name, each read as what it means; what nobody read was not understood, and is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from server.errors import InvalidRequestError
from server.rpc.kserve.models import TensorSpec
from server.rpc.kserve.tensors import Tensor

INTEGERS = frozenset({"INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"})
FLOATS = frozenset({"FP16", "FP32", "FP64"})
_WIDEST_INT = 2**31 - 1


class Inputs:
    """Every method gives None, or nothing, for an input that is not there, and raises InvalidRequestError naming one that is wrong.

    Whole numbers may come in any whole datatype, others in any floating one: clients differ.
    """

    def __init__(self, tensors: dict[str, Tensor], specs: Sequence[TensorSpec]) -> None:
        known = {spec.name for spec in specs}
        for name in tensors:
            if name not in known:
                raise InvalidRequestError(f"inputs[{name}]", f"does not exist; there are {', '.join(sorted(known))}")
        for spec in specs:
            if spec.required and spec.name not in tensors:
                raise InvalidRequestError(f"inputs[{spec.name}]", "is required")
        self._tensors = tensors

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        return self._tensors[name].shape

    def whole(self, name: str, *, low: int = -_WIDEST_INT - 1, high: int = _WIDEST_INT) -> int | None:
        for value in self._one(name, INTEGERS):
            if not low <= value <= high:
                raise InvalidRequestError(name, f"must be from {low} to {high}, it is {value}")
            return int(value)
        return None

    def number(self, name: str) -> float | None:
        return next((float(value) for value in self._one(name, FLOATS)), None)

    def flag(self, name: str) -> bool:
        return any(self._one(name, frozenset({"BOOL"})))

    def text(self, name: str) -> str | None:
        return next((_decode(name, value) for value in self._one(name, frozenset({"BYTES"}))), None)

    def texts(self, name: str) -> list[str]:
        """Without empty ones, which pad."""
        return [_decode(name, value) for value in self._all(name, frozenset({"BYTES"})) if value]

    def ids(self, name: str) -> list[int]:
        values = self._all(name, INTEGERS)
        if values and not (min(values) >= -_WIDEST_INT - 1 and max(values) <= _WIDEST_INT):
            raise InvalidRequestError(name, "has elements that no token id can have")
        return values

    def _one(self, name: str, datatypes: frozenset[str]) -> list[Any]:
        """The one element, or none where the input is not there."""
        values = self._all(name, datatypes)
        if name in self._tensors and len(values) != 1:
            raise InvalidRequestError(name, f"must have 1 element, a request is one prompt; it has {len(values)}")
        return values

    def _all(self, name: str, datatypes: frozenset[str]) -> list[Any]:
        tensor = self._tensors.get(name)
        if tensor is None:
            return []
        if tensor.datatype not in datatypes:
            raise InvalidRequestError(name, f"must be {' or '.join(sorted(datatypes))}, it is {tensor.datatype}")
        return tensor.values


def _decode(name: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequestError(name, f"is not valid UTF-8: {error.reason} at byte {error.start}") from error
