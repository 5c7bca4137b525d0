"""Keeps the prefix cache beyond the process: restores it at start, saves it at the end and, where something is new, now and then before.

Blocks can be read only between two steps, and a step must not wait for that. So a save is cut into slices: each turn of the engine's loop
copies some blocks, for about a millisecond, and a thread of its own writes them. A published block never changes, so it does not
matter when it is copied; one that was evicted meanwhile is left out, and with it what stood behind it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import structlog

from engines.contract import EngineError, StepRunner
from server.cache_tasks import PinPrefix, SavedCacheStats
from server.errors import ServerError
from server.kv.node import NO_BLOCK
from server.kv.prefix_cache import PrefixCache
from server.saved_cache.layout import (
    CacheIdentity,
    CorruptCacheError,
    ForeignCacheError,
    SavedCacheError,
    SavedPin,
)
from server.saved_cache.reader import CacheReader
from server.saved_cache.save import Save
from server.saved_cache.writer import CacheWriter
from server.scheduling.prefixes import Prefixes

log = structlog.get_logger(__name__)

SLICE = 0.001
"""Seconds of a turn that a save may take; at least one block is copied in each."""
PAUSE = 0.002
"""Seconds that an idle loop sleeps between two slices."""
LAST_SYNC = 2.0
"""Of the time that the save at the end has, what is left for the disk's last word."""
BATCH = 16
"""Blocks that are restored with one call."""


class KeeperSettings(msgspec.Struct, frozen=True):
    path: Path
    max_bytes: int
    """Of blocks in the file."""
    save_timeout: float
    """Seconds for the save at the end."""
    interval: float
    """Seconds between two saves while the server runs; 0 = none but at the end."""
    restore_timeout: float


class CacheKeeper:
    """One engine's. ``restore`` before the engine starts; everything else on the engine thread, while no step is in flight."""

    def __init__(
        self,
        cache: PrefixCache,
        prefixes: Prefixes,
        runner: StepRunner,
        settings: KeeperSettings,
        *,
        fingerprint: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``clock`` is that of the pins."""
        limits = runner.limits
        self._cache = cache
        self._prefixes = prefixes
        self._runner = runner
        self._settings = settings
        self._clock = clock
        self._identity = CacheIdentity(
            fingerprint=fingerprint,
            block_format=limits.block_format,
            block_size=limits.block_size,
            block_bytes=limits.bytes_per_block,
        )
        self._save: Save | None = None
        self._saved_state: tuple[int, list[tuple[bytes, float]]] = (0, [])
        self._due = clock() + settings.interval
        self.stats = SavedCacheStats()
        """Replaced as a whole: any thread may read it."""

    # ------------------------------------------------------------------ start

    def restore(self) -> None:
        """Put back what was saved, as far as it fits and the time for it lasts. A file that is not wholly right changes nothing. Never raises
        for the file's sake."""
        began, path = self._clock(), self._settings.path
        if not path.parent.is_dir() or path.is_dir():
            # Said now: the first save may be minutes away, and would fail in silence but for the log.
            why = f"it is a directory: {path}" if path.is_dir() else f"there is no directory {path.parent}"
            log.warning("the cache cannot be saved there", knob="cache.save_path", path=str(path), why=why)
        try:
            with CacheReader(path, self._identity) as reader:
                restored = self._read(reader, began + self._settings.restore_timeout)
        except FileNotFoundError:
            log.info("no saved cache", path=str(path))
            return
        except (SavedCacheError, OSError) as error:
            self._cache.forget()
            outcome = _outcome(error)
            log.warning("saved cache ignored", path=str(path), outcome=outcome, why=str(error))
            self._count(restores={outcome: 1})
            return
        self._pin_again(reader.tail.pins)
        self._saved_state = self._state()
        self._count(restores={"restored": 1}, restored_blocks=restored)
        age = round(time.time() - reader.tail.saved_at, 1)
        log.info("saved cache restored", blocks=restored, of=reader.tail.blocks, seconds_old=age)

    def _read(self, reader: CacheReader, until: float) -> int:
        cache, total = self._cache, reader.tail.blocks
        restored = 0
        blocks: list[int] = []
        contents: list[bytes] = []
        for index, saved in enumerate(reader.blocks()):
            if not saved.rooted and cache.find(saved.parent) is None:
                raise CorruptCacheError(f"block {index} stands before its parent")
            block = cache.restore(saved.parent, saved.digest, saved.tokens, last_use=total - index, reuses=saved.reuses)
            if block == NO_BLOCK:
                break  # a smaller pool than the one that was saved
            blocks.append(block)
            contents.append(saved.content)
            restored += 1
            if len(blocks) == BATCH:
                self._runner.write_blocks(blocks, contents)
                blocks, contents = [], []
                if self._clock() > until:
                    break
        if blocks:
            self._runner.write_blocks(blocks, contents)
        return restored

    def _pin_again(self, pins: tuple[SavedPin, ...]) -> None:
        """What operators wanted to keep, for the rest of its time, as far as it is there."""
        for pin in pins:
            left = pin.until - time.time()
            if left <= 0.0:
                continue
            try:
                self._prefixes.perform(PinPrefix(pin.name, left), self._clock())
            except ServerError as error:
                log.warning("pin not restored", why=str(error))

    # ------------------------------------------------------------------ now and then

    @property
    def saving(self) -> bool:
        """A save is under way, so an idle loop should turn again after PAUSE."""
        return self._save is not None

    def turn(self) -> None:
        """Between two steps: begin a save where one is due, move one that is under way."""
        save = self._save
        if save is not None:
            self._move(save)
        elif self._settings.interval and self._clock() >= self._due:
            self._due = self._clock() + self._settings.interval
            if self._state() != self._saved_state:
                self._save = self._begin()

    def _move(self, save: Save) -> None:
        if save.writer.over:
            self._close(save)
        elif not save.ended:
            save.copy(self._clock() + SLICE, self._clock)

    # ------------------------------------------------------------------ the end

    def finish(self, seconds: float) -> None:
        """The last save, within so many seconds: what was used last comes first, and what there is no time for is left out. Raises
        EngineErrors, and then nothing was saved."""
        if self._save is not None:
            self._save.writer.abandon()
            self._save.writer.wait(min(1.0, seconds))
            self._save = None
        until = self._clock() + min(seconds, self._settings.save_timeout)
        if until <= self._clock() or self._state() == self._saved_state:
            return
        save = self._begin()
        try:
            save.copy_all(max(until - LAST_SYNC, (self._clock() + until) / 2), self._clock)
        except EngineError:
            save.writer.abandon()
            raise
        if not save.ended or not save.writer.wait(until - self._clock()):
            save.writer.abandon()
            save.writer.wait(LAST_SYNC / 2)
        self._close(save)

    def abandon(self) -> None:
        """The engine goes without a last save. One that is under way is given up, so that its file is free for the next engine's."""
        if self._save is not None:
            self._save.writer.abandon()
            self._save = None

    # ------------------------------------------------------------------ both

    def _begin(self) -> Save:
        most = self._settings.max_bytes // self._identity.record_bytes
        self._saved_state = self._state()
        ahead = time.time() - self._clock()
        pins = tuple(SavedPin(name, until + ahead) for name, until in self._prefixes.pins())
        return Save(self._cache, self._runner, CacheWriter(self._settings.path, self._identity, pins), most)

    def _state(self) -> tuple[int, list[tuple[bytes, float]]]:
        """What a save would save: changes whenever there is something new."""
        return self._cache.publications, self._prefixes.pins()

    def _close(self, save: Save) -> None:
        self._save = None
        writer, path = save.writer, str(self._settings.path)
        if writer.over and writer.error is None:
            log.info("cache saved", path=path, blocks=writer.written, bytes=writer.bytes)
            self._count(saves={"saved": 1}, saved_blocks=writer.written)
            return
        self._saved_state = (-1, [])  # so that the next one tries again
        why = str(writer.error or "the disk did not answer in time")
        log.warning("cache not saved", path=path, why=why)
        self._count(saves={"failed": 1})

    def _count(
        self,
        *,
        saves: dict[str, int] | None = None,
        restores: dict[str, int] | None = None,
        saved_blocks: int | None = None,
        restored_blocks: int | None = None,
    ) -> None:
        old = self.stats
        self.stats = SavedCacheStats(
            saves=_added(old.saves, saves or {}),
            restores=_added(old.restores, restores or {}),
            saved_blocks=old.saved_blocks if saved_blocks is None else saved_blocks,
            restored_blocks=old.restored_blocks if restored_blocks is None else restored_blocks,
        )


def _outcome(error: Exception) -> str:
    if isinstance(error, ForeignCacheError):
        return "foreign"
    return "corrupt" if isinstance(error, CorruptCacheError) else "unreadable"


def _added(counts: dict[str, int], more: dict[str, int]) -> dict[str, int]:
    return {name: counts.get(name, 0) + more.get(name, 0) for name in counts | more}
