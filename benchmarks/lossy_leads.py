"""Which of the reference's leads do weights of fewer bits overturn? What the proof of int8 and int4 takes for clear rests on it.

    python -m benchmarks.lossy_leads MODEL DIRECTORY

MODEL and DIRECTORY as benchmarks.weight_forms takes them (engines that are there are used). For each form: quantiles of the
difference of log-probabilities from the reference over the golden positions, and of the leads at positions whose likeliest token is
another; the least lead from which no more than the share that build_scripts.verify calls a clear miss is overturned; and the
share of the positions at which the reference leads by so much or more whose likeliest token is the reference's.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.form_bench import FormBench
from benchmarks.weight_forms import opened, prepare
from build_scripts.numerics import NumericsChoice
from build_scripts.verify import CLEAR_MISSES

CHOICES = (
    NumericsChoice("f32", "f32", "f32"),
    NumericsChoice("bf16", "bf16", "bf16"),
    NumericsChoice("int8", "f16", "f32"),
    NumericsChoice("int8", "bf16", "bf16"),
    NumericsChoice("int4", "f16", "f32"),
    NumericsChoice("int4", "bf16", "bf16"),
)
_QUANTILES = (0.5, 0.9, 0.99, 1.0)
_LEADS = (0.25, 0.5, 1.0, 2.0, 4.0)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lossy_leads")
    parser.add_argument("model", help="as firsttoken build takes it")
    parser.add_argument("directory", type=Path, help="where engines are written, and found again")
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    subject = opened(arguments.model, arguments.directory)
    print(f"reference: {subject.golden.reference}, {subject.golden.positions} positions; 50 / 90 / 99 / 100 %")
    print("| weights | activations | difference | overturned | leads overturned | clear from ", end="")
    print(f"| as the reference where it leads by {' / '.join(map(str, _LEADS))} |")
    print("|---|---|---|---|---|---|---|")
    leads = [lead for sequence in subject.golden.sequences for lead in sequence.lead]
    for choice in CHOICES:
        prepare(subject, choice)
        bench = FormBench(subject.engine(choice.weights), subject.checkpoint, choice, subject.text)
        try:
            differences, overturned = bench.against(subject.golden)
        finally:
            bench.close()
        print(
            f"| {choice.weights} | {choice.activations} | {quantiles(differences)} | {len(overturned)} | {quantiles(overturned)} "
            f"| {clear_from(overturned, subject.golden.positions):.2f} "
            f"| {' / '.join(f'{kept(overturned, leads, least):.1%}' for least in _LEADS)} |",
            flush=True,
        )


def quantiles(values: Sequence[float]) -> str:
    return " / ".join(f"{np.quantile(values, share):.2g}" for share in _QUANTILES) if values else "none"


def clear_from(overturned: Sequence[float], positions: int) -> float:
    """The least lead from which no more than CLEAR_MISSES of all positions are overturned."""
    allowed = int(CLEAR_MISSES * positions)
    falling = sorted(overturned, reverse=True)
    return falling[allowed] if len(falling) > allowed else 0.0


def kept(overturned: Sequence[float], leads: Sequence[float], least: float) -> float:
    """Of the positions whose lead is ``least`` or more, the share that is not overturned."""
    return 1 - sum(lead >= least for lead in overturned) / sum(lead >= least for lead in leads)


if __name__ == "__main__":
    main()
