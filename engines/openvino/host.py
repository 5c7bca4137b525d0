"""What this process may use of the machine. A container's limits count, which neither psutil nor the library looks at."""

from __future__ import annotations

import math
import os
from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")
"""Where a container sees the limits of its own control group, version 2 (Linux, Documentation/admin-guide/cgroup-v2.rst)."""


def available_memory(cgroup: Path = CGROUP) -> int:
    """Bytes that can still be taken: the machine's, or what the control group leaves if that is less."""
    available = int(psutil.virtual_memory().available)
    limit, used = _number(cgroup / "memory.max"), _number(cgroup / "memory.current")
    if limit is None or used is None:
        return available
    return max(0, min(available, limit - used + _reclaimable(cgroup / "memory.stat")))


def usable_cores(cgroup: Path = CGROUP) -> int:
    """Cores that may be kept busy: those that the process may run on, or its share of time if that is less."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(cgroup / "cpu.max")
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def _quota(path: Path) -> float | None:
    """Cores' worth of time in a period; None = no limit."""
    fields = _read(path).split()
    if len(fields) != 2 or fields[0] == "max":
        return None
    return int(fields[0]) / int(fields[1])


def _reclaimable(path: Path) -> int:
    """Page cache that counts as used but is given up on demand."""
    for line in _read(path).splitlines():
        name, _, value = line.partition(" ")
        if name == "inactive_file":
            return int(value)
    return 0


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdecimal() else None


def _read(path: Path) -> str:
    """Empty where there is no such file: no control groups, or of version 1."""
    try:
        return path.read_text()
    except OSError:
        return ""
