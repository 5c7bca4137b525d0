"""What a build needs of the machine that it runs on: refused beforehand rather than killed halfway (case A5)."""

from __future__ import annotations

import shutil
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
