"""Is a GGUF file's header whole? Walked before the library reads it: a damaged count there makes it append without end.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from build_scripts.errors import CheckpointError

_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_SCALAR_BYTES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""By type of a value."""
_LEAST_KEY_BYTES = 13
"""Of a metadata entry: the length of its key, its type, a value of one byte."""
_LEAST_TENSOR_BYTES = 24
"""Of a tensor's entry: the length of its name, its dimensions, type and offset."""
_MOST_DIMENSIONS = 4
_DEEPEST = 4
"""Arrays of arrays are allowed, none is in use."""


def require_whole_header(path: Path) -> None:
    """Raises CheckpointError where a length or count points beyond the file; OSError where it cannot be read."""
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            raise CheckpointError(f"{path.name} is not a whole GGUF file (it is empty)")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            try:
                _Walk(content).header()
            except _BeyondError as error:
                raise CheckpointError(f"{path.name} is not a whole GGUF file ({error})") from error


class _BeyondError(Exception):
    """What is wrong, in words."""


class _Walk:
    """A place in the header that only goes forward."""

    def __init__(self, content: mmap.mmap) -> None:
        self._content = content
        self._place = 0
        self._order = "<"

    def header(self) -> None:
        if self._content[:4] != _MAGIC:
            raise _BeyondError("it does not begin with GGUF")
        self._skip(4, "the version")
        if self._number("I", "the version") & 0xFFFF == 0:
            self._order = ">"  # versions are small: their bytes tell the order
        tensors = self._count(_LEAST_TENSOR_BYTES, "tensors")
        for _ in range(self._count(_LEAST_KEY_BYTES, "metadata entries")):
            self._string("a metadata key")
            self._value(self._number("I", "a metadata type"), 0)
        for _ in range(tensors):
            self._tensor()

    def _tensor(self) -> None:
        self._string("a tensor's name")
        dimensions = self._number("I", "a tensor's dimensions")
        if dimensions > _MOST_DIMENSIONS:
            raise _BeyondError(f"a tensor has {dimensions} dimensions, {_MOST_DIMENSIONS} are possible")
        self._skip(8 * dimensions + 12, "a tensor's shape")

    def _value(self, kind: int, depth: int) -> None:
        if kind == _STRING:
            self._string("a metadata text")
        elif kind == _ARRAY:
            self._array(depth)
        elif kind in _SCALAR_BYTES:
            self._skip(_SCALAR_BYTES[kind], "a metadata value")
        else:
            raise _BeyondError(f"a metadata value has type {kind}, which is none")

    def _array(self, depth: int) -> None:
        if depth == _DEEPEST:
            raise _BeyondError(f"arrays are nested deeper than {_DEEPEST}")
        kind = self._number("I", "an array's type")
        if kind in _SCALAR_BYTES:
            self._skip(self._count(_SCALAR_BYTES[kind], "values of an array") * _SCALAR_BYTES[kind], "an array")
            return
        for _ in range(self._count(8, "values of an array")):
            self._value(kind, depth + 1)

    def _string(self, what: str) -> None:
        self._skip(self._number("Q", what), what)

    def _count(self, least_bytes: int, what: str) -> int:
        """A count of things that take so many bytes each at least."""
        count = self._number("Q", f"the number of {what}")
        left = len(self._content) - self._place
        if count * least_bytes > left:
            raise _BeyondError(f"it says {count} {what}, with {left} bytes left")
        return count

    def _number(self, form: str, what: str) -> int:
        start = self._place
        self._skip(struct.calcsize(f"{self._order}{form}"), what)
        number: int = struct.unpack_from(f"{self._order}{form}", self._content, start)[0]
        return number

    def _skip(self, size: int, what: str) -> None:
        if size > len(self._content) - self._place:
            raise _BeyondError(f"{what} ends beyond the file's {len(self._content)} bytes")
        self._place += size
