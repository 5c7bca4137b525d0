"""A conversion in a process of its own: whole, killed at a chosen file operation or write, or with a limit on file sizes.

    python -m tests.build_scripts.trtllm.watched_conversion MODEL OUTPUT [--kill-at N] [--file-limit BYTES]

Prints how many operations the work took.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import sys
from pathlib import Path

from build_scripts.errors import BuildError
from build_scripts.safetensors_file import SafetensorsWriter
from build_scripts.trtllm.build import CheckpointRequest, build, make_plan
from build_scripts.trtllm.layout import Layout
from tests.engines_built import SilentReporter

OPERATIONS = frozenset({"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "fcntl.flock"})


class Watch:
    """Counts file operations and the tensors written, and kills the process at one of them."""

    def __init__(self, kill_at: int) -> None:
        self.count = 0
        self._kill_at = kill_at
        sys.addaudithook(lambda event, _: self.saw() if event in OPERATIONS else None)
        put = SafetensorsWriter._put

        def watched(writer: SafetensorsWriter, data: memoryview, offset: int) -> None:
            self.saw()
            put(writer, data, offset)

        SafetensorsWriter._put = watched  # type: ignore[method-assign, assignment]

    def saw(self) -> None:
        self.count += 1
        if self.count == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


def request(model: str, output: Path, tp: int = 2, pp: int = 2) -> CheckpointRequest:
    return CheckpointRequest(model, output, Layout(tp, pp), None, None, share_embedding=False, cache=output.parent)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("output", type=Path)
    parser.add_argument("--kill-at", type=int, default=0)
    parser.add_argument("--file-limit", type=int)
    arguments = parser.parse_args()
    plan = make_plan(request(arguments.model, arguments.output), SilentReporter())
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
