"""The device that a bill is drawn up for: one of the table, one of a given size, or the one that is in this machine."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass

from build_scripts.devices import GIB, find_device
from build_scripts.errors import UnsupportedError

MIB = 1 << 20
USABLE = 0.9
"""Share of a device's memory that a server may plan with; the rest is the driver's, the libraries' and fragmentation's."""
LEAST_CAPABILITY = {"FP8": "8.9", "NVFP4": "10.0"}
"""By quantisation: the first compute capability whose tensor cores have the format."""


@dataclass(frozen=True)
class TargetDevice:
    name: str
    memory: int
    """Bytes."""
    compute_capability: str | None
    """"9.0"; None where only the size is known."""

    @property
    def usable(self) -> int:
        return int(self.memory * USABLE)


def target_device(name: str) -> TargetDevice:
    """A name of the table, or a size as "48GB" (of 2^30 bytes). Raises UnsupportedError with the names there are."""
    size = re.fullmatch(r"(\d+(?:\.\d+)?) ?gi?b", name, re.IGNORECASE)
    if size:
        return TargetDevice(name, int(float(size[1]) * GIB), None)
    device = find_device(name)
    return TargetDevice(device.name, device.memory, device.compute_capability)


def detect_devices() -> list[TargetDevice]:
    """The GPUs of this machine as nvidia-smi reports them; none where it is not there or sees none."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    query = [tool, "--query-gpu=name,memory.total,compute_cap", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [device for line in answer.splitlines() if (device := parse_report(line)) is not None]


def parse_report(line: str) -> TargetDevice | None:
    """One line of nvidia-smi: name, MiB, compute capability. None for a line of another form ("[N/A]")."""
    fields = [field.strip() for field in line.split(",")]
    if len(fields) != 3 or not fields[1].isdigit():
        return None
    return TargetDevice(fields[0], int(fields[1]) * MIB, fields[2])


def check_capability(device: TargetDevice, quantisation: str | None) -> None:
    """Raises UnsupportedError where the device's tensor cores lack the format."""
    least, have = LEAST_CAPABILITY.get(quantisation or ""), device.compute_capability
    if least and have and _number(have) < _number(least):
        raise UnsupportedError(f"{quantisation} needs compute capability {least} or later, {device.name} has {have}")


def _number(capability: str) -> tuple[int, ...]:
    return tuple(int(part) for part in capability.split("."))
