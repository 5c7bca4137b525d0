"""What a step costs around the model: checking and staging, and sampling; and the bare decode and prefill rates.

    python benchmarks/bench_runner.py ENGINE_DIRECTORY [--rows 1,8,32] [--steps 60] [--threads N]
    python benchmarks/bench_runner.py --sampling          (needs no engine)

Medians. On a machine that does other work the model's own times vary by half; staging and sampling much less.
"""

from __future__ import annotations

import argparse
import statistics
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from engines.contract import Row, Sample, SequenceSpec, StepPlan, StepRunner
from engines.openvino import load
from engines.sampling.params import SamplingParams
from engines.sampling.sampler import Sampler

CONTEXT = 256
WAYS = {
    "greedy": SamplingParams(),
    "greedy, top 5 log-probabilities": SamplingParams(logprobs=5),
    "temperature": SamplingParams(temperature=0.8, seed=1),
    "top-k 50": SamplingParams(temperature=0.8, top_k=50, seed=1),
    "top-k 50, top-p 0.9": SamplingParams(temperature=0.8, top_k=50, top_p=0.9, seed=1),
    "top-p 0.9": SamplingParams(temperature=0.8, top_p=0.9, seed=1),
    "min-p 0.05": SamplingParams(temperature=0.8, min_p=0.05, seed=1),
    "top-p 0.95 at temperature 5": SamplingParams(temperature=5.0, top_p=0.95, seed=1),
}


@dataclass(frozen=True)
class StepTimes:
    """Medians in milliseconds."""

    start: float
    engine: float
    sample: float
    total: float


def median_ms(action: Callable[[], object], repeats: int = 30) -> float:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times)


def likely_logits(rows: int, vocabulary: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Peaked as a language model's are: a few likely tokens over a broad floor."""
    generator = np.random.default_rng(0)
    logits = generator.standard_normal((rows, vocabulary)) * 2.0
    for row in logits:
        row[generator.integers(0, vocabulary, 100)] += 14.0 - 2.5 * np.log1p(np.arange(100))
    return logits.astype(np.float32)


def bench_sampling(row_counts: list[int], vocabulary: int = 49_152) -> None:
    print(f"{'sampling, ms':38s}" + "".join(f"{rows:>6d} rows" for rows in row_counts))
    logits = likely_logits(max(row_counts), vocabulary)
    for name, how in WAYS.items():
        cells = []
        for rows in row_counts:
            sampler = Sampler(vocabulary)
            for sequence in range(rows):
                sampler.open(SequenceSpec(sequence, 0, how, array("i")))
            cells.append(median_ms(partial(sampler.draw, logits[:rows], list(range(rows)), [CONTEXT] * rows)))
        print(f"{name:38s}" + "".join(f"{cell:11.3f}" for cell in cells))


class Loop:
    """Sequences of CONTEXT tokens, decoded side by side."""

    def __init__(self, runner: StepRunner, rows: int, sampling: SamplingParams) -> None:
        self.runner = runner
        self.step = 0
        size = runner.limits.block_size
        blocks = -(-(CONTEXT + 512) // size)
        generator = np.random.default_rng(1)
        self.past = CONTEXT
        self.tables = [array("i", range(row * blocks, (row + 1) * blocks)) for row in range(rows)]
        self.prompts = [
            array("i", generator.integers(0, runner.limits.vocab_size, CONTEXT).tolist()) for _ in range(rows)
        ]
        self.specs = [SequenceSpec(row + 1, 0, sampling, prompt) for row, prompt in enumerate(self.prompts)]

    def prefill(self) -> float:
        """Seconds of one prompt, the median over the sequences."""
        times = []
        for spec, table in zip(self.specs, self.tables, strict=True):
            row = Row(spec.sequence, spec.prompt, 0, (table,), Sample())
            began = time.perf_counter()
            self._run([row], (spec,))
            times.append(time.perf_counter() - began)
        # One token each in one step, so that the next may carry them on.
        self._run(
            [
                Row(s.sequence, array("i", [1]), self.past, (t,), Sample())
                for s, t in zip(self.specs, self.tables, strict=True)
            ]
        )
        self.past += 1
        return statistics.median(times)

    def decode(self, steps: int) -> StepTimes:
        starts, engines, samples, totals = [], [], [], []
        for _ in range(steps):
            rows = [
                Row(s.sequence, None, self.past, (t,), Sample()) for s, t in zip(self.specs, self.tables, strict=True)
            ]
            self.step += 1
            plan = StepPlan(self.step, rows)
            began = time.perf_counter()
            handle = self.runner.start(plan)
            starts.append(time.perf_counter() - began)
            result = handle.result()
            totals.append(time.perf_counter() - began)
            engines.append(result.engine_seconds)
            samples.append(result.sample_seconds)
            self.past += 1
        return StepTimes(*(1e3 * statistics.median(times) for times in (starts, engines, samples, totals)))

    def close(self) -> None:
        self.step += 1
        self.runner.start(StepPlan(self.step, [], closed=[spec.sequence for spec in self.specs])).result()

    def _run(self, rows: list[Row], opened: tuple[SequenceSpec, ...] = ()) -> None:
        self.step += 1
        self.runner.start(StepPlan(self.step, rows, opened=opened)).result()


def bench_steps(directory: Path, row_counts: list[int], steps: int, threads: int | None) -> None:
    blocks = max(row_counts) * -(-(CONTEXT + 512) // 32)
    runner = load(directory, kv_blocks=blocks, threads=threads)
    print(f"load: {runner.load_timings}")
    step = 0
    print(f"{'rows':>5s}{'start':>9s}{'engine':>9s}{'sample':>9s}{'total':>9s}  ms {'decode':>9s}{'prefill':>9s} tok/s")
    for rows in row_counts:
        loop = Loop(runner, rows, SamplingParams())
        loop.step = step
        loop.prefill()
        times = loop.decode(steps)
        loop.close()
        again = Loop(runner, rows, SamplingParams())
        again.step, again.specs = (
            loop.step,
            [SequenceSpec(1000 + spec.sequence, 0, spec.sampling, spec.prompt) for spec in loop.specs],
        )
        prefill = again.prefill()
        again.close()
        step = again.step
        cells = "".join(f"{cell:9.3f}" for cell in (times.start, times.engine, times.sample, times.total))
        print(f"{rows:5d}{cells}     {rows / times.total * 1e3:9.1f}{CONTEXT / prefill:9.0f}")
    runner.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, nargs="?")
    parser.add_argument("--sampling", action="store_true")
    parser.add_argument("--rows", default="1,8,32")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--threads", type=int)
    chosen = parser.parse_args()
    row_counts = [int(rows) for rows in chosen.rows.split(",")]
    if chosen.sampling or chosen.directory is None:
        bench_sampling(row_counts)
    if chosen.directory is not None:
        bench_steps(chosen.directory, row_counts, chosen.steps, chosen.threads)


if __name__ == "__main__":
    main()
