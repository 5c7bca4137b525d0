"""An environment of its own for each peer, under artifacts/race, made once."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from loadtest.errors import LoadError

ROOT = Path(__file__).resolve().parents[2]
HOME = ROOT / "artifacts" / "race"


class RaceError(LoadError):
    """A peer cannot take part."""


def environment(name: str, requirements: Sequence[str]) -> Path:
    """The Python of the peer's environment, installing it where it is missing or asks for other packages. Raises RaceError."""
    home = HOME / name
    python, stamp = home / "bin" / "python", home / "requirements.sha256"
    wanted = hashlib.sha256("\n".join(requirements).encode()).hexdigest()
    if stamp.is_file() and stamp.read_text() == wanted:
        return python
    _run([sys.executable, "-m", "venv", "--clear", str(home)], name)
    _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements], name)
    stamp.write_text(wanted)
    return python


def _run(command: Sequence[str], name: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise RaceError(f"{name}: {' '.join(command[:4])} … failed:\n{done.stdout[-2000:]}")
