"""Messages that no client would send on purpose, drawn from the protocol's own descriptors: every field that exists is tried."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

_DEEPEST = 4
_INTEGERS = (0, 1, 2, 3, 7, -1, 16, 17, 64, 255, 256, 258, 259, 511, 512, 8191, 8192, 2**31 - 1, -(2**31))
_FLOATS = (0.0, 1.0, 0.5, -1.0, 100.0, 101.0, 1e-30, 1e38, float("nan"), float("inf"), float("-inf"))
_TEXTS = (
    "",
    "a",
    "Hello there",
    "x" * 300,
    "\u00e9\U0001f600\u4e2d",
    "<|im_end|>",
    "\0",
    '{"type":"object"}',
    "[a-z]+",
    "(",
    "start: /a/",
    "ensemble",
    "tensorrt_llm",
    "simulated-instant",
    "BYTES",
    "INT32",
    "BOOL",
    "FP32",
    "text_input",
    "max_tokens",
    "stream",
    "stop",
    "input_ids",
    "input_lengths",
    "request_output_len",
    "temperature",
    "priority",
    "timeout",
)
_BYTES = (b"", b"a", b"\xff\xfe", b"\x02\0\0\0hi", b"\xff\xff\xff\xff", b"\0" * 4, b"\x01\0\0\0")


class WildMessages:
    """The same seed draws the same messages."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)  # noqa: S311 - replayable

    def fill(self, message: Message, depth: int = 0) -> Message:
        """Set some of the fields of ``message``, at random, whatever they mean."""
        for field in message.DESCRIPTOR.fields:
            if depth < _DEEPEST and self._rng.random() < 0.35:
                self._set(message, cast("FieldDescriptor", field), depth)
        return message

    def mutate(self, data: bytes) -> bytes:
        """A serialised message, damaged."""
        damaged = bytearray(data)
        for _ in range(self._rng.randint(1, 4)):
            kind = self._rng.randrange(3)
            place = self._rng.randrange(len(damaged) + 1)
            if kind == 0:
                damaged[place:place] = self._rng.randbytes(self._rng.randint(1, 6))
            elif kind == 1:
                del damaged[place : place + self._rng.randint(1, 6)]
            elif place < len(damaged):
                damaged[place] = self._rng.randrange(256)
        return bytes(damaged)

    def _set(self, message: Message, field: FieldDescriptor, depth: int) -> None:
        target: Any = getattr(message, field.name)
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            self._set_map(target, kind, depth)
        elif field.is_repeated:
            for _ in range(self._rng.choice((1, 1, 2, 3, 20))):
                if kind is not None:
                    self.fill(target.add(), depth + 1)
                else:
                    target.append(self._scalar(field))
        elif kind is not None:
            target.SetInParent()
            self.fill(target, depth + 1)
        else:
            setattr(message, field.name, self._scalar(field))

    def _set_map(self, target: Any, entry: Descriptor, depth: int) -> None:
        key, value = entry.fields_by_name["key"], entry.fields_by_name["value"]
        for _ in range(self._rng.randint(1, 3)):
            if value.message_type is not None:
                self.fill(target[self._scalar(key)], depth + 1)
            else:
                target[self._scalar(key)] = self._scalar(value)

    def _scalar(self, field: FieldDescriptor) -> Any:
        return _MAKERS[field.cpp_type](self._rng, field)


def _whole(rng: random.Random, low: int, high: int) -> int:
    value = rng.choice(_INTEGERS) if rng.random() < 0.8 else rng.randint(low, high)
    return min(high, max(low, value))


def _text(rng: random.Random, field: FieldDescriptor) -> str | bytes:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return rng.choice(_BYTES)
    return rng.choice(_TEXTS)


_MAKERS: dict[int, Callable[[random.Random, FieldDescriptor], object]] = {
    FieldDescriptor.CPPTYPE_INT32: lambda rng, _: _whole(rng, -(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: lambda rng, _: _whole(rng, -(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: lambda rng, _: _whole(rng, 0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: lambda rng, _: _whole(rng, 0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_DOUBLE: lambda rng, _: rng.choice(_FLOATS),
    FieldDescriptor.CPPTYPE_FLOAT: lambda rng, _: rng.choice(_FLOATS),
    FieldDescriptor.CPPTYPE_BOOL: lambda rng, _: rng.random() < 0.5,
    FieldDescriptor.CPPTYPE_ENUM: lambda rng, _: rng.choice((0, 1, 2, 3, 4, 99)),
    FieldDescriptor.CPPTYPE_STRING: _text,
}
