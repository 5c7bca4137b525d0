"""A manifest for tests that care about one part of it."""

from __future__ import annotations

from engines.manifest import (
    SCHEMA_VERSION,
    EngineManifest,
    FileEntry,
    ModelShape,
    Numerics,
    Source,
    StepProfile,
    TokenizerInfo,
)


def make_manifest(
    files: tuple[FileEntry, ...] = (), fingerprint: str = "f" * 64, openvino: str = "2026.4.1"
) -> EngineManifest:
    return EngineManifest(
        schema_version=SCHEMA_VERSION,
        engine="openvino",
        built_at="2026-01-01T00:00:00+00:00",
        fingerprint=fingerprint,
        recipe="test",
        model=ModelShape("llama", 2, 64, 96, 2, 1, 32, 267, 256, 100_000),
        source=Source("tiny", "gguf", "tiny.gguf", "0" * 64, "Q4_1 (14)", "cc0-1.0"),
        numerics=Numerics("gguf", "f16", "f32", False, False, 24, 1.0, 1e-3, 1e-4, 1e-3, "transformers 5"),
        profile=StepProfile(1e-3, 1e-5, 1e-5, 1e-7, 1e-9, machine="a test", relative_error=0.1),
        tokenizer=TokenizerInfo(end_ids=(2,), bos_id=1, add_bos=False, chat_template=None, special_tokens={}),
        tools={"openvino": openvino},
        files=files,
    )
