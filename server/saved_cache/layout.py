"""What stands where in the file of a saved prefix cache.

    head     magic, length, JSON of CacheIdentity, sha256 of all before
    blocks   each: parent's name, own name, reuses, flags, token ids, contents, sha256 of all before
    tail     JSON of Tail, its sha256, its length, magic

All blocks of a file have one size, so that the tail's count says how long the file must be: what is cut short is seen before
anything is read. A block stands behind its parent. Integers are little-endian; token ids are as they lie in memory, which the names
cover (server/kv/hashing.py).
"""

from __future__ import annotations

from hashlib import sha256
from struct import Struct
from typing import TypeVar

import msgspec

from server.kv.node import ID_BYTES

VERSION = 1
"""Of this layout. Files of another one are foreign."""
MAGIC = b"firsttoken kv 1\n"
END = b"kv end 1"
NAME = 32
"""Bytes of a block's name, and of every checksum: both are sha256."""
LENGTH = Struct("<I")
_BLOCK = Struct(f"<{NAME}s{NAME}sIB")
_ROOTED = 1
_MAX_REUSES = 2**32 - 1
_T = TypeVar("_T")


class SavedCacheError(Exception):
    """A file that cannot be used.

    SavedCacheError
    ├── ForeignCacheError   of another engine, another processor or another version of the layout
    └── CorruptCacheError   cut short, or changed since it was written
    """


class ForeignCacheError(SavedCacheError):
    """Whole, but not ours."""


class CorruptCacheError(SavedCacheError):
    """Not what was written."""


class CacheIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Whose blocks these are. Only an equal identity may read them."""

    version: int = VERSION
    fingerprint: str
    """The engine's: source, numerics, recipe, library."""
    block_format: str
    """What the engine says that a block's bytes depend on beside its fingerprint."""
    block_size: int
    block_bytes: int

    @property
    def record_bytes(self) -> int:
        """Bytes of one block in the file."""
        return _BLOCK.size + self.block_size * ID_BYTES + self.block_bytes + NAME


class SavedBlock(msgspec.Struct, frozen=True):
    """A block as the file has it."""

    parent: bytes
    """Name of the block before it, or of its identity where it is the first."""
    digest: bytes
    rooted: bool
    """It is the first of its chain."""
    reuses: int
    tokens: bytes
    content: bytes


class SavedPin(msgspec.Struct, frozen=True):
    name: bytes
    """Of the pinned prefix."""
    until: float
    """Seconds since 1970."""


class Tail(msgspec.Struct, frozen=True):
    blocks: int
    saved_at: float
    """Seconds since 1970."""
    pins: tuple[SavedPin, ...] = ()
    """Of prefixes that may be in the file or not."""


def sealed(content: bytes) -> bytes:
    """With its checksum behind it."""
    return content + sha256(content).digest()


def unsealed(content: bytes, what: str) -> bytes:
    """Without the checksum. Raises CorruptCacheError naming ``what`` where they do not fit."""
    inner, checksum = content[:-NAME], content[-NAME:]
    if sha256(inner).digest() != checksum:
        raise CorruptCacheError(f"{what} does not match its checksum")
    return inner


def encode_head(identity: CacheIdentity) -> bytes:
    text = msgspec.json.encode(identity)
    return sealed(MAGIC + LENGTH.pack(len(text)) + text)


def encode_tail(tail: Tail) -> bytes:
    text = msgspec.json.encode(tail)
    return sealed(text) + LENGTH.pack(len(text)) + END


def encode_block(block: SavedBlock) -> bytes:
    fields = _BLOCK.pack(block.parent, block.digest, min(block.reuses, _MAX_REUSES), _ROOTED * block.rooted)
    return sealed(b"".join((fields, block.tokens, block.content)))


def decode_block(record: bytes, identity: CacheIdentity, index: int) -> SavedBlock:
    """Raises CorruptCacheError."""
    inner = unsealed(record, f"block {index}")
    parent, digest, reuses, flags = _BLOCK.unpack_from(inner)
    split = _BLOCK.size + identity.block_size * ID_BYTES
    return SavedBlock(parent, digest, bool(flags & _ROOTED), reuses, inner[_BLOCK.size : split], inner[split:])


def decode_json(text: bytes, kind: type[_T], what: str) -> _T:
    """Raises CorruptCacheError."""
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        raise CorruptCacheError(f"{what} cannot be read: {error}") from error
