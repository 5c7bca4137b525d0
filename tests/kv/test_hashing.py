"""Names of blocks: everything that decides a block's contents decides its name, and nothing else can imitate it."""

from __future__ import annotations

from array import array
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from server.kv.hashing import block_digest, identity_digest


def test_case_F7_each_part_of_the_identity_gives_another_root() -> None:
    roots = [
        identity_digest("a", 16),
        identity_digest("b", 16),
        identity_digest("a", 32),
        identity_digest("a", 16, adapter=b"x"),
        identity_digest("a", 16, salt=b"x"),
        identity_digest("a", 16, media=[b"x"]),
        identity_digest("a", 16, media=[b"x", b""]),
        identity_digest("a", 16, media=[b"", b"x"]),
    ]
    assert all(one != other for one, other in combinations(roots, 2))


@given(st.binary(), st.binary(), st.binary(), st.binary())
def test_bytes_cannot_wander_from_one_field_to_the_next(
    salt: bytes, adapter: bytes, salt2: bytes, adapter2: bytes
) -> None:
    same = (salt, adapter) == (salt2, adapter2)
    assert (
        identity_digest("a", 16, salt=salt, adapter=adapter) == identity_digest("a", 16, salt=salt2, adapter=adapter2)
    ) == same


def test_case_F6_a_name_covers_all_that_comes_before() -> None:
    root, tokens = identity_digest("a", 4), array("i", [1, 2, 3, 4]).tobytes()
    first = block_digest(root, tokens)
    assert first == block_digest(root, tokens)
    assert len(first) == 32
    assert block_digest(first, tokens) != first
    assert block_digest(identity_digest("b", 4), tokens) != first
    assert block_digest(root, array("i", [1, 2, 3, 5]).tobytes()) != first
