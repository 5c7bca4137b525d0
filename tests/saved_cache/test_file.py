"""The file: what was written comes back, and what is not exactly that is refused as a whole."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.kv.hashing import block_digest, identity_digest
from server.saved_cache.layout import CacheIdentity, CorruptCacheError, ForeignCacheError, SavedBlock
from server.saved_cache.reader import CacheReader
from server.saved_cache.writer import CacheWriter

IDENTITY = CacheIdentity(fingerprint="engine", block_format="here", block_size=4, block_bytes=24)
PATIENCE = 20.0


def chain(length: int, salt: bytes = b"") -> list[SavedBlock]:
    """Blocks of one sequence, first to last."""
    name = identity_digest("engine", 4, salt=salt)
    blocks = []
    for index in range(length):
        tokens = bytes([index]) * 16
        digest = block_digest(name, tokens)
        blocks.append(SavedBlock(name, digest, index == 0, index, tokens, os.urandom(24)))
        name = digest
    return blocks


def write(path: Path, blocks: list[SavedBlock], identity: CacheIdentity = IDENTITY) -> CacheWriter:
    writer = CacheWriter(path, identity)
    for block in blocks:
        writer.offer(block, PATIENCE)
    writer.end(PATIENCE)
    assert writer.wait(PATIENCE)
    return writer


def read(path: Path, identity: CacheIdentity = IDENTITY) -> list[SavedBlock]:
    with CacheReader(path, identity) as reader:
        return list(reader.blocks())


@pytest.mark.parametrize("length", [0, 1, 50])
def test_what_was_written_is_read(tmp_path: Path, length: int) -> None:
    blocks = chain(length)
    writer = write(tmp_path / "kv", blocks)
    assert (writer.error, writer.written, writer.bytes) == (None, length, (tmp_path / "kv").stat().st_size)
    assert read(tmp_path / "kv") == blocks
    assert [entry.name for entry in tmp_path.iterdir()] == ["kv"]


def test_nobody_else_can_read_it(tmp_path: Path) -> None:
    (tmp_path / "kv.part").write_bytes(b"what another save left")
    (tmp_path / "kv.part").chmod(0o666)
    write(tmp_path / "kv", chain(1))
    assert stat.S_IMODE((tmp_path / "kv").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "other",
    [
        {"fingerprint": "another"},
        {"block_format": "elsewhere"},
        {"block_size": 8},
        {"block_bytes": 25},
        {"version": 2},
    ],
)
def test_another_engine_s_file_is_foreign(tmp_path: Path, other: dict[str, object]) -> None:
    write(tmp_path / "kv", chain(3))
    changed = CacheIdentity(**{**{name: getattr(IDENTITY, name) for name in IDENTITY.__struct_fields__}, **other})
    (name,) = other
    with pytest.raises(ForeignCacheError, match=name):
        read(tmp_path / "kv", changed)


def test_any_other_file_is_foreign(tmp_path: Path) -> None:
    (tmp_path / "kv").write_bytes(b"\x7fELF" + bytes(1000))
    with pytest.raises(ForeignCacheError):
        read(tmp_path / "kv")


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("saved") / "kv"
    write(path, chain(5))
    return path.read_bytes()


@settings(max_examples=150, deadline=None)
@given(at=st.floats(0, 1, exclude_max=True), bits=st.integers(0, 255))
def test_no_changed_byte_and_no_cut_goes_unnoticed(
    intact: bytes, tmp_path_factory: pytest.TempPathFactory, at: float, bits: int
) -> None:
    """``bits`` 0: cut there; else they are turned over in the byte there."""
    content, place = bytearray(intact), int(at * len(intact))
    if bits:
        content[place] ^= bits
    else:
        del content[place:]
    path = tmp_path_factory.mktemp("damaged") / "kv"
    path.write_bytes(content)
    with pytest.raises((CorruptCacheError, ForeignCacheError)):
        read(path)


def test_a_block_under_a_wrong_name_is_corrupt(tmp_path: Path) -> None:
    """Its checksum fits: whoever wrote it got it wrong."""
    first, second = chain(2)
    write(tmp_path / "kv", [first, SavedBlock(first.parent, second.digest, False, 0, second.tokens, second.content)])
    with pytest.raises(CorruptCacheError, match="block 1 is not what its name says"):
        read(tmp_path / "kv")


def test_an_abandoned_save_leaves_the_old_file(tmp_path: Path) -> None:
    old = chain(2)
    write(tmp_path / "kv", old)
    writer = CacheWriter(tmp_path / "kv", IDENTITY)
    writer.offer(chain(3)[0], PATIENCE)
    writer.abandon()
    assert writer.wait(PATIENCE)
    assert isinstance(writer.error, TimeoutError)
    assert read(tmp_path / "kv") == old
    assert [entry.name for entry in tmp_path.iterdir()] == ["kv"]


@contextlib.contextmanager
def room_for(size: int) -> Iterator[None]:
    """No file can grow beyond ``size`` bytes: writing more fails half way, as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    old = chain(2)
    write(tmp_path / "kv", old)
    with room_for(20_000):
        writer = CacheWriter(tmp_path / "kv", IDENTITY)
        for block in chain(250):
            writer.offer(block, PATIENCE)
        writer.end(PATIENCE)
        assert writer.wait(PATIENCE)
    assert isinstance(writer.error, OSError)
    assert read(tmp_path / "kv") == old
    assert [entry.name for entry in tmp_path.iterdir()] == ["kv"]


def test_a_directory_that_is_not_there_is_an_error_like_any_other(tmp_path: Path) -> None:
    writer = CacheWriter(tmp_path / "nowhere" / "kv", IDENTITY)
    assert writer.wait(PATIENCE)
    assert isinstance(writer.error, FileNotFoundError)
    assert not writer.offer(chain(1)[0])


def test_where_another_server_is_saving_nothing_is_touched(tmp_path: Path) -> None:
    part = tmp_path / "kv.part"
    with part.open("wb") as theirs:
        fcntl.flock(theirs, fcntl.LOCK_EX)
        theirs.write(b"half of it")
        theirs.flush()
        writer = CacheWriter(tmp_path / "kv", IDENTITY)
        assert writer.wait(PATIENCE)
        assert isinstance(writer.error, BlockingIOError)
        assert part.read_bytes() == b"half of it"
