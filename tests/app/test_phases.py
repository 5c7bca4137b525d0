"""How long a start takes is told from when the process was started, not from when it first looks."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from server.phases import Phases, process_age


def test_a_process_knows_its_age_to_the_kernels_tick() -> None:
    """Bracketed from outside: by the seconds before its start and those until its answer."""
    code = "import time; from server.phases import process_age; time.sleep(0.3); print(process_age())"
    began = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    elapsed = time.perf_counter() - began
    tick = 0.02  # the kernel counts in hundredths
    assert 0.3 <= float(done.stdout) <= elapsed + tick


def test_a_phase_that_fails_is_not_told() -> None:
    phases = Phases()
    with pytest.raises(ZeroDivisionError), phases.measure("broken"):
        _ = 1 / 0
    with phases.measure("whole"):
        pass
    phases.since_exec("ready")
    assert list(phases.seconds) == ["whole", "ready"]
    assert phases.seconds["ready"] <= process_age()
