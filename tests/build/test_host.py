"""What a build gives back to the machine."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import numpy as np
import pytest

from build_scripts.host import give_back_freed_memory

MB = 10**6


def anonymous() -> int:
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have ways of their own")
def test_memory_that_was_freed_below_what_is_in_use_goes_back() -> None:
    # Small enough for the heap; every tenth stays, the last among them, so that the heap cannot simply end earlier.
    tensors = [np.ones(100_000, np.uint8) for _ in range(1000)]
    held = anonymous()
    kept = tensors[9::10]
    del tensors
    assert anonymous() >= held - 30 * MB
    give_back_freed_memory()
    assert anonymous() <= held - 70 * MB
    assert sum(int(tensor[0]) for tensor in kept) == 100
