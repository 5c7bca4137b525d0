"""One published block in the prefix tree."""

from __future__ import annotations

from bisect import bisect_left, insort

ID_BYTES = 4
"""Bytes of a token id in a key."""
NO_BLOCK = -1
USUAL_PRIORITY = 35
"""Of blocks about which nobody says anything, 0 .. 100."""


class Node:
    """A full block whose contents are known, under the block that precedes it. A root (``parent`` None) holds no block.

    Children are found by their tokens, and kept in the order of those bytes, so that the child sharing the longest beginning
    with a given run of tokens is a neighbour of where that run would stand: two comparisons after a binary search, however many there are.
    """

    __slots__ = (
        "_keys",
        "block",
        "children",
        "depth",
        "digest",
        "kept_until",
        "last_use",
        "parent",
        "priority",
        "reuses",
        "tokens",
    )

    def __init__(self, digest: bytes, tokens: bytes, block: int, parent: Node | None) -> None:
        self.digest = digest
        self.tokens = tokens
        self.block = block
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.last_use = 0
        self.reuses = 0
        """How often a sequence took it over instead of computing it."""
        self.priority = USUAL_PRIORITY
        """The lowest is evicted first."""
        self.kept_until: float | None = None
        """When the priority falls back to the usual one; None where it is that."""
        self.children: dict[bytes, Node] = {}
        self._keys: list[bytes] = []

    def attach(self, child: Node) -> None:
        self.children[child.tokens] = child
        insort(self._keys, child.tokens)

    def detach(self, child: Node) -> None:
        del self.children[child.tokens]
        del self._keys[bisect_left(self._keys, child.tokens)]

    def closest_child(self, tokens: bytes) -> tuple[Node | None, int]:
        """The child that begins with most of ``tokens``, and how many token ids they share (0: no child shares any)."""
        at = bisect_left(self._keys, tokens)
        best, shared = None, 0
        for key in self._keys[max(0, at - 1) : at + 1]:
            common = _common_bytes(key, tokens) // ID_BYTES
            if common > shared:
                best, shared = self.children[key], common
        return best, shared

    def is_consistent(self) -> bool:
        """Keys sorted, and the children's. (That a child's parent has it as a child is for the cache to say, which knows all nodes.)"""
        children = self.children
        return self._keys == (sorted(children) if len(children) > 1 else list(children))


def _common_bytes(left: bytes, right: bytes) -> int:
    """Length of the common beginning: the highest set bit of the exclusive or is where they part."""
    length = min(len(left), len(right))
    differing = int.from_bytes(left[:length], "big") ^ int.from_bytes(right[:length], "big")
    return length - (differing.bit_length() + 7) // 8
