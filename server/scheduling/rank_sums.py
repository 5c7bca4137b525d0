"""Sums over who waits in a class, in the order of their keys: of all, of those up to any key, and who stands next on either side of it.

A B-tree (Bayer and McCreight, Organization and Maintenance of Large Ordered Indexes, 1972) whose nodes know the sums of what is below them,
and never change: whoever comes or leaves has the nodes on the way to its place made anew, and then the root put in place of the old one (path copying;
Driscoll et al., Making Data Structures Persistent, 1989). So a reader on any thread has one consistent picture for as long as it looks, no
lock is held, and nobody who asks makes the engine's thread wait.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import add, sub
from typing import NamedTuple

from server.kv.block_pool import IntegrityError

_MOST, _FEWEST = 64, 16
"""Entries of a node; the root may have fewer."""

Key = tuple[float, ...]


class Sums(NamedTuple):
    """Of one waiter, or of many. Integers all, so that adding and taking away leaves no residue."""

    requests: int
    work: int
    """Tokens that the cache will probably not have."""
    twice_attention: int
    """``work * (2 * cached + work)`` of each: twice what the cost model counts as attention."""
    capped: int
    """The work of each, a long prompt's only up to where it counts as long."""
    known: int
    """The work, and what is cached."""
    room: int
    """Tokens that KV blocks are set aside for when it gets its seat."""
    output: int
    """Tokens that it will probably draw."""


class Around(NamedTuple):
    """Who waits on either side of a key."""

    ahead: Sums
    """All up to the key."""
    nearest: Sequence[Sums]
    """The last of these one by one, in order."""
    behind: Sums
    """All after the key."""
    following: Sequence[Sums]
    """The first of these one by one, in order."""


NOBODY = Sums(0, 0, 0, 0, 0, 0, 0)


def of_one(work: int, known: int, long: int, *, room: int = 0, output: int = 0) -> Sums:
    """A waiter of so many ``known`` tokens, ``work`` of them to compute; more than ``long`` make a long prompt."""
    return Sums(1, work, work * (2 * known - work), min(work, long), known, room, output)


def total(rows: Sequence[Sums]) -> Sums:
    return Sums._make(map(sum, zip(*rows, strict=True))) if rows else NOBODY


def plus(one: Sums, other: Sums) -> Sums:
    return Sums._make(map(add, one, other))


def minus(one: Sums, other: Sums) -> Sums:
    return Sums._make(map(sub, one, other))


class _Node(NamedTuple):
    keys: tuple[Key, ...]
    """Ascending; of an inner node the lowest below each child."""
    rows: tuple[Sums, ...]
    """Of each waiter; of an inner node the sums of each child."""
    children: tuple[_Node, ...]
    """Empty in a leaf."""
    sums: Sums


class RankSums:
    """Written on the engine's thread, read on any. Each method O(log n), and what it lists."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root = _Node((), (), (), NOBODY)

    @property
    def all(self) -> Sums:
        """O(1)."""
        return self._root.sums

    def add(self, key: Key, row: Sums) -> None:
        """``key``: of nobody else who waits. Engine thread."""
        pieces = _with(self._root, key, row)
        self._root = pieces[0] if len(pieces) == 1 else _inner(pieces)

    def remove(self, key: Key, row: Sums) -> None:
        """Take out who was added so. Raises IntegrityError where nobody was. Engine thread."""
        root = _without(self._root, key, row)
        self._root = root.children[0] if len(root.children) == 1 else root

    def around(self, key: Key, ahead: int, behind: int) -> Around:
        """``key`` need not be of somebody; at most so many are listed on either side. Any thread."""
        root = self._root
        before = _up_to(root, key)
        after = minus(root.sums, before)
        return Around(before, _nearest(root, key, ahead), after, _following(root, key, behind))

    def check_integrity(self, waiting: Iterable[tuple[Key, Sums]]) -> None:
        """Raises IntegrityError where not exactly these are in it, in order, or a sum is not that of what it sums. O(n log n)."""
        found, true = list(_checked(self._root, _depth(self._root))), sorted(waiting)
        if found != true:
            wrong = next((pair for pair in zip(found, true, strict=False) if pair[0] != pair[1]), None)
            raise IntegrityError(f"by rank wait {len(found)}, in truth {len(true)}; the first that differ: {wrong}")


# ------------------------------------------------------------------ what is


def _up_to(node: _Node, key: Key) -> Sums:
    rows = list[Sums]()
    while node.children:
        at = max(0, bisect_right(node.keys, key) - 1)
        rows += node.rows[:at]
        node = node.children[at]
    rows += node.rows[: bisect_right(node.keys, key)]
    return total(rows)


def _nearest(node: _Node, key: Key, most: int) -> list[Sums]:
    """The last rows up to the key."""
    at = bisect_right(node.keys, key)
    if not node.children:
        return list(node.rows[max(0, at - most) : at])
    found = list[Sums]()
    while at > 0 and len(found) < most:
        at -= 1
        found = _nearest(node.children[at], key, most - len(found)) + found
    return found


def _following(node: _Node, key: Key, most: int) -> list[Sums]:
    """The first rows after the key."""
    at = bisect_right(node.keys, key)
    if not node.children:
        return list(node.rows[at : at + most])
    found, at = list[Sums](), max(0, at - 1)
    while at < len(node.children) and len(found) < most:
        found += _following(node.children[at], key, most - len(found))
        at += 1
    return found


# ------------------------------------------------------------------ what becomes of a node


def _with(node: _Node, key: Key, row: Sums) -> list[_Node]:
    """In its place, one or two."""
    sums = plus(node.sums, row)
    at = bisect_right(node.keys, key)
    if not node.children:
        keys, rows = (*node.keys[:at], key, *node.keys[at:]), (*node.rows[:at], row, *node.rows[at:])
        return _split(_Node(keys, rows, (), sums))
    at = max(0, at - 1)
    return _split(_replaced(node, at, at + 1, _with(node.children[at], key, row), sums))


def _without(node: _Node, key: Key, row: Sums) -> _Node:
    """In its place. It may have too few entries; its children have not."""
    sums = minus(node.sums, row)
    at = bisect_right(node.keys, key) - 1
    if at < 0:
        raise IntegrityError(f"nobody waits under {key}")
    if not node.children:
        if node.keys[at] != key or node.rows[at] != row:
            raise IntegrityError(f"under {key} waits {node.keys[at], node.rows[at]}, and was to be {row}")
        return _Node(node.keys[:at] + node.keys[at + 1 :], node.rows[:at] + node.rows[at + 1 :], (), sums)
    child = _without(node.children[at], key, row)
    if len(child.keys) >= _FEWEST:
        return _replaced(node, at, at + 1, [child], sums)
    if at:
        return _replaced(node, at - 1, at + 1, _split(_joined(node.children[at - 1], child)), sums)
    return _replaced(node, 0, 2, _split(_joined(child, node.children[1])), sums)


def _replaced(node: _Node, first: int, last: int, pieces: Sequence[_Node], sums: Sums) -> _Node:
    """With these for children in place of those from ``first`` to ``last``."""
    return _Node(
        (*node.keys[:first], *[piece.keys[0] for piece in pieces], *node.keys[last:]),
        (*node.rows[:first], *[piece.sums for piece in pieces], *node.rows[last:]),
        (*node.children[:first], *pieces, *node.children[last:]),
        sums,
    )


def _inner(pieces: Sequence[_Node]) -> _Node:
    return _replaced(_Node((), (), (), NOBODY), 0, 0, pieces, total([piece.sums for piece in pieces]))


def _joined(left: _Node, right: _Node) -> _Node:
    sums = plus(left.sums, right.sums)
    return _Node(left.keys + right.keys, left.rows + right.rows, left.children + right.children, sums)


def _split(node: _Node) -> list[_Node]:
    """In halves, where it has too many entries."""
    if len(node.keys) <= _MOST:
        return [node]
    middle = len(node.keys) // 2
    keys, rows, children, _ = node
    return [
        _Node(keys[part], rows[part], children[part], total(rows[part]))
        for part in (slice(middle), slice(middle, None))
    ]


# ------------------------------------------------------------------ whether all is well


def _depth(node: _Node) -> int:
    return 1 + _depth(node.children[0]) if node.children else 0


def _checked(node: _Node, depth: int, fewest: int = 0) -> Iterator[tuple[Key, Sums]]:
    """Who is below it."""
    if not fewest <= len(node.keys) <= _MOST or bool(node.children) != bool(depth):
        raise IntegrityError(f"a node of {len(node.keys)} entries stands {depth} above the leaves")
    if node.sums != total(node.rows):
        raise IntegrityError(f"sums by rank are {total(node.rows)}, kept {node.sums}")
    if not node.children:
        yield from zip(node.keys, node.rows, strict=True)
        return
    if [(child.keys[0], child.sums) for child in node.children] != list(zip(node.keys, node.rows, strict=True)):
        raise IntegrityError("a node by rank knows its children by other keys or sums than theirs")
    for child in node.children:
        yield from _checked(child, depth - 1, _FEWEST)
