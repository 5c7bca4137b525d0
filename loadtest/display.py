"""The run while it runs: one line that is redrawn on a terminal, a line every ten seconds elsewhere. On standard error."""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import Self

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.text import Text

from loadtest.progress import Snapshot
from loadtest.table import milliseconds
from loadtest.transports.base import LoadSample

QUIET_SECONDS = 10.0
RECENT = 400
"""First tokens that the shown percentiles look back on."""


class Display:
    """Fed by Run's ``on_update``. A context manager; one thread."""

    def __init__(self, duration: float | None, *, silent: bool = False) -> None:
        self._console = Console(stderr=True, quiet=silent)
        self._live = Live(console=self._console, refresh_per_second=4, transient=True) if sys.stderr.isatty() else None
        self._duration = duration
        self._sent = self._tokens = 0
        self._statuses: Counter[str] = Counter()
        self._ttfts: list[float] = []
        self._load: LoadSample | None = None
        self._rate = 0.0
        self._since = (0.0, 0)
        self._said = time.monotonic()

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._live is not None:
            self._live.stop()

    def on_update(self, at: float, snapshot: Snapshot, load: LoadSample | None) -> None:
        self._sent += snapshot.sent
        self._tokens += snapshot.tokens
        self._statuses.update(snapshot.statuses)
        self._ttfts = (self._ttfts + snapshot.ttfts)[-RECENT:]
        self._load = load or self._load
        if at - self._since[0] >= 1.0:
            self._rate = (self._tokens - self._since[1]) / (at - self._since[0])
            self._since = at, self._tokens
        self._show(self._line(at))

    def _line(self, at: float) -> str:
        done = sum(self._statuses.values())
        failed = done - self._statuses["OK"]
        total = f"/{self._duration:.0f}" if self._duration else ""
        parts = [
            f"{at:5.0f}{total} s",
            f"sent {self._sent}",
            f"running {self._sent - done}",
            f"ok {self._statuses['OK']}",
        ]
        if failed:
            parts.append(f"failed {failed}")
        parts.append(f"{self._rate:.0f} tokens/s")
        if self._ttfts:
            p50, p99 = np.percentile(self._ttfts, (50, 99))
            parts.append(f"first token p50 {milliseconds(float(p50))} p99 {milliseconds(float(p99))} ms")
        if self._load is not None:
            parts.append(
                f"server: {self._load.running} run, {self._load.waiting} wait, KV {self._load.kv_utilisation:.0%}"
            )
        return "  ".join(parts)

    def _show(self, line: str) -> None:
        if self._live is not None:
            self._live.update(Text(line))
        elif time.monotonic() - self._said >= QUIET_SECONDS:
            self._said = time.monotonic()
            self._console.print(line, highlight=False)
