"""checkpoint.json: what a TensorRT-LLM checkpoint was made of, and by what. Written last; without it, nothing is there."""

from __future__ import annotations

from pathlib import Path

import msgspec

from build_scripts.errors import CheckpointError
from engines.manifest import FileEntry, Source, StageRecord

RECORD_NAME = "checkpoint.json"
RECORD_SCHEMA = 1
RECIPE = "trtllm-checkpoint-1"
"""Changed whenever the same checkpoint would give other rank files."""


class CheckpointRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema_version: int
    fingerprint: str
    """sha256 over all that decides the bytes: source, recipe, layout, types, options."""
    source: Source
    tp: int
    pp: int
    dtype: str
    weights: str | None
    """As asked for: "int8", "int4"; None = the checkpoint's own."""
    share_embedding: bool
    max_attention_window: tuple[int, ...]
    """For the executor's KvCacheConfig, one for each layer."""
    tools: dict[str, str]
    files: tuple[FileEntry, ...]
    stages: tuple[StageRecord, ...]


def read_record(directory: Path) -> CheckpointRecord:
    """Raises CheckpointError where there is none that this version reads."""
    path = directory / RECORD_NAME
    try:
        record = msgspec.json.decode(path.read_bytes(), type=CheckpointRecord)
    except FileNotFoundError as error:
        raise CheckpointError(f"{directory} holds no {RECORD_NAME}: it is no finished checkpoint of ours") from error
    except (OSError, msgspec.DecodeError) as error:
        raise CheckpointError(f"{path}: {error}") from error
    if record.schema_version != RECORD_SCHEMA:
        raise CheckpointError(
            f"{path}: schema_version must be {RECORD_SCHEMA}, got {record.schema_version}; build again"
        )
    return record
