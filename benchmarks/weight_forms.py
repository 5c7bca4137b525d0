"""Speed against fidelity, for every form in which the embedded engine can store weights: docs/quantisation.md's tables.

    python -m benchmarks.weight_forms MODEL DIRECTORY --prepare     # writes the engines, minutes; nothing is measured
    python -m benchmarks.weight_forms MODEL DIRECTORY               # measures, three minutes; nothing else may run

MODEL as `firsttoken build` takes it: the forms that its kind of checkpoint has, and int4 even of what is quantised already. All
engines are loaded together and take turns, so that a disturbance does not hit one form alone. Fidelity: likeliest tokens as in the
reference and mean difference of log-probabilities over the golden positions, perplexity of a fixed text (the project's
licence, the first 512 tokens). Speed: a prompt of 512 tokens in one step, and one and sixteen streams that decode behind 256 tokens
of their own; medians of the rounds.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import openvino as ov

from benchmarks.form_bench import MANY, PROMPT, Fidelity, FormBench
from build_scripts.bill import draw_up
from build_scripts.checkpoint import Checkpoint, open_checkpoint
from build_scripts.golden.reference import Golden, find_golden, own_golden
from build_scripts.graph import build_graph
from build_scripts.numerics import NumericsChoice, WeightForm
from build_scripts.source import default_cache, resolve
from build_scripts.weight_forms import FormedSource
from build_scripts.weights import TensorSource
from build_scripts.wide_form import WideSource

TEXT = Path(__file__).parents[1] / "LICENSE"
SECONDS = 150.0
"""No round begins after these, loading and fidelity included."""

CHOICES = (
    NumericsChoice("gguf", "bf16", "bf16", "bf16"),
    NumericsChoice("gguf", "bf16", "bf16"),
    NumericsChoice("gguf", "f16", "f32"),
    NumericsChoice("bf16", "bf16", "bf16"),
    NumericsChoice("bf16", "f16", "f32"),
    NumericsChoice("int8", "bf16", "bf16", "bf16"),
    NumericsChoice("int8", "bf16", "bf16"),
    NumericsChoice("int8", "f16", "f32"),
    NumericsChoice("int4", "bf16", "bf16", "bf16"),
    NumericsChoice("int4", "bf16", "bf16"),
    NumericsChoice("int4", "f16", "f32"),
    NumericsChoice("f32", "f32", "f32"),
)
"""The fourth word is a second form of the weights, for wide steps."""
FURTHER = (
    NumericsChoice("f16", "f16", "f32"),
    NumericsChoice("gguf", "f32", "f32"),
    NumericsChoice("gguf", "u8", "f32"),
    NumericsChoice("int8", "u8", "f32"),
    NumericsChoice("f32", "f16", "f32"),
    NumericsChoice("f32", "u8", "f32"),
    NumericsChoice("f32", "bf16", "bf16"),
)
"""Other precisions; ``--further`` measures these instead."""


@dataclass(frozen=True)
class Subject:
    """The checkpoint whose forms are compared, and where its engines lie."""

    checkpoint: Checkpoint
    golden: Golden
    text: list[int]
    directory: Path

    def engine(self, weights: WeightForm) -> Path:
        return self.directory / f"{self.golden.source_sha256[:12]}-{weights}"

    def takes(self, choice: NumericsChoice) -> bool:
        return choice.weights != "gguf" or self.checkpoint.kind == "gguf"


def main() -> None:
    arguments = parsed()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    subject = opened(arguments.model, arguments.directory)
    choices = [choice for choice in (FURTHER if arguments.further else CHOICES) if subject.takes(choice)]
    if arguments.only:
        choices = [choice for choice in choices if choice.weights in arguments.only]
    for choice in choices:
        prepare(subject, choice)
    if not arguments.prepare:
        measure(subject, choices, arguments.seconds)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.weight_forms")
    parser.add_argument("model", help="as firsttoken build takes it")
    parser.add_argument("directory", type=Path, help="where engines are written, and found again")
    parser.add_argument("--prepare", action="store_true", help="write the engines that are not there, and stop")
    parser.add_argument("--only", metavar="WEIGHTS", action="append", help="this form of weights (all)")
    parser.add_argument("--further", action="store_true", help="other precisions")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"begin no round after these ({SECONDS:g})")
    return parser.parse_args()


def opened(model: str, directory: Path) -> Subject:
    source = resolve(model, cache=default_cache(), progress=lambda note: print(note, file=sys.stderr))
    checkpoint = open_checkpoint(source.path)
    text = checkpoint.tokenizer.encode(TEXT.read_text()).ids
    return Subject(checkpoint, golden_of(source.sha256, checkpoint, text, directory), text, directory)


def golden_of(sha256: str, checkpoint: Checkpoint, text: list[int], directory: Path) -> Golden:
    """What is committed, or what NumPy computes, once: it takes minutes of a large checkpoint."""
    kept = directory / f"{sha256[:12]}-golden.json"
    if kept.is_file():
        return msgspec.json.decode(kept.read_bytes(), type=Golden)
    if (committed := find_golden(sha256)) is not None:
        return committed
    golden = own_golden(checkpoint.decoder, checkpoint.tensors, sha256, text)
    kept.write_bytes(msgspec.json.encode(golden))
    return golden


def prepare(subject: Subject, choice: NumericsChoice) -> None:
    """Writes what is not there yet of the engine."""
    directory, narrow = subject.engine(choice.weights), FormedSource(subject.checkpoint.tensors, choice.weights)
    if not directory.is_dir():
        draft = directory.with_name(f".{directory.name}")
        draft.mkdir(exist_ok=True)
        write(subject.checkpoint, narrow, draft / "model.xml")
        draft.rename(directory)
    if choice.wide_weights is not None and not (directory / "wide.xml").is_file():
        draft = directory / "draft.xml"
        write(subject.checkpoint, WideSource(narrow), draft)
        draft.with_suffix(".bin").rename(directory / "wide.bin")
        draft.rename(directory / "wide.xml")


def write(checkpoint: Checkpoint, weights: TensorSource, path: Path) -> None:
    print(f"writing {path}", file=sys.stderr)
    graph = build_graph(checkpoint.decoder, weights, dequantise=False, progress=lambda _: None)
    ov.save_model(graph, str(path), compress_to_fp16=False)


def measure(subject: Subject, choices: Sequence[NumericsChoice], seconds: float) -> None:
    """Prints one table. Rounds begin until ``seconds`` are over; one at least."""
    end = time.monotonic() + seconds
    print(f"reference: {subject.golden.reference}, {subject.golden.positions} positions", flush=True)
    benches: dict[NumericsChoice, FormBench] = {}
    try:
        for choice in choices:
            benches[choice] = FormBench(subject.engine(choice.weights), subject.checkpoint, choice, subject.text)
        truth = {choice: bench.fidelity(subject.golden) for choice, bench in benches.items()}
        for bench in benches.values():
            bench.warm_up()
        rounds = 0
        while rounds == 0 or time.monotonic() < end:
            for bench in benches.values():
                bench.run_round()
            rounds += 1
    finally:
        for bench in benches.values():
            bench.close()
    print(f"speed: medians of {rounds} interleaved rounds\n")
    print("| weights | keys and values | activations | MB | likeliest token | mean difference | perplexity ", end="")
    print(f"| tok/s, 1 stream | tok/s, {MANY} streams | prompt of {PROMPT}, tok/s |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for choice, bench in benches.items():
        print(row(subject, choice, truth[choice], bench.speed.rates()))


def row(subject: Subject, choice: NumericsChoice, truth: Fidelity, rates: tuple[float, float, float]) -> str:
    prompt, one, many = rates
    checkpoint = subject.checkpoint
    forms = f"{choice.weights} and {choice.wide_weights}" if choice.wide_weights else choice.weights
    megabytes = draw_up(checkpoint.decoder, checkpoint.tensors.formats(), choice, checkpoint.kind).weights / 1e6
    return (
        f"| {forms} | {choice.kv_cache} | {choice.activations} | {megabytes:.0f} | {truth.agreement:.1%} "
        f"| {truth.mean_difference:.4f} | {truth.perplexity:.3f} | {one:.0f} | {many:.0f} | {prompt:.0f} |"
    )


if __name__ == "__main__":
    main()
