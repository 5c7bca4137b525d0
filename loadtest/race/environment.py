"""An environment of its own for each peer, under artifacts/race, made once."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from loadtest.errors import LoadError

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / "artifacts" / "race"


class RaceError(LoadError):
    """A peer cannot take part."""


def environment(name: str, requirements: Sequence[str], surroundings: Mapping[str, str] | None = None) -> Path:
    """The Python of the peer's environment, installing it where it is missing or asks for other packages. ``surroundings``:
    environment variables that say how what must be compiled is compiled. Raises RaceError."""
    home = HOME / name
    python, stamp = home / "bin" / "python", home / "requirements.sha256"
    words = [f"{key}={value}" for key, value in sorted((surroundings or {}).items())]
    wanted = hashlib.sha256("\n".join((*requirements, *words)).encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    _run([sys.executable, "-m", "venv", "--clear", str(home)], name)
    _run(
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements],
        name,
        surroundings,
    )
    stamp.write_text(wanted)
    return python


def _run(command: Sequence[str], name: str, surroundings: Mapping[str, str] | None = None) -> None:
    variables = os.environ | dict(surroundings or {})
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, env=variables
    )
    if done.returncode != 0:
        raise RaceError(f"{name}: {' '.join(command[:4])} … failed:\n{done.stdout[-2000:]}")
