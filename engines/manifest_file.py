"""Reads engine.json, whichever engine it describes."""

from __future__ import annotations

from pathlib import Path

import msgspec

from engines.contract import EngineLoadError
from engines.manifest import MANIFEST_NAME, SCHEMA_VERSION, EngineManifest


def read_manifest(directory: Path, engine: str | None = None) -> EngineManifest:
    """Raises EngineLoadError where there is none, none that this version reads, or one of another engine than ``engine``."""
    path = directory / MANIFEST_NAME
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=EngineManifest)
    except FileNotFoundError as error:
        raise EngineLoadError(
            f"{path}: no such file, so this is no engine: build one with `firsttoken build`"
        ) from error
    except msgspec.DecodeError as error:
        raise EngineLoadError(f"{path}: {error}") from error
    if manifest.schema_version != SCHEMA_VERSION:
        raise EngineLoadError(
            f"{path}: schema_version must be {SCHEMA_VERSION}, got {manifest.schema_version}; build again"
        )
    if engine is not None and manifest.engine != engine:
        raise EngineLoadError(f"{path}: engine must be {engine}, got {manifest.engine!r}")
    return manifest
