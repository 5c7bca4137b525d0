"""A conversion or an embedded build, in a process of its own, and the most memory that it had.

    python -m tests.build_scripts.measured_memory {convert,build} FORM MODEL OUTPUT

FORM is that of the weights; a conversion has none and ignores it. Prints, in bytes, the peaks of RssAnon (pages of mapped files are the
kernel's to drop and not counted) and of VmRSS (they are), sampled every few milliseconds, and what the plan billed.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from build_scripts.numerics import WeightForm
from tests.engines_built import SilentReporter


class Peak(threading.Thread):
    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.anonymous = self.resident = 0
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(0.003):
            status = Path("/proc/self/status").read_text()
            self.anonymous = max(self.anonymous, _kilobytes(status, "RssAnon"))
            self.resident = max(self.resident, _kilobytes(status, "VmRSS"))

    def finish(self) -> None:
        self._ended.set()
        self.join()


def _kilobytes(status: str, field: str) -> int:
    """A field of /proc/self/status, in bytes."""
    found = re.search(rf"{field}:\s+(\d+) kB", status)
    return int(found[1]) * 1024 if found else 0


def convert(_: WeightForm, model: str, output: Path) -> int:
    from build_scripts.trtllm.build import build, make_plan
    from tests.build_scripts.trtllm.watched_conversion import request

    plan = make_plan(request(model, output, tp=2, pp=2), SilentReporter())
    build(plan, SilentReporter())
    return plan.bill.build_memory


def build(weights: WeightForm, model: str, output: Path) -> int:
    """All of it, its proof included."""
    from build_scripts import build as embedded
    from build_scripts.numerics import NumericsWish

    request = embedded.BuildRequest(model, output, NumericsWish(weights=weights), output.parent)
    plan = embedded.make_plan(request, SilentReporter())
    embedded.build(plan, SilentReporter())
    return plan.bill.build_memory


WORKS: dict[str, Callable[[WeightForm, str, Path], int]] = {"convert": convert, "build": build}


def main() -> None:
    work, form, model, output = sys.argv[1:]
    weights: Any = form
    peak = Peak()
    peak.start()
    billed = WORKS[work](weights, model, Path(output))
    peak.finish()
    print(peak.anonymous, peak.resident, billed)  # noqa: T201 - it is a program


if __name__ == "__main__":
    main()
