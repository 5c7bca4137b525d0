"""Dying with one's parent: the kernel's doing, so that it holds even while a library keeps the interpreter from running."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Get ``number`` when the thread that forked this process ends. Survives exec. Without effect outside Linux.

    Raises OSError where the kernel refuses.
    """
    if _libc is not None and _libc.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")


def die_if_orphaned(parent: int) -> None:
    """Close the gap: the parent may have gone before the kernel was told."""
    if os.getppid() != parent:
        os._exit(1)
