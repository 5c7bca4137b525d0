"""`make gpu-check`: what only a machine with GPUs can show about TensorRT-LLM, as one report to send back.

Seven checks, each by itself: one that fails or cannot run does not stop the others, and the report says which. Nothing of it is
assumed to have passed anywhere: docs/tensorrt-llm.md lists what these answers would settle.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu_checks import CHECKS
from benchmarks.gpu_workbench import NotHereError, Workbench

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


@dataclass(frozen=True)
class Outcome:
    number: int
    question: str
    status: str
    seconds: float
    found: Any
    """What was measured or read; of a failure, the error."""


def run_check(number: int, question: str, check: Callable[[Workbench], Any], bench: Workbench) -> Outcome:
    """Never raises: what goes wrong is the answer."""
    began = time.perf_counter()
    try:
        status, found = PASSED, check(bench)
    except NotHereError as reason:
        status, found = SKIPPED, str(reason)
    except Exception:  # noqa: BLE001 - a report about failures must survive them
        status, found = FAILED, traceback.format_exc(limit=8)
    return Outcome(number, question, status, round(time.perf_counter() - began, 2), found)


def run(bench: Workbench) -> list[Outcome]:
    outcomes = []
    for number, (question, check) in enumerate(CHECKS, 1):
        outcome = run_check(number, question, check, bench)
        print(f"{number}. {outcome.status:<8} {question} ({outcome.seconds:.1f} s)", flush=True)
        outcomes.append(outcome)
    return outcomes


def main(argv: list[str] | None = None) -> int:
    """0 = every check passed; 1 = one failed, or could not run here."""
    parser = argparse.ArgumentParser(prog="gpu-check", description=__doc__)
    parser.add_argument(
        "--model", default="HuggingFaceTB/SmolLM2-360M-Instruct", help="a small model whose heads divide by 2"
    )
    parser.add_argument(
        "--nvidia-converter", type=Path, help="NVIDIA's convert_checkpoint.py for Llama, to compare rank files with"
    )
    parser.add_argument("--report", type=Path, default=Path("artifacts/gpu-check.json"))
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        bench = Workbench(arguments.model, arguments.nvidia_converter, Path(folder))
        outcomes = run(bench)
        report = {"environment": bench.environment(), "checks": [asdict(outcome) for outcome in outcomes]}
    arguments.report.parent.mkdir(parents=True, exist_ok=True)
    arguments.report.write_text(json.dumps(report, indent=2) + "\n")
    print(f"report: {arguments.report}")
    return 0 if all(outcome.status == PASSED for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
