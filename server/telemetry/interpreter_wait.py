"""How long a thread that wants the interpreter waits for it: what the engine thread does to the event loop, and a library to both.

A thread sleeps for random short times and sees how late it runs. A sleep needs no interpreter, its end does: the thread is late by the
wait for the interpreter's lock, by the kernel's timer, and by the time that it was ready and no processor was free. The kernel accounts for the
last (``/proc/…/schedstat``, run delay), so it is taken off; the timer adds some 0.06 ms, which stays. Random, because a regular
probe would always fall into the same place of a regular step. Garbage collections hold the lock, too, and are among the waits.

The alternatives: the interpreter keeps no account of its lock; a profiler that does (perf, gil_load) has to be attached; timing
``time.sleep(0)`` finds only waits that begin at the probe's own hand-over, and misses a library that holds the lock for long.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

MEAN_PERIOD = 0.05
"""Seconds between probes. One costs about 30 µs: under a thousandth of a core."""


class InterpreterWait:
    """``observe(seconds)`` is called on the probe's own thread."""

    def __init__(self, observe: Callable[[float], None]) -> None:
        self._observe = observe
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Once."""
        self._thread = threading.Thread(target=self._probe, name="interpreter-wait", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """The probe's thread ends with its next turn. Idempotent, and right where it was never started."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(10 * MEAN_PERIOD)

    def _probe(self) -> None:
        dice = random.Random()  # noqa: S311 - nobody has to be unable to guess it; the process's own dice are others' to seed
        with _RunDelay() as run_delay:
            before = run_delay.seconds()
            while not self._over.is_set():
                period = dice.uniform(0.5, 1.5) * MEAN_PERIOD
                began = time.perf_counter()
                time.sleep(period)
                late = time.perf_counter() - began - period
                now = run_delay.seconds()
                self._observe(max(0.0, late - (now - before)))
                before = now


class _RunDelay:
    """The calling thread's time of being ready to run without running, by the kernel's account; 0 for ever where there is none."""

    def __init__(self) -> None:
        self._file = -1

    def __enter__(self) -> Self:
        path = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        if path.exists():
            self._file = os.open(path, os.O_RDONLY)
        return self

    def __exit__(self, *_: object) -> None:
        if self._file >= 0:
            os.close(self._file)

    def seconds(self) -> float:
        return 0.0 if self._file < 0 else int(os.pread(self._file, 96, 0).split()[1]) / 1e9
