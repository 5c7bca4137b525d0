"""The contract's messages as msgpack and back, so that an engine can live in a process of its own.

Token arrays travel as their raw bytes, four a token, little-endian. msgspec knows everything else.
"""

from __future__ import annotations

import sys
from array import array
from typing import TypeVar

import msgspec

T = TypeVar("T")


def encode(message: object) -> bytes:
    """Raises TypeError for what the contract does not hold."""
    return msgspec.msgpack.encode(message, enc_hook=_to_wire)


def decode(data: bytes, kind: type[T]) -> T:
    """Raises msgspec.ValidationError where ``data`` is not a ``kind``."""
    return msgspec.msgpack.decode(data, type=kind, dec_hook=_from_wire)


def _to_wire(value: object) -> bytes:
    if isinstance(value, array) and value.typecode == "i":
        return _swapped(value).tobytes()
    raise TypeError(f"a message of the contract holds no {type(value).__name__}")


def _from_wire(kind: type, value: object) -> object:
    if kind is not array or not isinstance(value, bytes):
        raise TypeError(f"a message of the contract holds no {kind}")
    if len(value) % 4:
        raise ValueError(f"token ids are 4 bytes each, got {len(value)} bytes")
    return _swapped(array("i", value))


def _swapped(tokens: array[int]) -> array[int]:
    if sys.byteorder == "little":
        return tokens
    turned = tokens[:]
    turned.byteswap()
    return turned
