"""Starts the greedy proof on the ranks that the engine is for, as it will be served: under mpirun."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import msgspec

from build_scripts.errors import SourceError
from build_scripts.progress import Reporter
from build_scripts.trtllm.compile import run_logged
from build_scripts.trtllm.greedy import GreedyProof, Probe, Probes, judge

PROBE_TEXT = "The history of a river is written in its valley."
"""What an engine without a reference is asked to go on with."""


def prove_greedy(probes: Probes, engine: Path, ranks: int, reporter: Reporter) -> GreedyProof:
    """Raises BuildError where the engine does not start, and VerificationError where it says something else."""
    reporter.note(f"verifying {len(probes.probes)} greedy continuations against {probes.reference or 'no reference'}")
    with tempfile.TemporaryDirectory() as folder:
        asked, answers = Path(folder) / "probes.json", Path(folder) / "answers.json"
        asked.write_bytes(msgspec.json.encode(probes))
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        rank = [
            sys.executable,
            "-m",
            "mpi4py",
            "-m",
            "build_scripts.trtllm.greedy",
            str(engine),
            str(asked),
            str(answers),
        ]
        run_logged(["mpirun", *root, "-n", str(ranks), "--bind-to", "none", "--oversubscribe", *rank], reporter)
        said = msgspec.json.decode(answers.read_bytes(), type=list[list[int]])
    return judge(probes, said)


def read_probes(path: Path | None, fallback: list[int]) -> Probes:
    """A reference made elsewhere, or one prompt about whose continuation nothing is known. Raises SourceError."""
    if path is None:
        return Probes("", (Probe(tuple(fallback), ()),))
    try:
        return msgspec.json.decode(path.read_bytes(), type=Probes)
    except (OSError, msgspec.DecodeError) as error:
        raise SourceError(f"{path}: no reference can be read from it: {error}") from error
