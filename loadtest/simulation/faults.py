"""Faults that a simulation is given: ``error@120``, ``die@500``, ``slow@40:2.5``, by the number of the step."""

from __future__ import annotations

import re
from collections.abc import Sequence

from engines.simulated.faults import Faults
from loadtest.errors import WorkloadError

_FAULT = re.compile(r"(error|die|slow)@(\d+)(?::([0-9.]+))?")


def parse_faults(texts: Sequence[str]) -> Faults:
    """Raises WorkloadError."""
    errors: list[int] = []
    slow: dict[int, float] = {}
    die_at: int | None = None
    for text in texts:
        match = _FAULT.fullmatch(text)
        if match is None or (match[1] == "slow") != (match[3] is not None):
            raise WorkloadError(f"--fault: {text!r} is none of error@STEP, die@STEP, slow@STEP:SECONDS")
        step = int(match[2])
        if match[1] == "error":
            errors.append(step)
        elif match[1] == "die":
            die_at = step
        else:
            slow[step] = float(match[3])
    return Faults(fail_steps=errors, die_at=die_at, slow_steps=slow)
