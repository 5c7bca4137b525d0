"""Putting a finished engine in place, so that whoever looks finds a whole engine or none.

Everything is written into a staging directory beside the target, on the same file system. The manifest goes in last, after
all other bytes are on the disk; then one rename puts the directory in place. Where an engine is already there, the two
directories change places in one step. A staging directory whose build died is removed by the next build, under the lock.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Protocol

import msgspec

from build_scripts.errors import PublishError
from build_scripts.source import file_sha256
from engines.manifest import MANIFEST_NAME, FileEntry

_RENAME_EXCHANGE = 2
_AT_FDCWD = -100


@contextmanager
def staging(
    target: Path, key: str = "", document: str = MANIFEST_NAME, *, keep: tuple[type[Exception], ...] = ()
) -> Iterator[Path]:
    """A directory to build in, locked against other builds of the same target; gone when the block ends.

    What a killed or interrupted build of the same ``key`` left there is found again; without a key nothing is. ``document`` is the file that marks a
    finished result; errors of the kinds in ``keep`` leave the directory as a kill does. Raises PublishError where the target is no place for one, or another build works on it.
    """
    with _sentences(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = (target.parent / f".{target.name}.lock").open("ab")
    with lock:
        _take(lock, target)
        with _sentences(target):
            _refuse_foreign(target, document)
            scratch = target.parent / f"{_prefix(target)}{key[:16] or 'new'}"
            _remove_leftovers(target, scratch if key else None)
            scratch.mkdir(exist_ok=True)
        try:
            with _sentences(target):
                yield scratch
        except Exception as error:
            if not isinstance(error, keep):
                shutil.rmtree(scratch, ignore_errors=True)
            raise
        # An interrupt leaves it, as a kill does, for the next build to go on with.
        shutil.rmtree(scratch, ignore_errors=True)


class Publishable(Protocol):
    """A manifest, or another record of what was built."""

    @property
    def files(self) -> tuple[FileEntry, ...]: ...


def publish(scratch: Path, target: Path, manifest: Publishable, name: str = MANIFEST_NAME) -> None:
    """Put a staged result in place, its record under ``name``. Raises PublishError; then the target is what it was."""
    with _sentences(target):
        for entry in manifest.files:
            _flush(scratch / entry.name)
        document = scratch / name
        document.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
        _flush(document)
        _flush(scratch)
        _swap_in(scratch, target)
        _flush(target.parent)


def list_files(scratch: Path) -> tuple[FileEntry, ...]:
    """Every staged file with its hash, by name."""
    paths = sorted(path for path in scratch.rglob("*") if path.is_file() and not path.name.startswith("."))
    return tuple(
        FileEntry(path.relative_to(scratch).as_posix(), path.stat().st_size, file_sha256(path)) for path in paths
    )


def _prefix(target: Path) -> str:
    return f".{target.name}.build-"


def _take(lock: BinaryIO, target: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise PublishError(f"{target}: cannot be locked ({error.strerror})") from error
        raise PublishError(
            f"{target}: another build of this engine is running; wait for it, or choose another --output"
        ) from error


def _refuse_foreign(target: Path, document: str) -> None:
    if target.is_dir() and any(target.iterdir()) and not (target / document).is_file():
        raise PublishError(f"{target}: is a directory with other things in it, not an engine; choose another --output")
    if target.exists() and not target.is_dir():
        raise PublishError(f"{target}: is a file; choose another --output")


def _remove_leftovers(target: Path, scratch: Path | None) -> None:
    """The lock is ours, so whoever made these is dead; what belongs to this very build is kept."""
    for leftover in target.parent.glob(f"{_prefix(target)}*"):
        if leftover != scratch:
            shutil.rmtree(leftover, ignore_errors=True)


def _swap_in(scratch: Path, target: Path) -> None:
    """What was at the target is at ``scratch`` afterwards, and removed with it."""
    if not target.exists() or not any(target.iterdir()):
        scratch.rename(target)
    elif not exchange(scratch, target):
        # Two renames: for a moment there is no engine at all, never half of one.
        old = scratch.with_name(f"{scratch.name}-old")
        target.rename(old)
        scratch.rename(target)
        old.rename(scratch)


def exchange(first: Path, second: Path) -> bool:
    """Let two paths change places in one step, where the system can (Linux's renameat2). False where it cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if sys.platform == "linux" else None
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second), _RENAME_EXCHANGE) == 0:
        return True
    if (code := ctypes.get_errno()) in (errno.ENOSYS, errno.EINVAL):
        return False
    raise OSError(code, os.strerror(code), str(second))


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _sentences(target: Path) -> Iterator[None]:
    """What the file system refuses, as one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise PublishError(f"{target.parent}: the disk is full") from error
        raise PublishError(f"{target}: cannot be written ({error.strerror or error})") from error
