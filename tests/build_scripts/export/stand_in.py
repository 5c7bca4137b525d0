"""A stand-in for the exporter's Python: it tells versions, and "exports" the committed files. Everything else is real."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from build_scripts.export.environment import PINS
from engines.openvino.fitness import openvino_version
from tests.build_scripts.small_models import write_byte_tokenizer
from tests.build_scripts.tiny import write_tensors

COMMITTED = Path(__file__).with_name("tiny_gpt2")
_PROGRAM = """#!{python}
import json, pathlib, shutil, sys
if sys.argv[3:] == ["versions"]:
    print({versions!r})
else:
    {failure}
    output = pathlib.Path(json.loads(pathlib.Path(sys.argv[4]).read_text())["output"])
    for name in ("model.xml", "model.bin", "reference.json"):
        shutil.copy(pathlib.Path({committed!r}) / name, output / name)
"""


def write_python(path: Path, failure: str = "pass", **versions: str | None) -> Path:
    """``failure`` is a statement that runs when an export is asked for; ``versions`` replace the right ones, "_" for "-"."""
    told: dict[str, str | None] = {**PINS, "openvino": openvino_version()}
    told |= {name.replace("_", "-"): version for name, version in versions.items()}
    program = _PROGRAM.format(
        python=sys.executable, versions=json.dumps(told), failure=failure, committed=str(COMMITTED)
    )
    path.write_text(program)
    path.chmod(0o755)
    return path


def write_source(directory: Path, **changes: object) -> Path:
    """A directory of the committed model's config; its weights are only counted, never read."""
    directory.mkdir()
    config = json.loads((COMMITTED / "config.json").read_text()) | changes
    (directory / "config.json").write_text(json.dumps(config))
    write_tensors(directory / "model.safetensors", {"wte": np.ones((264, 32), np.float32)}, "F32")
    write_byte_tokenizer(directory)
    return directory
