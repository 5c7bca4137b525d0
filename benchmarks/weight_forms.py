"""Speed against fidelity, for every form in which the embedded engine can store weights: docs/quantisation.md's table.

    python -m benchmarks.weight_forms SOURCE [--only WEIGHTS ...] [--steps N] [--directory DIR]

SOURCE is a GGUF file (its own codes, and forms made of its numbers) or a Hugging Face directory. For each form: likeliest
tokens as in the reference and mean difference of log-probabilities over the golden positions, perplexity of a fixed text (the
project's licence, the first 512 tokens), what a decoded token takes at one stream and at eight, and bytes. Milliseconds of processor
time, of all threads, are the same on a busy machine, but for caches and memory that are shared; tokens per second are not.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import openvino as ov

import engines.openvino
from build_scripts.bill import draw_up
from build_scripts.checkpoint import Checkpoint, open_checkpoint
from build_scripts.description import model_shape
from build_scripts.driver import Driver
from build_scripts.golden.reference import Golden, find_golden, own_golden
from build_scripts.graph import RECIPE, build_graph
from build_scripts.numerics import NumericsChoice
from build_scripts.source import directory_sha256, file_sha256
from build_scripts.weight_forms import FormedSource
from engines.contract import Output
from engines.manifest import SCHEMA_VERSION, EngineManifest, Numerics, Source, StepProfile

TEXT = Path(__file__).parents[1] / "LICENSE"
TEXT_TOKENS = 512
DECODE_STEPS = 40

CHOICES = (
    NumericsChoice("f32", "f32", "f32"),
    NumericsChoice("f32", "f16", "f32"),
    NumericsChoice("f32", "u8", "f32"),
    NumericsChoice("f32", "bf16", "bf16"),
    NumericsChoice("f16", "f16", "f32"),
    NumericsChoice("bf16", "f16", "f32"),
    NumericsChoice("bf16", "bf16", "bf16"),
    NumericsChoice("int8", "f16", "f32"),
    NumericsChoice("int8", "u8", "f32"),
    NumericsChoice("int8", "bf16", "bf16"),
    NumericsChoice("int4", "f16", "f32"),
    NumericsChoice("int4", "bf16", "bf16"),
    NumericsChoice("gguf", "f32", "f32"),
    NumericsChoice("gguf", "f16", "f32"),
    NumericsChoice("gguf", "u8", "f32"),
    NumericsChoice("gguf", "bf16", "bf16"),
)


@dataclass(frozen=True)
class DecodeCost:
    rate: float
    """Tokens per second, all streams together: the median of the steps."""
    processor_ms: float
    """Processor time per token, of all threads: the mean of the steps."""


@dataclass(frozen=True)
class Measured:
    choice: NumericsChoice
    megabytes: float
    agreement: float
    mean_difference: float
    perplexity: float
    one_stream: DecodeCost
    eight_streams: DecodeCost

    def row(self) -> str:
        choice, one, eight = self.choice, self.one_stream, self.eight_streams
        return (
            f"| {choice.weights} | {choice.kv_cache} | {choice.activations} | {self.megabytes:.0f} | {self.agreement:.1%} | "
            f"{self.mean_difference:.4f} | {self.perplexity:.3f} | {one.processor_ms:.1f} | {eight.processor_ms:.1f} | "
            f"{one.rate:.0f} | {eight.rate:.0f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("source", type=Path)
    parser.add_argument("--directory", type=Path, help="where engines are written (a temporary one)")
    parser.add_argument("--only", metavar="WEIGHTS", action="append", help="this form of weights (all)")
    parser.add_argument("--steps", type=int, default=DECODE_STEPS, help="decode steps whose median counts")
    arguments = parser.parse_args()
    checkpoint = open_checkpoint(arguments.source)
    golden = golden_of(arguments.source, checkpoint)
    print(f"reference: {golden.reference}, {golden.positions} positions")
    print("| weights | KV | activations | MB | argmax | mean diff | perplexity | ms, 1 | ms, 8 | tok/s, 1 | tok/s, 8 |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for choice in CHOICES:
        if choice.weights == "gguf" and checkpoint.kind != "gguf":
            continue
        if arguments.only and choice.weights not in arguments.only:
            continue
        with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
            print(measure(checkpoint, golden, choice, Path(directory), arguments.steps).row())
        sys.stdout.flush()


def golden_of(source: Path, checkpoint: Checkpoint) -> Golden:
    sha256 = directory_sha256(source) if source.is_dir() else file_sha256(source)
    tokens = checkpoint.tokenizer.encode(TEXT.read_text()[:4000]).ids
    return find_golden(sha256) or own_golden(checkpoint.decoder, checkpoint.tensors, sha256, tokens)


def measure(checkpoint: Checkpoint, golden: Golden, choice: NumericsChoice, directory: Path, steps: int) -> Measured:
    source = FormedSource(checkpoint.tensors, choice.weights)
    graph = build_graph(checkpoint.decoder, source, dequantise=False, progress=lambda _: None)
    ov.save_model(graph, str(directory / "model.xml"), compress_to_fp16=False)
    del graph
    runner = engines.openvino.load(directory, kv_blocks=512, manifest=manifest_of(checkpoint, choice))
    try:
        driver = Driver(runner)
        agreement, difference = fidelity(driver, golden)
        return Measured(
            choice=choice,
            megabytes=draw_up(checkpoint.decoder, checkpoint.tensors.formats(), choice).weights / 1e6,
            agreement=agreement,
            mean_difference=difference,
            perplexity=perplexity(driver, checkpoint),
            one_stream=decode_cost(driver, checkpoint, 1, steps),
            eight_streams=decode_cost(driver, checkpoint, 8, steps),
        )
    finally:
        runner.close()


def fidelity(driver: Driver, golden: Golden) -> tuple[float, float]:
    """Share of positions whose likeliest token is the reference's; mean difference of the following token's log-probability.
    No floor: here every form is to be seen, however far off."""
    agreeing, differences = 0, []
    for sequence in golden.sequences:
        output = score(driver, sequence.whole, top=1)
        differences += [abs(mine - theirs) for mine, theirs in zip(output.logprobs, sequence.logprobs, strict=True)]
        agreeing += sum(top[0][0] == best for top, best in zip(output.top, sequence.argmax, strict=True))
    return agreeing / len(differences), statistics.fmean(differences)


def perplexity(driver: Driver, checkpoint: Checkpoint) -> float:
    tokens = checkpoint.tokenizer.encode(TEXT.read_text()).ids[:TEXT_TOKENS]
    return math.exp(-statistics.fmean(score(driver, tokens, top=0).logprobs))


def score(driver: Driver, tokens: list[int], top: int) -> Output:
    lane = driver.lane(tokens, len(tokens))
    output = driver.step([driver.score(lane, len(tokens) - 1, top)])[0]
    driver.release([lane])
    return output


def decode_cost(driver: Driver, checkpoint: Checkpoint, streams: int, steps: int) -> DecodeCost:
    """Behind a context of 256 tokens; the first tenth of the steps warms up."""
    context = checkpoint.tokenizer.encode(TEXT.read_text()).ids[:256]
    lanes = [driver.lane(context, len(context) + steps + 8) for _ in range(streams)]
    for lane in lanes:
        lane.tokens.append(driver.step([driver.greedy(lane, len(context))])[0].tokens[0])
    seconds, processor = [], []
    for _ in range(steps):
        started = time.process_time()
        outputs, elapsed = driver.timed_step([driver.greedy(lane, 1) for lane in lanes])
        processor.append(time.process_time() - started)
        seconds.append(elapsed)
        for lane, output in zip(lanes, outputs, strict=True):
            lane.tokens.append(output.tokens[0])
    driver.release(lanes)
    warm = steps // 10
    return DecodeCost(streams / statistics.median(seconds[warm:]), 1e3 * statistics.fmean(processor[warm:]) / streams)


def manifest_of(checkpoint: Checkpoint, choice: NumericsChoice) -> EngineManifest:
    decoder = checkpoint.decoder
    numerics = Numerics(
        weights=choice.weights,
        kv_cache=choice.kv_cache,
        activations=choice.activations,
        dynamic_quantisation=False,
        batch_invariant=choice.batch_invariant,
        golden_positions=0,
        golden_argmax_agreement=0.0,
        golden_max_difference=0.0,
        golden_mean_difference=0.0,
        tolerance=0.0,
    )
    return EngineManifest(
        schema_version=SCHEMA_VERSION,
        engine="openvino",
        built_at="",
        fingerprint="measured",
        recipe=RECIPE,
        model=model_shape(decoder),
        source=Source("measured", checkpoint.kind, "", "", checkpoint.tensors.quantisation(), ""),
        numerics=numerics,
        profile=StepProfile(0.0, 0.0, 0.0, 0.0, 0.0, machine="", relative_error=0.0),
        tokenizer=checkpoint.tokenizer_info,
        tools={},
        files=(),
    )


if __name__ == "__main__":
    main()
