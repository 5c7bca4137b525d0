"""Reads engine.json, whichever engine it describes."""

from __future__ import annotations

from pathlib import Path

import msgspec

from engines.contract import EngineLoadError
from engines.manifest import MANIFEST_NAME, SCHEMA_VERSION, EngineManifest

REBUILD = "build it again with `firsttoken build`"


class _Versioned(msgspec.Struct):
    """What every manifest has, of whatever version: looked at first, since nothing else of another version can be trusted."""

    schema_version: int


def read_manifest(directory: Path, engine: str | None = None) -> EngineManifest:
    """Raises EngineLoadError where there is none, none that this version reads, or one of another engine than ``engine``."""
    path = directory / MANIFEST_NAME
    try:
        document = path.read_bytes()
        schema = msgspec.json.decode(document, type=_Versioned).schema_version
        if schema != SCHEMA_VERSION:
            raise EngineLoadError(f"{path}: schema_version must be {SCHEMA_VERSION}, got {schema}: {REBUILD}")
        manifest = msgspec.json.decode(document, type=EngineManifest)
    except FileNotFoundError as error:
        raise EngineLoadError(
            f"{path}: no such file, so this is no engine: build one with `firsttoken build`"
        ) from error
    except msgspec.DecodeError as error:
        raise EngineLoadError(f"{path}: {error}: {REBUILD}") from error
    if engine is not None and manifest.engine != engine:
        raise EngineLoadError(f"{path}: engine must be {engine}, got {manifest.engine!r}")
    return manifest
