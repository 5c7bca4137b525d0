"""A conversion, an embedded build, or only what writes its engine, in a process of its own, and its most anonymous memory.

    python -m tests.build_scripts.measured_memory {convert,embed,bf16,int8,int4} MODEL OUTPUT

Prints the peak of RssAnon in bytes, sampled every few milliseconds: pages of mapped files are the kernel's to drop and not
counted.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

from build_scripts.numerics import WeightForm
from tests.engines_built import SilentReporter


class Peak(threading.Thread):
    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.bytes = 0
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(0.003):
            status = Path("/proc/self/status").read_text()
            found = re.search(r"RssAnon:\s+(\d+) kB", status)
            self.bytes = max(self.bytes, int(found[1]) * 1024 if found else 0)

    def finish(self) -> int:
        self._ended.set()
        self.join()
        return self.bytes


def convert(model: str, output: Path) -> None:
    from build_scripts.trtllm.build import build, make_plan
    from tests.build_scripts.trtllm.watched_conversion import request

    build(make_plan(request(model, output, tp=2, pp=2), SilentReporter()), SilentReporter())


def embed(model: str, output: Path) -> None:
    from build_scripts.build import BuildRequest, build, make_plan
    from build_scripts.numerics import NumericsWish

    request = BuildRequest(model, output, NumericsWish(weights="bf16"), output.parent)
    build(make_plan(request, SilentReporter()), SilentReporter())


def write(weights: WeightForm, model: str, output: Path) -> None:
    """All of an embedded build up to the files of the engine, in this form of weights; what follows only loads them."""
    from build_scripts.build import BuildRequest, make_plan, write_graph
    from build_scripts.numerics import NumericsWish

    output.mkdir()
    plan = make_plan(BuildRequest(model, output, NumericsWish(weights=weights), output.parent), SilentReporter())
    write_graph(plan, output, SilentReporter())


WORKS: dict[str, Callable[[str, Path], None]] = {
    "convert": convert,
    "embed": embed,
    "bf16": partial(write, "bf16"),
    "int8": partial(write, "int8"),
    "int4": partial(write, "int4"),
}


def main() -> None:
    work, model, output = sys.argv[1:]
    peak = Peak()
    peak.start()
    WORKS[work](model, Path(output))
    print(peak.finish())  # noqa: T201 - it is a program


if __name__ == "__main__":
    main()
