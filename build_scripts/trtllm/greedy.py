"""The proof of a compiled engine: it says, greedily and on its real ranks, what the reference says.

Run as a module by mpirun, one process a rank; the leader answers the probes. Nothing of the server is involved.
"""

from __future__ import annotations

import os
import sys
from array import array
from collections.abc import Sequence
from pathlib import Path

import msgspec

from build_scripts.errors import VerificationError
from engines.contract import ExecutorRequest, RequestExecutor
from engines.manifest_file import read_manifest
from engines.sampling.params import SamplingParams
from engines.trtllm.loading import follow, load
from engines.trtllm.settings import ExecutorSettings

DIVERGENCE = 1
"""Greedy continuations that may part from the reference, of the probes: low precision breaks a near tie now and then."""


class Probe(msgspec.Struct, frozen=True):
    prompt: tuple[int, ...]
    expected: tuple[int, ...]
    """The reference's greedy continuation; empty = nothing is known, and only that tokens come is asked."""


class Probes(msgspec.Struct, frozen=True):
    reference: str
    """What they were computed with: "transformers 4.57.3, torch 2.9.1"; empty = nothing."""
    probes: tuple[Probe, ...]
    max_tokens: int = 32


class GreedyProof(msgspec.Struct, frozen=True):
    reference: str
    equal: int
    total: int
    agreement: float
    """Share of positions, up to where a continuation parts from the reference's."""
    positions: int


def answer(executor: RequestExecutor, probes: Probes) -> list[list[int]]:
    """Greedy continuations, all at once, as they will be served. Raises VerificationError for one that fails."""
    requests = [
        ExecutorRequest(
            request=number,
            tokens=array("i", probe.prompt),
            max_tokens=len(probe.expected) or probes.max_tokens,
            sampling=SamplingParams(),
            end_ids=(),
        )
        for number, probe in enumerate(probes.probes, 1)
    ]
    executor.enqueue(requests)
    said: list[list[int]] = [[] for _ in requests]
    left = len(requests)
    while left:
        for response in executor.await_responses(1.0):
            if response.error is not None:
                raise VerificationError(f"probe {response.request} failed: {response.error}")
            said[response.request - 1] += response.tokens
            left -= response.final
    return said


def judge(probes: Probes, said: Sequence[Sequence[int]]) -> GreedyProof:
    """Raises VerificationError where more than ``DIVERGENCE`` continuations part from the reference, or one is no text at all."""
    equal = agreeing = positions = known = 0
    for number, (probe, tokens) in enumerate(zip(probes.probes, said, strict=True), 1):
        if not tokens:
            raise VerificationError(f"probe {number}: the engine said nothing")
        if not probe.expected:
            continue
        known += 1
        same = next(
            (at for at, pair in enumerate(zip(probe.expected, tokens, strict=False)) if pair[0] != pair[1]), len(tokens)
        )
        equal += same == len(probe.expected)
        agreeing += same
        positions += len(probe.expected)
    if known - equal > DIVERGENCE:
        raise VerificationError(
            f"{known - equal} of {known} greedy continuations part from those of {probes.reference}, "
            f"{agreeing} of {positions} tokens are the same: the engine does not compute what its source computes"
        )
    return GreedyProof(probes.reference, equal, known, agreeing / positions if positions else 0.0, positions)


def main(argv: Sequence[str]) -> int:
    """ENGINE PROBES ANSWERS: rank 0 writes what the engine said, as JSON."""
    engine, probes_path, answers_path = map(Path, argv)
    manifest, settings = read_manifest(engine, "trtllm"), ExecutorSettings()
    if int(os.environ.get("OMPI_COMM_WORLD_RANK", "0")) != 0:
        follow(engine, manifest, settings, lambda: None)
        return 0
    probes = msgspec.json.decode(probes_path.read_bytes(), type=Probes)
    executor = load(engine, manifest, settings)
    try:
        answers_path.write_bytes(msgspec.json.encode(answer(executor, probes)))
    finally:
        executor.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
