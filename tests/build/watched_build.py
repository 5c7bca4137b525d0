"""A build in a process of its own: whole, killed at a chosen file operation, or with a limit on the size of files.

    python -m tests.build.watched_build MODEL OUTPUT [--kill-at N] [--file-limit BYTES]

Prints how many file operations the work took.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import sys
from pathlib import Path

from build_scripts.build import build
from build_scripts.errors import BuildError
from tests.build.builds import planned
from tests.engines_built import SilentReporter

OPERATIONS = frozenset(
    {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "shutil.rmtree", "fcntl.flock"}
)


class Watch:
    """Counts the interpreter's file operations, and kills the process at one of them."""

    def __init__(self, kill_at: int) -> None:
        self.count = 0
        self._kill_at = kill_at
        sys.addaudithook(self._saw)

    def _saw(self, event: str, arguments: tuple[object, ...]) -> None:
        if event in OPERATIONS:
            self.count += 1
            if self.count == self._kill_at:
                os.kill(os.getpid(), signal.SIGKILL)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("output", type=Path)
    parser.add_argument("--kill-at", type=int, default=0)
    parser.add_argument("--file-limit", type=int)
    arguments = parser.parse_args()
    plan = planned(arguments.model, arguments.output)
    if arguments.file_limit is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (arguments.file_limit, arguments.file_limit))
    watch = Watch(arguments.kill_at)
    try:
        build(plan, SilentReporter())
    except BuildError as error:
        print(error, file=sys.stderr)  # noqa: T201 - it is a program
        return 1
    print(watch.count)  # noqa: T201 - as above
    return 0


if __name__ == "__main__":
    sys.exit(main())
