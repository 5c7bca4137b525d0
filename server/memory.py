"""Memory that is no longer needed, given back to the system."""

from __future__ import annotations

import ctypes
import gc
import sys


def give_back() -> None:
    """After something large was let go: collect what is in cycles, then have the allocator return its free pages.

    glibc keeps freed pages in the arena of the thread that took them, and each engine is loaded by a thread of its own; without this a server
    that is swapped now and then grows. Other allocators return pages by themselves. Any thread; some milliseconds, of which the
    collection holds the interpreter.
    """
    gc.collect()
    if _trim is not None:
        _trim(0)


_trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
"""glibc's malloc_trim(3); None where there is no such thing."""
