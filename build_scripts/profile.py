"""How long a step takes on this machine: the five coefficients of StepProfile, fitted to measured steps."""

from __future__ import annotations

import itertools
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from build_scripts.driver import Driver, Lane
from engines.contract import Want
from engines.manifest import StepProfile

ROUNDS = 3
"""Each shape is measured this often, the rounds interleaved, so that a disturbance does not hit one shape alone. The fastest
counts: whatever else the machine does only adds."""
TIME_LIMIT = 20.0
"""Seconds after which no further round begins: on a busy machine or a large model one round must do."""
_CHUNKS = ((16, 0), (64, 0), (128, 0), (256, 0), (512, 0), (64, 448), (256, 448), (128, 832))
LONGEST_CHUNK = max(new for new, _ in _CHUNKS)
_DECODES = ((1, 64), (1, 512), (1, 960), (4, 256), (8, 64), (8, 960), (16, 512), (32, 64), (32, 960))
_MIXED = (((64, 0), (8, 256)), ((256, 256), (16, 512)))

Progress = Callable[[int, int], None]
"""Called with steps measured and steps in all."""


@dataclass(frozen=True)
class Shape:
    """One step: at most one prefill chunk, and decodes of equal context."""

    new: int = 0
    past: int = 0
    decodes: int = 0
    context: int = 0
    """Tokens before each decode's new one."""

    def features(self) -> tuple[float, float, float, float, float]:
        """What the coefficients of StepProfile multiply, in its order."""
        attention = self.new * (self.past + self.new / 2)
        return 1.0, float(self.new), float(self.decodes), float(self.decodes * (self.context + 1)), attention


def shapes(max_context: int, max_tokens: int) -> list[Shape]:
    """The shapes to measure, those that a runner of these limits can run."""
    chunks = [Shape(new=new, past=past) for new, past in _CHUNKS]
    decodes = [Shape(decodes=count, context=context) for count, context in _DECODES]
    mixed = [Shape(new, past, count, context) for (new, past), (count, context) in _MIXED]
    every = chunks + decodes + mixed
    fitting = [shape for shape in every if shape.past + shape.new <= max_context and shape.context < max_context]
    return [shape for shape in fitting if shape.new + shape.decodes <= max_tokens]


def measure_profile(driver: Driver, threads: int, progress: Progress) -> StepProfile:
    """Takes some seconds for a small model. Needs room for one context of 1024 tokens twice, and 32 blocks."""
    limits = driver.limits
    chosen = shapes(min(limits.max_context, 1024), limits.max_step_tokens)
    bench = _Bench(driver, max(shape.past + shape.new for shape in chosen))
    seconds: dict[Shape, list[float]] = {shape: [] for shape in chosen}
    started = time.monotonic()
    for round_ in range(ROUNDS + 1):
        for index, shape in enumerate(chosen):
            measured = bench.run(shape)
            # The first step of a shape pays for its kernels.
            if round_:
                seconds[shape].append(measured)
            progress(round_ * len(chosen) + index + 1, (ROUNDS + 1) * len(chosen))
        if round_ and time.monotonic() - started > TIME_LIMIT:
            break
    bench.close()
    return fit([shape.features() for shape in chosen], [min(seconds[shape]) for shape in chosen], threads)


def fit(features: Sequence[Sequence[float]], seconds: Sequence[float], threads: int) -> StepProfile:
    """Least squares of the relative error, coefficients not negative."""
    matrix, measured = np.array(features, dtype=np.float64), np.array(seconds, dtype=np.float64)
    coefficients = nonnegative_least_squares(matrix / measured[:, None], np.ones_like(measured))
    error = float(np.median(np.abs(matrix @ coefficients - measured) / measured))
    fixed, per_new_token, per_decode, per_decode_context, per_attention = (float(value) for value in coefficients)
    return StepProfile(
        fixed,
        per_new_token,
        per_decode,
        per_decode_context,
        per_attention,
        machine=machine(threads),
        relative_error=error,
    )


def nonnegative_least_squares(matrix: NDArray[np.float64], target: NDArray[np.float64]) -> NDArray[np.float64]:
    """The exact solution, by trying which columns are used: the optimum is the best plain least-squares solution, over the
    subsets of columns, that is nowhere negative. For a handful of columns only."""
    columns = matrix.shape[1]
    # Columns differ by many powers of ten; scaled, the solver's rank decision is about shape alone.
    scale = np.maximum(np.linalg.norm(matrix, axis=0), np.finfo(np.float64).tiny)
    best, best_error = np.zeros(columns), float(np.sum(target**2))
    for size in range(1, columns + 1):
        for subset in itertools.combinations(range(columns), size):
            used = list(subset)
            solution, *_ = np.linalg.lstsq(matrix[:, used] / scale[used], target, rcond=None)
            candidate = np.zeros(columns)
            candidate[used] = solution / scale[used]
            error = float(np.sum((matrix @ candidate - target) ** 2))
            if np.all(solution >= 0) and error < best_error:
                best, best_error = candidate, error
    return best


def machine(threads: int) -> str:
    """CPU model, cores and threads used, in words."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        lines = (line.partition(":") for line in cpuinfo.read_text().splitlines())
        model = next((value.strip() for key, _, value in lines if key.strip() == "model name"), model)
    return f"{model}, {threads} threads"


class _Bench:
    """Runs shapes over one computed context: every row reads its blocks, and writes one of its own."""

    def __init__(self, driver: Driver, context: int) -> None:
        self._driver = driver
        self._size = driver.limits.block_size
        self._vocabulary = driver.limits.vocab_size
        self._step_tokens = driver.limits.max_step_tokens
        self._context = self._driver.lane(self._tokens(context), context)
        while (left := context - self._context.computed) > 0:
            self._driver.step([(self._context, min(left, self._step_tokens), None)])

    def run(self, shape: Shape) -> float:
        """Seconds of one step of this shape."""
        work: list[tuple[Lane, int, Want]] = []
        lanes: list[tuple[Lane, int]] = []
        for past, new in [(shape.past, shape.new)] * bool(shape.new) + [(shape.context, 1)] * shape.decodes:
            lane, shared = self._branch(past, new)
            lanes.append((lane, shared))
            work.append(self._driver.greedy(lane, new))
        _, seconds = self._driver.timed_step(work)
        for lane, shared in lanes:
            self._driver.release([lane], shared)
        return seconds

    def close(self) -> None:
        self._driver.release([self._context])

    def _branch(self, past: int, new: int) -> tuple[Lane, int]:
        """A lane whose full blocks up to ``past`` are the context's. Its last block, partly past, holds what it holds:
        the time of a step does not depend on the numbers."""
        shared = past // self._size
        lane = self._driver.lane(self._tokens(past + new), past + new, self._context.blocks[:shared])
        lane.computed = past
        return lane, shared

    def _tokens(self, count: int) -> list[int]:
        return [1 + (7919 * index) % (self._vocabulary - 1) for index in range(count)]
