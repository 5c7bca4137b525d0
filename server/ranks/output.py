"""What the ranks write: passed on as it comes, and its last lines kept, because only they say why a library failed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

KEPT_LINES = 400
_CHUNK = 1 << 16


class RankOutput:
    def __init__(self, write: Callable[[bytes], object]) -> None:
        self._write = write
        self._kept: deque[str] = deque(maxlen=KEPT_LINES)
        self._partial = b""

    @property
    def lines(self) -> list[str]:
        """The last finished ones, oldest first."""
        return list(self._kept)

    async def pump(self, reader: asyncio.StreamReader) -> None:
        while chunk := await reader.read(_CHUNK):
            self._write(chunk)
            *whole, self._partial = (self._partial + chunk).split(b"\n")
            self._kept.extend(text.decode(errors="replace") for text in whole)
            self._partial = self._partial[-_CHUNK:]
