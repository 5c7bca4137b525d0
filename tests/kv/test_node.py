"""The tree's nodes: which child shares the longest beginning."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from server.kv.node import NO_BLOCK, Node

Ids = tuple[int, ...]
BLOCKS = st.lists(st.tuples(*[st.sampled_from((0, 1, 255, 256, 70_000))] * 3), unique=True, max_size=12)


def raw(tokens: Ids) -> bytes:
    return array("i", tokens).tobytes()


def make_parent(children: list[Ids]) -> Node:
    root = Node(b"root", b"", NO_BLOCK, None)
    for block, tokens in enumerate(children):
        root.attach(Node(bytes([block]), raw(tokens), block, root))
    return root


def shared_ids(left: Ids, right: Ids) -> int:
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count


@given(BLOCKS, st.lists(st.sampled_from((0, 1, 255, 256, 70_000)), max_size=3))
def test_the_closest_child_is_the_one_that_a_full_scan_finds(children: list[Ids], wanted: list[int]) -> None:
    root = make_parent(children)
    node, shared = root.closest_child(raw(tuple(wanted)))
    assert shared == max((shared_ids(child, tuple(wanted)) for child in children), default=0)
    assert (node is None) == (shared == 0)
    assert node is None or shared_ids(children[node.block], tuple(wanted)) == shared


@given(BLOCKS, st.data())
def test_a_detached_child_is_found_no_more(children: list[Ids], data: st.DataObject) -> None:
    root = make_parent(children)
    for tokens in data.draw(st.permutations(children)):
        root.detach(root.children[raw(tokens)])
        assert root.is_consistent()
        assert root.closest_child(raw(tokens))[1] < 3
    assert not root.children


def test_half_an_equal_id_counts_for_nothing() -> None:
    root = make_parent([(256, 7, 7)])
    assert root.closest_child(raw((0, 7, 7))) == (None, 0), "the two ids share three of four bytes"
