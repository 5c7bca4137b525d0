"""Building the tiny model in a test."""

from __future__ import annotations

from pathlib import Path

from build_scripts.build import BuildRequest, Plan, build, make_plan
from build_scripts.numerics import NumericsChoice, numerics_choice
from engines.manifest import EngineManifest
from tests.engines_built import SilentReporter


def planned(model: Path | str, output: Path, choice: NumericsChoice | None = None) -> Plan:
    cache = output.parent / "cache"
    return make_plan(BuildRequest(str(model), output, choice or numerics_choice(), cache), SilentReporter())


def built(model: Path | str, output: Path, choice: NumericsChoice | None = None) -> EngineManifest:
    return build(planned(model, output, choice), SilentReporter())


def contents(directory: Path) -> dict[str, bytes]:
    """Every file of a directory."""
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}
