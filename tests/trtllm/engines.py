"""Synthetic engine directories and machines: what a compiled engine has beside its rank files, without any."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from engines import simulated
from engines.manifest import MANIFEST_NAME, EngineManifest, FileEntry
from engines.trtllm.adapters import MODULES, WEIGHTS
from engines.trtllm.facts import TensorRtFacts
from engines.trtllm.machine import Gpu, Machine
from tests.trtllm.fake_engine import HABITS

GIB = 1 << 30

FACTS = TensorRtFacts(
    tensorrt_llm="1.2.1",
    tensorrt="10.14.1.48",
    cuda="13.0.3",
    driver="580.95.05",
    gpu_name="NVIDIA H100 80GB HBM3",
    compute_capability="9.0",
    gpu_memory=80 * GIB,
    tp=1,
    pp=1,
    profile="latency",
    max_batch_size=8,
    max_num_tokens=64,
    max_input_len=256,
    max_seq_len=256,
    tokens_per_block=8,
    kv_bytes_per_token=1024,
    kv_dtype="bfloat16",
    weight_bytes=16 * GIB,
    workspace_bytes=GIB,
    max_attention_window=(256, 256),
)

HERE = Machine(
    tensorrt_llm="1.2.1",
    tensorrt="10.14.1.48",
    cuda="13.0.3",
    driver="580.95.05",
    gpus=(Gpu("NVIDIA H100 80GB HBM3", "9.0", 80 * GIB),) * 2,
    mpirun="/usr/bin/mpirun",
)


def config_json(facts: TensorRtFacts, vocab_size: int) -> dict[str, Any]:
    """As trtllm-build leaves it, as far as anybody here reads it."""
    return {
        "version": facts.tensorrt_llm,
        "pretrained_config": {
            "architecture": "LlamaForCausalLM",
            "vocab_size": vocab_size,
            "mapping": {"world_size": facts.world_size, "tp_size": facts.tp, "pp_size": facts.pp},
        },
        "build_config": {
            "max_batch_size": facts.max_batch_size,
            "max_num_tokens": facts.max_num_tokens,
            "max_input_len": facts.max_input_len,
            "max_seq_len": facts.max_seq_len,
            "plugin_config": {"tokens_per_block": facts.tokens_per_block},
        },
    }


def make_engine(
    directory: Path,
    facts: TensorRtFacts = FACTS,
    *,
    vocab_size: int | None = None,
    habits: Mapping[str, object] | None = None,
) -> EngineManifest:
    """Write an engine directory. Its rank files are a few bytes: nobody but the real library reads them."""
    directory.mkdir(parents=True, exist_ok=True)
    twin = simulated.load("instant", simulated.SimulatedShape(), executor=True)
    twin.engine.close()
    size = vocab_size or twin.manifest.model.vocab_size
    texts = {
        "config.json": json.dumps(config_json(facts, size)),
        "tokenizer.json": twin.tokenizer_json,
        HABITS: json.dumps(dict(habits or {})),
    } | {f"rank{rank}.engine": f"fake plan {rank}" for rank in range(facts.world_size)}
    for name, text in texts.items():
        (directory / name).write_text(text)
    files = tuple(
        FileEntry(name, len(text.encode()), hashlib.sha256(text.encode()).hexdigest())
        for name, text in sorted(texts.items())
    )
    model = msgspec.structs.replace(twin.manifest.model, vocab_size=size, max_context=facts.max_seq_len)
    source = msgspec.structs.replace(twin.manifest.source, name="fake-llama")
    manifest = msgspec.structs.replace(
        twin.manifest, engine="trtllm", files=files, model=model, source=source, trtllm=facts
    )
    write_manifest(directory, manifest)
    return manifest


def make_adapter(directory: Path, *, rank: int = 8, modules: int = 2) -> Path:
    """An adapter as hf_lora_convert.py leaves it: rows of (module, layer, rank), and a row of weights for each."""
    directory.mkdir(parents=True, exist_ok=True)
    rows = np.array([[[module, 0, rank] for module in range(modules)]], dtype=np.int32)
    np.save(directory / MODULES, rows)
    np.save(directory / WEIGHTS, np.zeros((1, modules, rank * 16), dtype=np.float16))
    return directory


def write_manifest(directory: Path, manifest: EngineManifest) -> None:
    (directory / MANIFEST_NAME).write_bytes(msgspec.json.encode(manifest))
