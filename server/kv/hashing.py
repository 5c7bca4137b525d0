"""The name of a full block: a chained sha256 over everything that decides its contents.

A block's keys and values depend on all tokens up to its end and on what the engine is, never on its own tokens alone. So each
name covers the name before it, and the first covers the identity. Every field is length-prefixed: no two different lists of
fields give the same bytes. sha256 rather than a fast hash because tenants can choose tokens: a collision would serve one
tenant another's context.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from hashlib import sha256
from struct import pack

_DOMAIN = b"firsttoken.kv.1"


def identity_digest(
    fingerprint: str, block_size: int, *, adapter: bytes = b"", salt: bytes = b"", media: Iterable[bytes] = ()
) -> bytes:
    """The root of a chain: 32 bytes over who computes (engine, block size, adapter) and who may share (salt, media)."""
    digest = sha256()
    for field in (_DOMAIN, sys.byteorder.encode(), fingerprint.encode(), pack("<I", block_size), adapter, salt, *media):
        digest.update(pack("<Q", len(field)))
        digest.update(field)
    return digest.digest()


def block_digest(parent: bytes, tokens: bytes) -> bytes:
    """The name of the block that holds ``tokens`` (ids as 4-byte integers) after ``parent``, a 32-byte digest."""
    return sha256(parent + tokens).digest()
