"""Reads the file of a saved prefix cache, and believes nothing in it that it has not checked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Self

from server.kv.hashing import block_digest
from server.saved_cache.layout import (
    END,
    LENGTH,
    MAGIC,
    NAME,
    CacheIdentity,
    CorruptCacheError,
    ForeignCacheError,
    SavedBlock,
    Tail,
    decode_block,
    decode_json,
    unsealed,
)

_HEAD_LIMIT = 1 << 20
"""Bytes of JSON that a head, or a tail, can have: so much is read at once."""


class CacheReader:
    """One file, from its beginning to its end. One thread. A context manager."""

    def __init__(self, path: Path, identity: CacheIdentity) -> None:
        """Raises OSError, ForeignCacheError and CorruptCacheError; after that only blocks can turn out to be corrupt."""
        self._file: BinaryIO = path.open("rb")
        self._identity = identity
        try:
            self._size = os.fstat(self._file.fileno()).st_size
            self._start = self._check_head()
            self.tail = self._read_tail()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def blocks(self) -> Iterator[SavedBlock]:
        """In the file's order: each behind its parent. Raises CorruptCacheError and OSError."""
        identity = self._identity
        self._file.seek(self._start)
        for index in range(self.tail.blocks):
            block = decode_block(self._exactly(identity.record_bytes, f"block {index}"), identity, index)
            if block_digest(block.parent, block.tokens) != block.digest:
                raise CorruptCacheError(f"block {index} is not what its name says")
            yield block

    def _check_head(self) -> int:
        """Returns where the first block stands."""
        fixed = self._exactly(len(MAGIC) + LENGTH.size, "the head")
        if not fixed.startswith(MAGIC):
            raise ForeignCacheError("it is not a prefix cache of this version of firsttoken")
        length = LENGTH.unpack_from(fixed, len(MAGIC))[0]
        if length > _HEAD_LIMIT:
            raise CorruptCacheError(f"its head claims {length} bytes")
        head = unsealed(fixed + self._exactly(length + NAME, "the head"), "the head")
        found = decode_json(head[len(fixed) :], CacheIdentity, "the head")
        wanted = self._identity
        for field in wanted.__struct_fields__:
            ours, theirs = getattr(wanted, field), getattr(found, field)
            if ours != theirs:
                raise ForeignCacheError(f"its {field} is {theirs!r}, this server's is {ours!r}")
        return self._file.tell()

    def _read_tail(self) -> Tail:
        ending = LENGTH.size + len(END)
        last = self._at(self._size - ending, ending)
        if not last.endswith(END):
            raise CorruptCacheError("it has no end: it was cut short")
        length = LENGTH.unpack_from(last)[0]
        if length > _HEAD_LIMIT:
            raise CorruptCacheError(f"its tail claims {length} bytes")
        begin = self._size - ending - NAME - length
        tail = decode_json(unsealed(self._at(begin, length + NAME), "the tail"), Tail, "the tail")
        if begin - self._start != tail.blocks * self._identity.record_bytes:
            raise CorruptCacheError(f"{tail.blocks} blocks do not fit its {self._size} bytes")
        return tail

    def _at(self, offset: int, count: int) -> bytes:
        if offset < self._start:
            raise CorruptCacheError(f"its {self._size} bytes are too few")
        self._file.seek(offset)
        return self._exactly(count, "the tail")

    def _exactly(self, count: int, what: str) -> bytes:
        found = self._file.read(count)
        if len(found) != count:
            raise CorruptCacheError(f"{what} is cut short")
        return found
