"""The KV blocks of one sequence: its block table, the names of its full blocks, and what of it is published.

Ownership along the table, by block index:

    [0, published)     known to the cache, filled by this sequence or by another: read only from then on
    [published, len)   private: being filled, or room ahead

Where another published an equal block first, ours is given back and the other's takes its place in the table, so that equal
blocks exist once and a sequence alone never holds more blocks than its length needs. That happens only between steps.
"""

from __future__ import annotations

import sys
from array import array

from engines.contract import BlockTable, Retention, TokenArray
from server.kv.block_pool import IntegrityError
from server.kv.hashing import block_digest
from server.kv.node import NO_BLOCK, Node
from server.kv.prefix_cache import PrefixCache
from server.kv.retention import wish_for


class SequenceBlocks:
    """Grows, publishes and releases the blocks of one sequence. One KV group. Engine thread only."""

    __slots__ = ("_cache", "_digests", "_retention", "_root", "_tokens", "published", "table", "tables")

    def __init__(
        self, cache: PrefixCache, root: bytes, tokens: TokenArray, retention: tuple[Retention, ...] = ()
    ) -> None:
        """``root`` is the identity's digest; ``tokens`` the sequence's own array, which its owner only appends to; ``retention`` what the
        request wishes about stretches of it."""
        self._retention = retention
        self._cache = cache
        self._root = root
        self._tokens = tokens
        self._digests: list[bytes] = []
        self.published = 0
        """Full blocks that the cache knows, from the beginning."""
        self.table: BlockTable = array("i")
        self.tables = (self.table,)
        """One table a KV group, as a plan's row wants it; the same object for the whole life of the seat."""

    @property
    def full_at(self) -> int:
        """Tokens at which the next block can be published."""
        return (self.published + 1) * self._cache.block_size

    def digest(self, index: int) -> bytes:
        """The name of full block ``index``; all its tokens must be known. Names are computed once, when first asked for."""
        digests = self._digests
        while len(digests) <= index:
            digests.append(block_digest(digests[-1] if digests else self._root, self._ids(len(digests))))
        return digests[index]

    def name(self, tokens: int) -> None:
        """Compute ahead the names of the full blocks among the first ``tokens`` tokens, off the path between two steps."""
        if tokens >= self._cache.block_size:
            self.digest(tokens // self._cache.block_size - 1)

    def match(self, limit: int) -> list[Node]:
        """The published blocks that would continue the table, none reaching beyond ``limit`` tokens. Changes nothing."""
        find, nodes = self._cache.find, []
        for index in range(len(self.table), limit // self._cache.block_size):
            node = find(self.digest(index))
            if node is None:
                break
            nodes.append(node)
        return nodes

    def match_partly(self, limit: int) -> tuple[Node | None, int]:
        """The published block that begins like our next one, and how many tokens they share; never beyond ``limit`` tokens."""
        index, size = len(self.table), self._cache.block_size
        wanted = self._tokens[index * size : min(limit, (index + 1) * size)].tobytes()
        return self._cache.closest(self.digest(index - 1) if index else self._root, wanted) if wanted else (None, 0)

    def adopt(self, nodes: list[Node]) -> None:
        """Continue the table with what :meth:`match` found, now."""
        if self.published != len(self.table):
            raise IntegrityError(f"adopting after private blocks: {self.published} published of {len(self.table)}")
        for node in nodes:
            node.reuses += 1
            if self._retention:
                self._keep(node, len(self.table))
            self.table.append(self._cache.hold(node))
        self.published += len(nodes)

    def grow(self, blocks: int) -> bool:
        """Lengthen the table to ``blocks`` entries. False when blocks ran out: what could be had is in the table."""
        table, allocate = self.table, self._cache.allocate
        while len(table) < blocks:
            block = allocate()
            if block == NO_BLOCK:
                return False
            table.append(block)
        return True

    def publish(self, computed: int) -> None:
        """Publish the blocks that are full now that ``computed`` tokens are in the table's blocks. Only when the step that
        computed them has completed and the next has not been started."""
        cache, size = self._cache, self._cache.block_size
        while (self.published + 1) * size <= computed:
            index = self.published
            digest = self.digest(index)
            parent = self._digests[index - 1] if index else self._root
            node = cache.publish(parent, digest, self._ids(index), self.table[index])
            if self._retention:
                self._keep(node, index)
            own = self.table[index]
            if node.block != own:
                self.table[index] = cache.hold(node)
                cache.release([own])
            self.published = index + 1

    def release(self) -> None:
        """Give every block back; what is published stays cached. The names stay, so that a preempted sequence finds it again."""
        if self.table:
            self._cache.release(self.table)
        # A new array, never cleared in place: a plan that was handed out may still show the old one.
        self.table = array("i")
        self.tables = (self.table,)
        self.published = 0

    def _keep(self, node: Node, index: int) -> None:
        """Tell the cache what the request wishes about its block ``index``, if anything."""
        wish = wish_for(self._retention, index * self._cache.block_size)
        if wish is not None:
            self._cache.keep(node, wish)

    def _ids(self, index: int) -> bytes:
        size = self._cache.block_size
        return self._tokens[index * size : (index + 1) * size].tobytes()


class UnsharedBlocks(SequenceBlocks):
    """The blocks of a sequence where nothing is to be shared: it finds nothing, publishes nothing, and names nothing."""

    __slots__ = ()

    @property
    def full_at(self) -> int:
        return sys.maxsize

    def name(self, tokens: int) -> None:
        pass

    def match(self, limit: int) -> list[Node]:  # noqa: ARG002 - it finds nothing, however far it may look
        return []

    def match_partly(self, limit: int) -> tuple[Node | None, int]:  # noqa: ARG002 - as above
        return None, 0

    def publish(self, computed: int) -> None:
        pass
