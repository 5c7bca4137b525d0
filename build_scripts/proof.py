"""The last stage of every build for the embedded engine: load what was built, hold it against a reference, measure its steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import engines.openvino
from build_scripts.bill import verification_blocks
from build_scripts.description import with_findings
from build_scripts.driver import Driver
from build_scripts.errors import VerificationError
from build_scripts.golden.reference import Golden
from build_scripts.host import give_back_freed_memory
from build_scripts.numerics import NumericsChoice
from build_scripts.profile import measure_profile
from build_scripts.progress import Advance, Reporter
from build_scripts.stages import Inputs, stage_key
from build_scripts.verify import verify
from engines.contract import EngineError
from engines.manifest import EngineManifest, StageRecord
from engines.openvino.host import usable_cores
from engines.openvino.loader import read_manifest

PROBE_TEXT = (
    "The history of a river is written in its valley: every flood leaves a line of stones, every drought a crack in the mud, "
    "and whoever reads them knows what the water did."
)
"""What a checkpoint without golden data is compared on."""


def prove(
    scratch: Path, manifest: EngineManifest, golden: Golden, choice: NumericsChoice, reporter: Reporter
) -> EngineManifest:
    """The manifest with what was found. Raises VerificationError where the engine is not what it must be."""
    reporter.note("loading the engine")
    with _vouched():
        blocks = verification_blocks(manifest.model.max_context)
        runner = engines.openvino.load(scratch, kv_blocks=blocks, manifest=manifest)
    give_back_freed_memory()  # what reading and compiling left: the weights are packed beside it, in the first steps
    try:
        with _vouched():
            reporter.note(f"verifying {golden.positions} positions against {golden.reference}")
            driver = Driver(runner)
            fidelity = verify(driver, golden, choice)
            with reporter.stage("measuring steps", 100) as advance:
                profile = measure_profile(driver, usable_cores(), _Share(advance))
    finally:
        runner.close()
    return with_findings(manifest, choice, fidelity, profile)


def proof_stands(recorded: tuple[StageRecord, ...], inputs: Inputs) -> bool:
    return any(record.key == stage_key("proof", inputs) for record in recorded)


def standing_engine(output: Path) -> EngineManifest | None:
    """The manifest of the engine that is there, if there is one that this version reads."""
    try:
        return read_manifest(output)
    except (EngineError, OSError):
        return None


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
