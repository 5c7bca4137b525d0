"""GPUs that models are planned and built for, with their makers' public figures.

Datasheets say GB and mean what the driver shows within a few percent as GiB; the planner's usable share of 0.9 covers the
difference, the driver's own memory and, on cards with GDDR, inline ECC. Compute is dense (no sparsity) with 32-bit accumulation.
"""

from __future__ import annotations

from dataclasses import dataclass

from build_scripts.errors import UnsupportedError

GIB = 1 << 30
GB = 10**9
TERA = 10**12


@dataclass(frozen=True, kw_only=True)
class Device:
    name: str
    compute_capability: str
    memory: int
    """Bytes."""
    bandwidth: int
    """Bytes per second of its memory."""
    flops_16: int
    """Dense operations per second in bfloat16."""
    flops_8: int
    """In FP8; equal to flops_16 where the device has none."""
    link: int
    """Bytes per second to its neighbours, one direction: NVLink where it has it, else PCI Express."""
    max_linked: int
    """Devices that such links join in one machine."""

    @property
    def has_fp8(self) -> bool:
        return self.flops_8 > self.flops_16


_TABLE = (
    # name, compute capability, GiB, GB/s, dense tera-operations/s in bfloat16 and in FP8, GB/s to neighbours, how many neighbours
    ("A10", "8.6", 24, 600, 125, 125, 32, 4),
    ("A100-40GB", "8.0", 40, 1555, 312, 312, 300, 8),
    ("A100-80GB", "8.0", 80, 2039, 312, 312, 300, 8),
    ("B200", "10.0", 180, 8000, 2250, 4500, 900, 8),
    ("H100-80GB", "9.0", 80, 3350, 989, 1979, 450, 8),
    ("H100-NVL", "9.0", 94, 3938, 835, 1671, 300, 2),
    ("H20", "9.0", 96, 4000, 148, 296, 450, 8),
    ("H200", "9.0", 141, 4800, 989, 1979, 450, 8),
    ("L4", "8.9", 24, 300, 121, 242, 32, 8),
    ("L40S", "8.9", 48, 864, 362, 733, 32, 8),
    ("RTX-4090", "8.9", 24, 1008, 165, 330, 32, 4),
    ("RTX-5090", "12.0", 32, 1792, 209, 419, 64, 4),
    ("RTX-6000-Ada", "8.9", 48, 960, 364, 728, 32, 8),
)

DEVICES: dict[str, Device] = {
    name: Device(
        name=name,
        compute_capability=capability,
        memory=gib * GIB,
        bandwidth=bandwidth * GB,
        flops_16=tera_16 * TERA,
        flops_8=tera_8 * TERA,
        link=link * GB,
        max_linked=linked,
    )
    for name, capability, gib, bandwidth, tera_16, tera_8, link, linked in _TABLE
}
"""By name."""


def find_device(name: str) -> Device:
    """By name, whatever its case; a unique beginning will do. Raises UnsupportedError naming those there are."""
    wanted = name.upper().replace(" ", "-")
    exact = [device for key, device in DEVICES.items() if key.upper() == wanted]
    found = exact or [device for key, device in DEVICES.items() if key.upper().startswith(wanted)]
    if len(found) != 1:
        known = ", ".join(DEVICES)
        problem = "is not in the table" if not found else f"could be {' or '.join(device.name for device in found)}"
        raise UnsupportedError(f"device {name!r} {problem}; there are {known}")
    return found[0]
