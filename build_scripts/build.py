"""The way from a model's name to an engine in its place."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import openvino as ov

import engines.openvino
from build_scripts import graph, publish
from build_scripts.bill import Bill, draw_up, verification_blocks
from build_scripts.checkpoint import Checkpoint, default_weights, open_checkpoint
from build_scripts.decoder import Decoder
from build_scripts.description import provisional_manifest, with_findings
from build_scripts.driver import Driver
from build_scripts.errors import BuildError, PublishError, VerificationError
from build_scripts.golden.reference import Golden, find_golden, own_golden
from build_scripts.inspection import is_intact
from build_scripts.numerics import NumericsChoice, NumericsWish, fingerprint, numerics_choice
from build_scripts.profile import measure_profile
from build_scripts.progress import Advance, Reporter
from build_scripts.source import SourceFile, resolve
from build_scripts.verify import verify
from build_scripts.weight_forms import FormedSource, check_form
from engines.contract import EngineError
from engines.manifest import EngineManifest
from engines.openvino.host import available_memory, usable_cores

_PROBE_TEXT = (
    "The history of a river is written in its valley: every flood leaves a line of stones, every drought a crack in the mud, "
    "and whoever reads them knows what the water did."
)
"""What a checkpoint without golden data is compared on."""


@dataclass(frozen=True)
class BuildRequest:
    model: str
    output: Path | None
    """None = a directory below engine-cache/, named by model and weights."""
    choice: NumericsChoice | NumericsWish
    """A wish is completed by what the kind of checkpoint makes the default."""
    cache: Path
    force: bool = False
    """Build although the same engine is there, and although memory or disk look too small."""

    def choice_for(self, checkpoint: Checkpoint) -> NumericsChoice:
        """Raises UnsupportedError for a form that this kind of checkpoint cannot take."""
        weights = self.choice.weights or default_weights(checkpoint)
        check_form(weights, checkpoint.kind, checkpoint.tensors.formats())
        if isinstance(self.choice, NumericsChoice):
            return self.choice
        return numerics_choice(weights, self.choice.kv_cache, self.choice.activations)


@dataclass(frozen=True)
class Plan:
    """All that is known before work starts."""

    source: SourceFile
    checkpoint: Checkpoint = field(repr=False)
    choice: NumericsChoice
    bill: Bill
    output: Path
    fingerprint: str

    @property
    def decoder(self) -> Decoder:
        return self.checkpoint.decoder

    def up_to_date(self) -> bool:
        """Whether exactly this engine stands at the output, every byte of it."""
        return is_intact(self.output, self.fingerprint)


def make_plan(request: BuildRequest, reporter: Reporter) -> Plan:
    """Fetch and read the checkpoint, refuse what cannot be built, draw up the bill. Raises BuildError."""
    source = resolve(request.model, cache=request.cache, progress=reporter.note)
    reporter.note(f"reading {source.path.name}")
    checkpoint = open_checkpoint(source.path)
    graph.check_embeddable(checkpoint.decoder)
    choice = request.choice_for(checkpoint)
    return Plan(
        source=source,
        checkpoint=checkpoint,
        choice=choice,
        bill=draw_up(checkpoint.decoder, checkpoint.tensors.formats(), choice),
        output=request.output or Path("engine-cache") / f"{source.name}-{choice.weights}",
        fingerprint=fingerprint(source.sha256, choice, graph.RECIPE),
    )


def build(plan: Plan, reporter: Reporter, *, force: bool = False) -> EngineManifest:
    """Build, verify and publish. Raises BuildError; then the output is what it was."""
    if not force:
        refuse_beyond_machine(plan)
    with publish.staging(plan.output) as scratch:
        _write_graph(plan, scratch, reporter)
        plan.checkpoint.tokenizer.save(str(scratch / "tokenizer.json"))
        manifest = provisional_manifest(plan, scratch)
        manifest = _prove(plan, scratch, manifest, reporter)
        reporter.note(f"publishing {plan.output}")
        publish.publish(scratch, plan.output, manifest)
    return manifest


def refuse_beyond_machine(plan: Plan) -> None:
    """Raises BuildError where memory or disk would run out on the way."""
    available = available_memory()
    if plan.bill.build_memory > available:
        raise BuildError(
            f"the build needs {plan.bill.build_memory / 1e6:.0f} MB of memory and {available / 1e6:.0f} MB are available; "
            "--force tries all the same"
        )
    place = next(parent for parent in [plan.output.absolute(), *plan.output.absolute().parents] if parent.exists())
    free = shutil.disk_usage(place).free
    if plan.bill.disk > free:
        raise PublishError(
            f"the engine needs {plan.bill.disk / 1e6:.0f} MB of disk and {place} has {free / 1e6:.0f} MB left; "
            "--force tries all the same"
        )


def _write_graph(plan: Plan, scratch: Path, reporter: Reporter) -> None:
    with reporter.stage("reading weights", len(plan.decoder.tensors())) as advance:
        formed = FormedSource(plan.checkpoint.tensors, plan.choice.weights)
        model = graph.build_graph(plan.decoder, formed, dequantise=False, progress=lambda _: advance(1))
    reporter.note("writing the graph")
    try:
        ov.save_model(model, str(scratch / "model.xml"), compress_to_fp16=False)
    except RuntimeError as error:
        raise PublishError(f"{plan.output.parent}: the graph cannot be written (is the disk full?)") from error
    _require_whole(scratch)


def _require_whole(scratch: Path) -> None:
    """The library does not tell when a write fell short: hold the weights' file against what the graph refers to."""
    document = (scratch / "model.xml").read_text()
    ends = [int(offset) + int(size) for offset, size in re.findall(r'offset="(\d+)" size="(\d+)"', document)]
    written = (scratch / "model.bin").stat().st_size
    if not document.rstrip().endswith("</net>") or written < max(ends):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "model.bin")


def _prove(plan: Plan, scratch: Path, manifest: EngineManifest, reporter: Reporter) -> EngineManifest:
    """Load what was built, hold it against the reference, measure its steps; the manifest with what was found."""
    golden = find_golden(plan.source.sha256) or _own_golden(plan, reporter)
    reporter.note("loading the engine")
    with _vouched():
        runner = engines.openvino.load(scratch, kv_blocks=verification_blocks(plan.decoder), manifest=manifest)
    try:
        with _vouched():
            reporter.note(f"verifying {golden.positions} positions against {golden.reference}")
            driver = Driver(runner)
            fidelity = verify(driver, golden, plan.choice)
            with reporter.stage("measuring steps", 100) as advance:
                profile = measure_profile(driver, usable_cores(), _Share(advance))
    finally:
        runner.close()
    return with_findings(manifest, plan.choice, fidelity, profile)


@contextmanager
def _vouched() -> Iterator[None]:
    """An engine that its own runner refuses is not published."""
    try:
        yield
    except EngineError as error:
        raise VerificationError(f"the built engine does not run: {error}") from error


class _Share:
    """Turns (done, total) into hundredths for a progress bar."""

    def __init__(self, advance: Advance) -> None:
        self._advance = advance
        self._shown = 0

    def __call__(self, done: int, total: int) -> None:
        now = 100 * done // total
        self._advance(now - self._shown)
        self._shown = now


def _own_golden(plan: Plan, reporter: Reporter) -> Golden:
    reporter.note("no golden data is committed for this file: computing a reference with NumPy")
    ids = plan.checkpoint.tokenizer.encode(_PROBE_TEXT).ids
    return own_golden(plan.decoder, plan.checkpoint.tensors, plan.source.sha256, ids)
