"""Steps of two engines of one model, asked in turn in one process: what a change of the graph gains, on a machine whose speed drifts.

    python -m benchmarks.engines_in_turn BEFORE AFTER

Milliseconds behind a context of 192 tokens; a ratio is the median over pairs of steps that ran one after the other. The log-probabilities
of one text are compared too, in one step and token by token.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.step_widths import Bench
from build_scripts.driver import Driver
from engines.openvino import load

SHAPES = (*((decodes, 0) for decodes in (1, 2, 4, 8, 16, 32)), (0, 128), (0, 256), (16, 128))
"""(sequences that decode, tokens of one prompt beside them)"""
PATIENCE = 12.0
"""Seconds for each shape."""
LEAST = 5
TEXT = [5 + 7 * index for index in range(193)]
ALONE = 16
"""Last tokens of the text that are run one a step."""


def log_probabilities(driver: Driver) -> list[float]:
    """Of each token of the text that follows another."""
    lane = driver.lane(TEXT, len(TEXT))
    chunks = [len(TEXT) - 1 - ALONE, *[1] * ALONE]
    found = [driver.step([driver.score(lane, count)])[0].logprobs for count in chunks]
    driver.release([lane])
    return [value for part in found for value in part]


def pairs(before: Bench, after: Bench, decodes: int, chunk: int) -> list[tuple[float, float]]:
    """Seconds of steps of either, which begins changing from pair to pair."""
    timed: list[tuple[float, float]] = []
    before.seconds(decodes, chunk), after.seconds(decodes, chunk)
    while len(timed) < LEAST or sum(map(sum, timed)) < PATIENCE:
        if len(timed) % 2:
            second = after.seconds(decodes, chunk)
            timed.append((before.seconds(decodes, chunk), second))
        else:
            timed.append((before.seconds(decodes, chunk), after.seconds(decodes, chunk)))
    return timed


def main(arguments: Sequence[str]) -> None:
    if len(arguments) != 2:
        sys.exit(__doc__)
    runners = [load(Path(argument), kv_blocks=200) for argument in arguments]
    drivers = [Driver(runner) for runner in runners]
    first, second = (np.array(log_probabilities(driver)) for driver in drivers)
    print(f"log-probabilities of {len(first)} tokens: {np.abs(first - second).max():.6f} apart at most")
    before, after = (Bench(driver) for driver in drivers)
    print("decodes  prompt  pairs   before    after  fastest: before    after  after / before, median of pairs")
    for decodes, chunk in SHAPES:
        timed = np.array(pairs(before, after, decodes, chunk)) * 1e3
        middle, best = np.median(timed, axis=0), timed.min(axis=0)
        ratio = statistics.median(timed[:, 1] / timed[:, 0])
        print(
            f"{decodes:7d} {chunk:7d} {len(timed):6d} {middle[0]:8.2f} {middle[1]:8.2f} {best[0]:16.2f} {best[1]:8.2f} {ratio:8.3f}",
            flush=True,
        )
    for runner in runners:
        runner.close()


if __name__ == "__main__":
    main(sys.argv[1:])
