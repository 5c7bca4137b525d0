"""Messages that do not parse. protobuf says only that; clients deserve to hear which field."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from server.errors import InvalidRequestError

MAX_FIELDS = 10_000
"""How many fields of a broken message are looked at: this runs on the event loop."""
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5


class Malformed(NamedTuple):
    """Stands for a request that could not be parsed, until a handler can answer it with a status."""

    error: InvalidRequestError


def tolerant(parse: Callable[[bytes], object]) -> Callable[[bytes], object]:
    """A deserializer that gives a :class:`Malformed` where ``parse``, a message's FromString, raises."""
    kind: type[Message] | None = getattr(parse, "__self__", None)
    descriptor = cast("Descriptor", kind.DESCRIPTOR) if kind is not None else None

    def deserialize(data: bytes) -> object:
        try:
            return parse(data)
        except DecodeError:
            return Malformed(explain(data, descriptor))

    return deserialize


def explain(data: bytes, descriptor: Descriptor | None) -> InvalidRequestError:
    """Why ``data`` is no such message, naming the text field that is not UTF-8 where that is the reason."""
    name = descriptor.full_name if descriptor is not None else "message"
    try:
        field = _bad_text(data, descriptor, [MAX_FIELDS]) if descriptor is not None else None
    except (IndexError, ValueError):
        field = None  # cut off, or no protobuf at all
    if field is not None:
        return InvalidRequestError(field, "is not valid UTF-8")
    return InvalidRequestError("message", f"the {len(data)} bytes are no valid {name}")


def _bad_text(data: bytes, descriptor: Descriptor, budget: list[int]) -> str | None:
    """The path of the first text field whose bytes are no UTF-8."""
    position = 0
    while position < len(data) and budget[0] > 0:
        budget[0] -= 1
        key, position = _varint(data, position)
        start, end = _payload(data, position, key & 7)
        position = end
        field = descriptor.fields_by_number.get(key >> 3)
        if field is None or key & 7 != BYTES:
            continue
        inner = _bad_field(data[start:end], field, budget)
        if inner is not None:
            return inner
    return None


def _bad_field(value: bytes, field: FieldDescriptor, budget: list[int]) -> str | None:
    if field.type == FieldDescriptor.TYPE_STRING:
        try:
            value.decode()
        except UnicodeDecodeError:
            return str(field.name)
    if field.message_type is not None:
        inner = _bad_text(value, field.message_type, budget)
        if inner is not None:
            return f"{field.name}.{inner}"
    return None


def _payload(data: bytes, position: int, wire_type: int) -> tuple[int, int]:
    """Where a field's value begins and ends. Raises ValueError for what proto3 does not use."""
    if wire_type == VARINT:
        return position, _varint(data, position)[1]
    if wire_type == BYTES:
        length, start = _varint(data, position)
        return start, start + length
    if wire_type in (FIXED64, FIXED32):
        return position, position + (8 if wire_type == FIXED64 else 4)
    raise ValueError(f"wire type {wire_type}")


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A base-128 number and the position behind it. Raises IndexError at the end of the data."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 10 bytes")
