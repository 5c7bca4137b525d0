"""The exporter's environment: which Python it is, what must be installed there, and running the program in it."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build_scripts.errors import BuildError, UnsupportedError
from engines.openvino.fitness import openvino_version

VARIABLE = "FIRSTTOKEN_EXPORT_PYTHON"
PINS = {"optimum-intel": "1.27.0", "optimum": "2.1.0", "transformers": "4.57.6", "torch": "2.13.0"}
"""What the exporter is tested with; pyproject.toml's extra "export" says the same."""
PROGRAM = Path(__file__).with_name("exporter.py")
_LAST_WORDS = 300
"""Characters of the program's last line that an error quotes."""


@dataclass(frozen=True)
class Environment:
    python: Path
    versions: dict[str, str]
    """By package, as installed there."""

    def export(self, order: dict[str, Any], scratch: Path) -> None:
        """Run the exporter. Raises UnsupportedError with its last words where it fails."""
        document = scratch / "order.json"
        document.write_text(json.dumps(order), encoding="utf-8")
        done = _run(self.python, "export", str(document))
        document.unlink()
        if done.returncode < 0:
            raise BuildError(f"the exporter was killed by signal {-done.returncode} (is the memory too small?)")
        if done.returncode:
            raise UnsupportedError(f"optimum-intel cannot export this model: {_last_words(done.stderr)}")


def default_python(cache: Path) -> Path:
    """Where the environment is looked for: $FIRSTTOKEN_EXPORT_PYTHON, or one below the cache."""
    named = os.environ.get(VARIABLE, "")
    return Path(named) if named else cache / "export-env" / "bin" / "python"


def how_to_make(cache: Path) -> str:
    """The commands, as one line to paste."""
    place = cache / "export-env"
    wanted = PINS | {"openvino": openvino_version()}
    pins = " ".join(f"{name}=={version}" for name, version in wanted.items())
    return f"`python3 -m venv {place} && {place}/bin/pip install {pins}`"


def find_environment(cache: Path) -> Environment:
    """Raises UnsupportedError, with the commands that make one, where there is none that can export."""
    python = default_python(cache)
    remedy = f"make one with {how_to_make(cache)}, or name a Python that has these in {VARIABLE}"
    if not python.is_file():
        raise UnsupportedError(f"--export needs an environment of its own and {python} is not there: {remedy}")
    try:
        found: dict[str, str | None] = json.loads(_run(python, "versions").stdout)
    except (OSError, ValueError) as error:
        raise UnsupportedError(f"{python} cannot run the exporter ({error}): {remedy}") from error
    for name, wanted in (PINS | {"openvino": openvino_version()}).items():
        have = _release(found.get(name))
        if have != wanted:
            raise UnsupportedError(f"{python} has {name} {have or 'not installed'}, {wanted} is needed: {remedy}")
    return Environment(python, {name: str(version) for name, version in found.items()})


def _release(version: str | None) -> str | None:
    """Without what says how it was built: "2.13.0+cpu" is 2.13.0."""
    return None if version is None else version.split("+", 1)[0].split("-", 1)[0]


def _run(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # -I: neither the user's packages nor a PYTHONPATH of ours may mix with that environment's.
    command = [str(python), "-I", str(PROGRAM), *arguments]
    alone = {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | alone)


def _last_words(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return lines[-1][:_LAST_WORDS] if lines else "it gave no reason"
