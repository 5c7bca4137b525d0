"""Small factories for the tests of the block stores."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from server.kv.block_pool import BlockPool
from server.kv.eviction import LeastRecentlyUsed
from server.kv.hashing import identity_digest
from server.kv.prefix_cache import PrefixCache
from server.kv.sequence_blocks import SequenceBlocks

BLOCK = 4


def make_cache(blocks: int) -> PrefixCache:
    return PrefixCache(BlockPool(blocks), BLOCK, LeastRecentlyUsed())


def make_blocks(cache: PrefixCache, tokens: Sequence[int], salt: bytes = b"") -> SequenceBlocks:
    return SequenceBlocks(cache, identity_digest("test", BLOCK, salt=salt), array("i", tokens))


def filled(cache: PrefixCache, tokens: Sequence[int], salt: bytes = b"") -> SequenceBlocks:
    """A sequence whose tokens have all been computed and published, the cached part of them adopted."""
    blocks = make_blocks(cache, tokens, salt)
    blocks.adopt(blocks.match(len(tokens) - 1))
    assert blocks.grow(-(-len(tokens) // BLOCK))
    blocks.publish(len(tokens))
    return blocks


def matched(cache: PrefixCache, tokens: Sequence[int], salt: bytes = b"") -> list[int]:
    """Ids of the blocks that a new sequence of these tokens would find, its last token being left to compute."""
    return [node.block for node in make_blocks(cache, tokens, salt).match(len(tokens) - 1)]
