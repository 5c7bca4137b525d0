"""A small engine's manifest."""

from __future__ import annotations

from pathlib import Path

import msgspec

from engines.manifest import (
    MANIFEST_NAME,
    SCHEMA_VERSION,
    EngineManifest,
    FileEntry,
    ModelShape,
    Numerics,
    Source,
    StepProfile,
    TokenizerInfo,
)


def manifest(profile: StepProfile) -> EngineManifest:
    """Two layers, two KV heads of 16, keys and values in 16 bits."""
    return EngineManifest(
        schema_version=SCHEMA_VERSION,
        engine="openvino",
        built_at="2026-01-01T00:00:00+00:00",
        fingerprint="f",
        recipe="r",
        model=ModelShape("llama", 2, 64, 128, 4, 2, 16, 1000, 4096, 10**6),
        source=Source("tiny", "gguf", "tiny.gguf", "0", "F16", "none"),
        numerics=Numerics("gguf", "f16", "f32", False, False, 1, 1.0, 0.0, 0.0, 0.1),
        profile=profile,
        tokenizer=TokenizerInfo((2,), None, False, None, {}),
        tools={},
        files=(FileEntry("model.bin", 2 * 10**6, "0"),),
    )


def write_manifest(directory: Path, profile: StepProfile) -> None:
    (directory / MANIFEST_NAME).write_bytes(msgspec.json.encode(manifest(profile)))
