"""Writes the file of a saved prefix cache on a thread of its own, so that no step ever waits for a disk.

The file appears under its name only when it is whole and on the disk: written beside it, synced, renamed. Until then, and after any
failure, what stood there before stands there still.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from server.saved_cache.layout import CacheIdentity, SavedBlock, SavedPin, Tail, encode_block, encode_head, encode_tail

QUEUED_BYTES = 32 * 1024 * 1024
"""Blocks that may wait for the disk."""
SYNC_EVERY = 64 * 1024 * 1024
"""Bytes after which the disk is waited for, so that the last wait is a short one."""
_POLL = 0.1


class CacheWriter:
    """One file. ``offer`` and ``finish`` are for one thread; the writing is done by another."""

    def __init__(self, path: Path, identity: CacheIdentity, pins: tuple[SavedPin, ...] = ()) -> None:
        self._path = path
        self._identity = identity
        self._pins = pins
        depth = max(2, QUEUED_BYTES // identity.record_bytes)
        self._blocks: queue.Queue[SavedBlock | None] = queue.Queue(depth)
        """None: there are no more."""
        self._abandoned = threading.Event()
        self._over = threading.Event()
        self.error: OSError | None = None
        """Why nothing was saved; None while it is being written, and when it was."""
        self.written = 0
        """Blocks."""
        self.bytes = 0
        self._thread = threading.Thread(target=self._run, name="cache-writer", daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        """The file stands, or ``error`` says why it does not."""
        return self._over.is_set()

    @property
    def full(self) -> bool:
        """The disk is behind: ``offer`` would wait."""
        return self._blocks.full()

    def offer(self, block: SavedBlock, patience: float = 0.0) -> bool:
        """Hand over a block, whose parent was handed over before. False: it was not taken within ``patience`` seconds, or writing failed."""
        return not self.over and self._put(block, patience)

    def end(self, patience: float = 0.0) -> bool:
        """There are no more blocks: make the file appear. False where this could not be said within ``patience`` seconds."""
        return self._put(None, patience)

    def wait(self, seconds: float) -> bool:
        """Whether it is over within so many seconds."""
        return self._over.wait(max(0.0, seconds))

    def abandon(self) -> None:
        """Write no further; the file does not appear. Does not wait."""
        self._abandoned.set()

    def _put(self, item: SavedBlock | None, patience: float) -> bool:
        try:
            self._blocks.put(item, block=patience > 0, timeout=patience or None)
        except queue.Full:
            return False
        return True

    # ------------------------------------------------------------------ the writer's thread

    def _run(self) -> None:
        part = self._path.with_name(f"{self._path.name}.part")
        try:
            with _own(part) as file:
                self._write(file)
                if not self._abandoned.is_set():
                    part.replace(self._path)
                    _sync_directory(self._path.parent)
                    return
                part.unlink(missing_ok=True)
                self.error = TimeoutError("the time for it was up")
        except OSError as error:
            self.error = error
        finally:
            self._over.set()

    def _write(self, file: BinaryIO) -> None:
        file.write(encode_head(self._identity))
        unsynced = 0
        while (block := self._next()) is not None:
            unsynced += file.write(encode_block(block))
            self.written += 1
            if unsynced >= SYNC_EVERY:
                file.flush()
                os.fdatasync(file.fileno())
                unsynced = 0
        if self._abandoned.is_set():
            return
        file.write(encode_tail(Tail(self.written, time.time(), self._pins)))
        file.flush()
        os.fsync(file.fileno())
        self.bytes = file.tell()

    def _next(self) -> SavedBlock | None:
        while not self._abandoned.is_set():
            with contextlib.suppress(queue.Empty):
                return self._blocks.get(timeout=_POLL)
        return None


@contextlib.contextmanager
def _own(part: Path) -> Iterator[BinaryIO]:
    """An empty file that nobody else writes to and nobody else can read: it holds what prompts said. Removed where writing it fails.

    Raises BlockingIOError where another server is just saving to the same place.
    """
    handle = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "wb") as file:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not part.exists() or part.stat().st_ino != os.fstat(handle).st_ino:
            raise BlockingIOError(f"{part}: another server has just saved to the same place")
        try:
            os.fchmod(handle, 0o600)  # an old one's mode may be another
            os.truncate(handle, 0)
            yield file
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def _sync_directory(directory: Path) -> None:
    """The new name, too, survives a loss of power."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
