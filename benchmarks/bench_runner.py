"""What a step costs around the model: checking and staging, and sampling; and the bare decode and prefill rates.

    python -m benchmarks.bench_runner ENGINE_DIRECTORY [--rows 1,8,32] [--steps 60] [--threads N]
    python -m benchmarks.bench_runner ENGINE_DIRECTORY --compare ENABLE_CPU_PINNING=NO    plugin properties, steps interleaved
    python -m benchmarks.bench_runner --sampling                                          needs no engine

Medians, in milliseconds. Where another process has work to do, the model's own times double and more; staging and sampling vary less.
"""

from __future__ import annotations

import argparse
import statistics
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from engines.contract import Row, Sample, SequenceSpec, StepPlan, StepResult, StepRunner, TokenArray
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


def median_ms(action: Callable[[], object], repeats: int = 30) -> float:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times)


def likely_logits(rows: int, vocabulary: int) -> npt.NDArray[np.float32]:
    """Peaked as a language model's are: a hundred likely tokens over a broad floor."""
    generator = np.random.default_rng(0)
    logits = generator.standard_normal((rows, vocabulary)) * 2.0
    for row in logits:
        row[generator.integers(0, vocabulary, 100)] += 14.0 - 2.5 * np.log1p(np.arange(100))
    return logits.astype(np.float32)


def bench_sampling(row_counts: Sequence[int], vocabulary: int = 49_152) -> None:
    print(f"{'sampling':34s}" + "".join(f"{rows:>6d} rows" for rows in row_counts))
    logits = likely_logits(max(row_counts), vocabulary)
    for name, how in WAYS.items():
        cells = []
        for rows in row_counts:
            sampler = Sampler(vocabulary)
            for sequence in range(rows):
                sampler.open(SequenceSpec(sequence, 0, how, array("i")))
            cells.append(median_ms(partial(sampler.draw, logits[:rows], list(range(rows)), [CONTEXT] * rows)))
        print(f"{name:34s}" + "".join(f"{cell:11.3f}" for cell in cells))


@dataclass
class Times:
    """Seconds of every measured step."""

    start: list[float] = field(default_factory=list)
    engine: list[float] = field(default_factory=list)
    sample: list[float] = field(default_factory=list)
    total: list[float] = field(default_factory=list)

    def add(self, start: float, total: float, result: StepResult) -> None:
        self.start.append(start)
        self.engine.append(result.engine_seconds)
        self.sample.append(result.sample_seconds)
        self.total.append(total)

    def medians_ms(self) -> list[float]:
        return [1e3 * statistics.median(times) for times in (self.start, self.engine, self.sample, self.total)]


class Bench:
    """One runner and its sequences: they prefill CONTEXT tokens, then decode side by side."""

    def __init__(self, runner: StepRunner) -> None:
        self.runner = runner
        self._step = 0
        self._sequences = 0
        self._generator = np.random.default_rng(1)

    def run(
        self, rows: list[Row], times: Times, opened: Sequence[SequenceSpec] = (), closed: Sequence[int] = ()
    ) -> None:
        self._step += 1
        plan = StepPlan(self._step, rows, opened=opened, closed=closed)
        began = time.perf_counter()
        handle = self.runner.start(plan)
        started = time.perf_counter()
        result = handle.result()
        times.add(started - began, time.perf_counter() - began, result)

    def open(self, count: int) -> list[tuple[SequenceSpec, TokenArray]]:
        """New sequences with tables for CONTEXT tokens and 512 more."""
        blocks = -(-(CONTEXT + 512) // self.runner.limits.block_size)
        made = []
        for at in range(count):
            self._sequences += 1
            ids = array("i", self._generator.integers(0, self.runner.limits.vocab_size, CONTEXT).tolist())
            made.append(
                (
                    SequenceSpec(self._sequences, 0, SamplingParams(), ids),
                    array("i", range(at * blocks, (at + 1) * blocks)),
                )
            )
        return made

    def measure(self, rows: int, steps: int) -> tuple[Times, Times]:
        """Prefills, one a step, and decode steps of all."""
        prefills, decodes, ignored = Times(), Times(), Times()
        sequences = self.open(rows)
        for spec, table in sequences:
            self.run([Row(spec.sequence, spec.prompt, 0, (table,), Sample())], prefills, opened=[spec])
        first = [Row(spec.sequence, array("i", [1]), CONTEXT, (table,), Sample()) for spec, table in sequences]
        self.run(first, ignored)
        for past in range(CONTEXT + 1, CONTEXT + 1 + steps):
            self.run([Row(spec.sequence, None, past, (table,), Sample()) for spec, table in sequences], decodes)
        self.run([], ignored, closed=[spec.sequence for spec, _ in sequences])
        return prefills, decodes


def blocks_for(rows: int) -> int:
    return rows * -(-(CONTEXT + 512) // 32)


def report(name: str, rows: int, prefills: Times, decodes: Times) -> None:
    start, engine, sample, total = decodes.medians_ms()
    prefill = statistics.median(prefills.total)
    print(
        f"{name:28s}{rows:5d}{start:9.3f}{engine:9.3f}{sample:9.3f}{total:9.3f}{rows / total * 1e3:10.1f}{CONTEXT / prefill:10.0f}",
        flush=True,
    )


def bench_steps(
    directory: Path, row_counts: Sequence[int], steps: int, threads: int | None, compare: str | None
) -> None:
    """With ``compare``, two runners take turns of ten steps, so that a noisy neighbour hurts both alike."""
    variants: dict[str, dict[str, str] | None] = {"as served": None}
    if compare:
        variants[compare] = dict(pair.split("=", 1) for pair in compare.split(","))
    benches = {}
    for name, properties in variants.items():
        runner = load(directory, kv_blocks=blocks_for(max(row_counts)), threads=threads, properties=properties)
        print(f"{name}: {runner.load_timings}")
        benches[name] = Bench(runner)
    print(
        f"{'':28s}{'rows':>5s}{'start':>9s}{'engine':>9s}{'sample':>9s}{'total':>9s}{'decode/s':>10s}{'prefill/s':>10s}"
    )
    for rows in row_counts:
        measured = {name: (Times(), Times()) for name in benches}
        for _ in range(max(1, steps // 10)):
            for name, bench in benches.items():
                for kept, new in zip(measured[name], bench.measure(rows, 10), strict=True):
                    for part in ("start", "engine", "sample", "total"):
                        getattr(kept, part).extend(getattr(new, part))
        for name, (prefills, decodes) in measured.items():
            report(name, rows, prefills, decodes)
    for bench in benches.values():
        bench.runner.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, nargs="?")
    parser.add_argument("--sampling", action="store_true", help="only the sampler, on made-up logits")
    parser.add_argument("--rows", default="1,8,32")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--compare", metavar="NAME=VALUE,...", help="plugin properties to set against what is served")
    chosen = parser.parse_args()
    row_counts = [int(rows) for rows in chosen.rows.split(",")]
    if chosen.sampling or chosen.directory is None:
        bench_sampling(row_counts)
    if chosen.directory is not None:
        bench_steps(chosen.directory, row_counts, chosen.steps, chosen.threads, chosen.compare)


if __name__ == "__main__":
    main()
