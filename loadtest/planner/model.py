"""What a plan must know of a model: its size, and what its keys and values take."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import msgspec

from build_scripts.decoder import Decoder
from build_scripts.errors import CheckpointError, UnsupportedError
from build_scripts.hf_description import describe_config
from engines.manifest import MANIFEST_NAME, EngineManifest
from loadtest.errors import WorkloadError

WEIGHT_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5625, "fp32": 4.0}
"""Per parameter. int4 carries a scale and a zero of 16 bits each for every 64 values."""
KV_BYTES = {"bf16": 2, "fp16": 2, "fp8": 1, "fp32": 4}


@dataclass(frozen=True, kw_only=True)
class PlannedModel:
    name: str
    parameters: int
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    max_context: int
    """What it was trained for, in tokens."""
    windows: tuple[int | None, ...] = ()
    """Attention window of each layer; empty = none has one."""

    def kept_tokens(self, tokens: int) -> float:
        """Tokens that a layer keeps of so many, on average over the layers: a windowed layer keeps no more than its window."""
        windows = self.windows or (None,) * self.layers
        return sum(tokens if window is None else min(tokens, window) for window in windows) / self.layers

    def kv_bytes(self, tokens: int, precision: str) -> int:
        """Of one sequence of so many tokens, all layers: 2 * layers * kv heads * head size * bytes * tokens."""
        per_token = 2 * self.layers * self.kv_heads * self.head_dim * KV_BYTES[precision]
        return round(per_token * self.kept_tokens(tokens))

    def weight_bytes(self, precision: str) -> int:
        return math.ceil(self.parameters * WEIGHT_BYTES[precision])


def from_decoder(name: str, decoder: Decoder) -> PlannedModel:
    return PlannedModel(
        name=name,
        parameters=decoder.parameters(),
        layers=decoder.layers,
        hidden=decoder.hidden,
        heads=decoder.heads,
        kv_heads=decoder.kv_heads,
        head_dim=decoder.head_dim,
        max_context=decoder.max_context,
        windows=decoder.windows,
    )


def from_manifest(manifest: EngineManifest) -> PlannedModel:
    shape = manifest.model
    return PlannedModel(
        name=manifest.source.name,
        parameters=shape.parameters,
        layers=shape.layers,
        hidden=shape.hidden,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_context=shape.max_context,
    )


def read_model(path: Path) -> PlannedModel:
    """From an engine directory, a checkpoint directory, or a config.json. Raises WorkloadError."""
    manifest, config = path / MANIFEST_NAME, path / "config.json" if path.is_dir() else path
    try:
        if manifest.is_file():
            return from_manifest(msgspec.json.decode(manifest.read_bytes(), type=EngineManifest))
        return from_decoder(path.stem if path.is_file() else path.name, describe_config(json.loads(config.read_text())))
    except OSError as error:
        raise WorkloadError(f"model: cannot read {config}: {error.strerror}") from error
    except (ValueError, CheckpointError, UnsupportedError) as error:
        raise WorkloadError(f"model: {config}: {error}") from error
