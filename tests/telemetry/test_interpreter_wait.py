"""The probe sees who holds the interpreter, and ends when it is told to."""

from __future__ import annotations

import ctypes
import threading
import time

from server.telemetry.interpreter_wait import InterpreterWait


def test_a_library_that_holds_the_interpreter_is_seen() -> None:
    holding = ctypes.PyDLL(None)  # unlike CDLL it keeps the lock while it is inside the library
    seen: list[float] = []
    probe = InterpreterWait(seen.append)
    probe.start()
    until = time.monotonic() + 60
    while max(seen, default=0.0) < 0.05 and time.monotonic() < until:
        holding.usleep(100_000)
        time.sleep(0.02)  # which lets the probe fall asleep again
    probe.close()
    assert max(seen) >= 0.05
    assert min(seen) >= 0.0


def test_it_ends() -> None:
    seen = threading.Event()
    probe = InterpreterWait(lambda _: seen.set())
    probe.close()  # never started
    probe = InterpreterWait(lambda _: seen.set())
    probe.start()
    assert seen.wait(60)
    probe.close()
    probe.close()
    assert probe._thread is not None
    probe._thread.join(60)
    assert not probe._thread.is_alive()
