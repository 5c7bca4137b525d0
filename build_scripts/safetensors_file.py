"""One safetensors file, read tensor by tensor; and the writing of one whose tensors come in any order.

The format (https://github.com/huggingface/safetensors#format): eight bytes little-endian length, a JSON header of that
length with dtype, shape and byte range of each tensor, then the bytes. Reading it here rather than through the library
keeps bfloat16 and float8 as their raw bits, reads a run of rows without the rest, tells a cut-off download by its byte
counts, and writes tensors where the header says, in whatever order they are made.
"""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from build_scripts.errors import CheckpointError

STORED: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "F8_E4M3": np.dtype("u1"),
    "F8_E5M2": np.dtype("u1"),
    "U8": np.dtype("u1"),
    "I8": np.dtype("i1"),
    "I16": np.dtype("<i2"),
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
    "U16": np.dtype("<u2"),
    "U32": np.dtype("<u4"),
    "U64": np.dtype("<u8"),
    "BOOL": np.dtype("u1"),
}
"""How NumPy holds each stored type; bfloat16 and the float8s are held as their raw bits."""

_MAX_HEADER = 100_000_000
"""The format's own limit."""


@dataclass(frozen=True)
class Entry:
    dtype: str
    """As the format spells it: "BF16"."""
    shape: tuple[int, ...]
    start: int
    """First byte, counted from the file's start."""
    nbytes: int


class SafetensorsFile:
    """Opening reads the header only."""

    def __init__(self, path: Path) -> None:
        """Raises CheckpointError where the file is not there, is no safetensors file or is shorter than its header says."""
        self.path = path
        try:
            self._size = path.stat().st_size
            self.entries = self._read_header()
        except FileNotFoundError as error:
            reason = "is a link to a file that is not there" if path.is_symlink() else "is not there"
            raise CheckpointError(f"{path.name} {reason}: the download is not whole") from error
        except OSError as error:
            raise CheckpointError(f"cannot read {path.name}: {error.strerror or error}") from error

    def read(self, name: str, rows: tuple[int, int] | None = None) -> NDArray[Any]:
        """The tensor as stored, or its rows [first, last). Raises CheckpointError where the bytes are not there."""
        entry = self.entries[name]
        dtype, shape = STORED[entry.dtype], entry.shape
        start = entry.start
        if rows is not None:
            width = int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize
            start, shape = start + rows[0] * width, (rows[1] - rows[0], *shape[1:])
        count = int(np.prod(shape, dtype=np.int64))
        values = np.fromfile(self.path, dtype=dtype, count=count, offset=start)
        if values.size != count:
            raise CheckpointError(f"{self.path.name} ended while tensor {name} was read")
        return values.reshape(shape)

    def _read_header(self) -> dict[str, Entry]:
        with self.path.open("rb") as file:
            prefix = file.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
            if not 0 < length <= min(_MAX_HEADER, self._size - 8):
                raise CheckpointError(f"{self.path.name} is not a whole safetensors file ({self._size} bytes)")
            try:
                header = json.loads(file.read(length))
                return self._entries(header, 8 + length)
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise CheckpointError(f"{self.path.name} has a broken header: {error}") from error

    def _entries(self, header: dict[str, Any], data_start: int) -> dict[str, Entry]:
        entries = {}
        for name, described in header.items():
            if name == "__metadata__":
                continue
            dtype, shape = described["dtype"], tuple(int(size) for size in described["shape"])
            begin, end = described["data_offsets"]
            if dtype not in STORED:
                raise CheckpointError(f"{self.path.name}: tensor {name} is stored as {dtype}, which is not known here")
            nbytes = int(np.prod(shape, dtype=np.int64)) * STORED[dtype].itemsize
            if end - begin != nbytes or begin < 0:
                raise CheckpointError(f"{self.path.name}: tensor {name} of {nbytes} bytes has room for {end - begin}")
            entries[name] = Entry(dtype, shape, data_start + begin, nbytes)
        promised = max((entry.start + entry.nbytes for entry in entries.values()), default=data_start)
        if promised > self._size:
            raise CheckpointError(
                f"{self.path.name} ends at byte {self._size}, its header promises {promised}: the download was cut short"
            )
        return entries


class SafetensorsWriter:
    """A file whose tensors are declared first, with their shapes, and then written in any order.

    Bytes depend on the declaration alone, so equal input gives equal files. close() raises ValueError where a declared
    tensor was not written; leaving the block by an exception leaves a file that no header check passes, because the header
    is written last.
    """

    def __init__(self, path: Path, declared: dict[str, tuple[str, tuple[int, ...]]]) -> None:
        """``declared``: stored dtype and shape by name."""
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        self._entries: dict[str, Entry] = {}
        offset = 0
        for name, (dtype, shape) in sorted(declared.items()):
            nbytes = int(np.prod(shape, dtype=np.int64)) * STORED[dtype].itemsize
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + nbytes]}
            self._entries[name] = Entry(dtype, shape, offset, nbytes)
            offset += nbytes
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._header = struct.pack("<Q", len(text)) + text
        self._missing = set(declared)
        self.nbytes = len(self._header) + offset
        self._file = path.open("wb", buffering=0)

    def write(self, name: str, values: NDArray[Any]) -> None:
        """Raises ValueError for a tensor that was declared otherwise."""
        entry = self._entries[name]
        if values.shape != entry.shape or values.dtype != STORED[entry.dtype]:
            raise ValueError(f"{name}: declared {entry.dtype} {entry.shape}, given {values.dtype} {values.shape}")
        self._put(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data, len(self._header) + entry.start)
        self._missing.discard(name)

    def close(self) -> None:
        if self._missing:
            raise ValueError(f"{min(self._missing)} was declared and never written ({len(self._missing)} such)")
        self._put(memoryview(self._header), 0)
        os.fsync(self._file.fileno())
        self._file.close()

    def _put(self, data: memoryview, offset: int) -> None:
        """All of it; a disk that is full says so by its errno, which NumPy's own writing would lose."""
        while data:
            written = os.pwrite(self._file.fileno(), data, offset)
            data, offset = data[written:], offset + written

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close()
