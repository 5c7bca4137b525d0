"""What a build takes of the machine that it runs on: refused beforehand rather than killed halfway (case A5), and given back."""

from __future__ import annotations

import ctypes
import shutil
import sys
from pathlib import Path

from build_scripts.errors import BuildError, PublishError
from engines.openvino.host import available_memory


def require_room(*, memory: int, disk: int, output: Path) -> None:
    """Raises BuildError or PublishError, both numbers named, where memory or disk would run out on the way."""
    available = available_memory()
    if memory > available:
        raise BuildError(
            f"the build needs {memory / 1e6:.0f} MB of memory and {available / 1e6:.0f} MB are available; "
            "--force tries all the same"
        )
    place = next(parent for parent in [output.absolute(), *output.absolute().parents] if parent.exists())
    free = shutil.disk_usage(place).free
    if disk > free:
        raise PublishError(
            f"the result needs {disk / 1e6:.0f} MB of disk and {place} has {free / 1e6:.0f} MB left; "
            "--force tries all the same"
        )


def give_back_freed_memory() -> None:
    """Hand what the allocator has free to the kernel. glibc keeps freed memory below the greatest block in use, and tensors leave
    much of it: an engine of 0.74 GB, once written, 0.6 GB. Other allocators have no such call and are left to themselves."""
    if sys.platform != "linux":
        return
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
