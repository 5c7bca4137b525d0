"""What an engine leaves behind in the allocator goes back to the system."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import threading, psutil
from server.memory import give_back

def load():
    held = [bytes(1000) for _ in range(60_000)]  # too large for Python's own allocator, too small for pages of their own
    kept.append(held[-1])

kept, process = [], psutil.Process()
loader = threading.Thread(target=load)
loader.start()
loader.join()
before = process.memory_info().rss
give_back()
print(before - process.memory_info().rss)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators return pages by themselves")
def test_pages_that_a_loader_freed_are_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 40_000_000
