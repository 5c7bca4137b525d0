"""The prefix cache: a tree of full blocks over the block pool. docs/prefix-cache.md explains it with a worked example.

Laws kept here:
* a block enters the tree only after the step that filled it has completed (the caller publishes then), and is never written again;
* a held node's parent is held, so every unreferenced node can be evicted, leaves first: all cached blocks count as available;
* one node per digest: whoever computes the same block a second time shares the first and gives its own back.
"""

from __future__ import annotations

from collections.abc import Iterable

from engines.contract import BlockTable, Retention
from server.kv.block_pool import BlockPool, IntegrityError
from server.kv.eviction import EvictionPolicy
from server.kv.node import NO_BLOCK, USUAL_PRIORITY, Node
from server.kv.retention import Retained


class PrefixCache:
    """Hands out blocks, shares published ones, evicts. The only user of the pool. Engine thread only."""

    __slots__ = (
        "_by_block",
        "_cached",
        "_nodes",
        "_policy",
        "_retained",
        "_roots",
        "_tick",
        "block_size",
        "evictions",
        "now",
        "pool",
        "publications",
    )

    def __init__(
        self, pool: BlockPool, block_size: int, policy: EvictionPolicy, *, longest_retention: float = 3600.0
    ) -> None:
        """``longest_retention``: seconds that a request's wish about its blocks lasts at most."""
        self.pool = pool
        self.block_size = block_size
        self.evictions = 0
        """Blocks evicted since the start."""
        self.publications = 0
        """Blocks that ever entered the tree."""
        self.now = 0.0
        """Seconds; set by whoever has a clock, before blocks are allocated. Only wishes about retention look at it."""
        self._retained = Retained(longest_retention)
        self._policy = policy
        self._nodes: dict[bytes, Node] = {}
        self._roots: dict[bytes, Node] = {}
        self._by_block: list[Node | None] = [None] * pool.count
        self._cached = 0
        self._tick = 0

    @property
    def cached(self) -> int:
        """Published blocks that nobody holds."""
        return self._cached

    @property
    def published(self) -> int:
        """Published blocks, held or not."""
        return len(self._nodes)

    @property
    def available(self) -> int:
        """Blocks that ``allocate`` can hand out one after the other."""
        return self.pool.free + self._cached

    def find(self, digest: bytes) -> Node | None:
        """The published block of this name. Changes nothing."""
        return self._nodes.get(digest)

    def closest(self, parent: bytes, tokens: bytes) -> tuple[Node | None, int]:
        """The published block after ``parent`` (a block's digest or a root's) that begins with most of ``tokens``, and how many
        ids they share. Changes nothing."""
        node = self._nodes.get(parent) or self._roots.get(parent)
        return (None, 0) if node is None else node.closest_child(tokens)

    def is_held(self, node: Node) -> bool:
        return self.pool.refs[node.block] > 0

    def allocate(self) -> int:
        """A block to write, held once, evicting if none is free; NO_BLOCK when every block is held or resting."""
        pool = self.pool
        if not pool.free:
            if not self._cached:
                return NO_BLOCK
            self._evict()
        return pool.take()

    def hold(self, node: Node) -> int:
        """Add a holder to a published block; returns its id. The holder must hold the node's parent too."""
        if self.pool.retain(node.block):
            self._cached -= 1
            if not node.children:
                self._policy.discard(node)
        return node.block

    def hold_again(self, block: int) -> int:
        """Add a holder to a block that somebody holds, published or not; returns its id."""
        if self.pool.retain(block):
            raise IntegrityError(f"block {block} was to be held again and nobody held it")
        return block

    def release(self, blocks: BlockTable | list[int]) -> None:
        """Give up holds, listed from the beginning of the sequence to its end. Published blocks stay cached, others rest."""
        pool, by_block = self.pool, self._by_block
        self._tick += 1
        worthless: list[int] = []
        for block in reversed(blocks):
            if not pool.drop(block):
                continue
            node = by_block[block]
            if node is None:
                worthless.append(block)
                continue
            self._cached += 1
            node.last_use = self._tick
            if not node.children:
                self._policy.add(node)
        pool.rest(worthless)

    def publish(self, parent: bytes, digest: bytes, tokens: bytes, block: int) -> Node:
        """Make a full block known under ``parent``; the caller holds both. Returns the node of that name: where it is not the
        caller's block, another published the same first, and the caller must use that one from now on."""
        twin = self._nodes.get(digest)
        if twin is not None:
            return twin
        above = self._nodes.get(parent) or self._roots.get(parent)
        if above is None:
            above = self._roots[parent] = Node(parent, b"", NO_BLOCK, None)
        node = Node(digest, tokens, block, above)
        above.attach(node)
        self._nodes[digest] = node
        self._by_block[block] = node
        self.publications += 1
        return node

    def keep(self, node: Node, wish: Retention) -> None:
        """Have a held block go sooner or later than others once nobody holds it. The latest wish about a block counts."""
        self._retained.keep(node, wish, self.now)

    def nodes(self) -> Iterable[Node]:
        """All published blocks, in the order in which they were published."""
        return self._nodes.values()

    def hottest(self) -> list[Node]:
        """All published blocks: those in use, then those used last. A block always comes after its parent. O(blocks log blocks)."""
        refs = self.pool.refs
        return sorted(self._nodes.values(), key=lambda node: (not refs[node.block], -node.last_use, node.depth))

    def restore(self, parent: bytes, digest: bytes, tokens: bytes, *, last_use: int, reuses: int) -> int:
        """Put back a published block that nobody holds; the caller fills it. ``parent`` is known, or a root. Evicts nothing: NO_BLOCK where
        no block is free, or where the block is known already."""
        if not self.pool.free or digest in self._nodes:
            return NO_BLOCK
        block = self.pool.take()
        above = self._nodes.get(parent)
        if above is not None and not above.children and not self.is_held(above):
            self._policy.discard(above)
        node = self.publish(parent, digest, tokens, block)
        node.last_use, node.reuses = last_use, reuses
        self._tick = max(self._tick, last_use)
        self.pool.drop(block)
        self._cached += 1
        self._policy.add(node)
        return block

    def forget(self) -> int:
        """Give up every cached block; those in use stay. Returns how many it were."""
        forgotten = 0
        while leaves := self._policy.members():
            for node in leaves:
                self._policy.discard(node)
                self._drop(node)
            forgotten += len(leaves)
        return forgotten

    def _evict(self) -> None:
        self._lapse()
        node = self._policy.pop()
        if node is None:
            raise IntegrityError(f"{self._cached} cached blocks, but the eviction policy names none")
        self.evictions += 1
        self._drop(node)

    def _lapse(self) -> None:
        """Set back the priorities whose time is over."""
        for node in self._retained.lapsed(self.now):
            member = not node.children and not self.is_held(node) and self._by_block[node.block] is node
            if member:
                self._policy.discard(node)
            node.priority, node.kept_until = USUAL_PRIORITY, None
            if member:
                self._policy.add(node)
        self._retained.compact(len(self._nodes))

    def _drop(self, node: Node) -> None:
        """Forget a leaf that nobody holds and that the policy has let go."""
        parent = node.parent
        if parent is None:
            raise IntegrityError("a root was to be given up")
        parent.detach(node)
        del self._nodes[node.digest]
        self._by_block[node.block] = None
        self._cached -= 1
        self.pool.reclaim(node.block)
        if parent.children:
            return
        if parent.parent is None:
            del self._roots[parent.digest]
        elif not self.is_held(parent):
            self._policy.add(parent)

    def check_integrity(self) -> None:
        """The tree, its indexes, the policy's members and the pool agree. O(blocks).

        Each node is its parent's child, one level below it, and parents are known: so all nodes hang from roots. And no node has a child
        that is not known, since there are as many children as nodes.
        """
        refs, by_block, children = self.pool.refs, self._by_block, 0
        watched, cached = self._retained.watched(), []
        for node in self._nodes.values():
            block = node.block
            children += len(node.children)
            self._check_place(node)
            if by_block[block] is not node:
                raise IntegrityError(f"block {block} is in the tree but not in its indexes")
            if node.kept_until is not None and id(node) not in watched:
                raise IntegrityError(f"the priority of block {block} would never fall back")
            if not refs[block]:
                cached.append(node)
        for root in self._roots.values():
            children += len(root.children)
            if not root.children or not root.is_consistent():
                raise IntegrityError("a root has no children, or keys that are not theirs")
        known = len(by_block) - by_block.count(None)
        if not children == len(self._nodes) == known:
            raise IntegrityError(f"tree {children}, digests {len(self._nodes)}, blocks {known} published")
        self._check_cached(cached)

    def _check_place(self, node: Node) -> None:
        parent = node.parent
        if parent is None or parent.children.get(node.tokens) is not node or node.depth != parent.depth + 1:
            raise IntegrityError(f"block {node.block} and its parent disagree")
        if not node.is_consistent():
            raise IntegrityError(f"the node of block {node.block} and its children disagree")
        if self._nodes.get(node.digest) is not node:
            raise IntegrityError(f"block {node.block} is not found under its own name")
        if parent.parent is None:
            if self._roots.get(parent.digest) is not parent:
                raise IntegrityError(f"block {node.block} hangs from a root that is not known")
        elif self._nodes.get(parent.digest) is not parent:
            raise IntegrityError(f"block {node.block} hangs from block {parent.block}, which is not known")
        elif self.pool.refs[node.block] and not self.pool.refs[parent.block]:
            raise IntegrityError(f"block {node.block} is held but its parent {parent.block} is not")

    def _check_cached(self, cached: list[Node]) -> None:
        leaves = sorted(node.block for node in cached if not node.children)
        members = sorted(node.block for node in self._policy.members())
        if len(cached) != self._cached or members != leaves:
            raise IntegrityError(f"{len(cached)} cached, kept {self._cached}; evictable {leaves}, policy {members}")
        self.pool.check_integrity([node.block for node in cached])
