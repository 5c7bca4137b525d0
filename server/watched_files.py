"""Files that others replace while the server runs: certificates, the access file."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)


class WatchedFiles:
    """Looks at the files each ``period`` seconds and reads them again when one has changed.

    By its time, size and inode, through symbolic links: Kubernetes replaces a link. What cannot be read, or is wrong, changes
    nothing and is tried again, since the files of a set are replaced one after the other.
    """

    def __init__(
        self,
        name: str,
        files: Sequence[Path],
        reload: Callable[[], None],
        *,
        period: float,
        reloaded: Callable[[str, bool], None],
    ) -> None:
        """``reload`` runs on a thread and raises ValueError or OSError. ``reloaded(name, ok)`` is called on the event loop."""
        self._name = name
        self._files = files
        self._reload = reload
        self._period = period
        self._reloaded = reloaded
        self._seen = self._look()

    async def watch(self) -> None:
        """Ends by being cancelled."""
        failed: object = None
        while True:
            await asyncio.sleep(self._period)
            seen = await asyncio.to_thread(self._look)
            if seen == self._seen:
                continue
            try:
                await asyncio.to_thread(self._reload)
            except (ValueError, OSError) as error:
                if seen != failed:  # once for each state of the files
                    log.error("cannot reload, the old stays", what=self._name, why=str(error))  # noqa: TRY400
                    self._reloaded(self._name, False)
                failed = seen
            else:
                self._seen, failed = seen, None
                log.info("reloaded", what=self._name)
                self._reloaded(self._name, True)

    def _look(self) -> object:
        return tuple(_signature(path) for path in self._files)


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
