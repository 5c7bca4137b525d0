"""Whole Hugging Face directories that the command can build: random weights, a byte tokenizer, any size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from build_scripts.casting import to_bfloat16
from build_scripts.hf_checkpoint import places
from build_scripts.hf_description import describe_config
from build_scripts.safetensors_file import SafetensorsWriter

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 264,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "bos_token_id": 256,
    "eos_token_id": 257,
}


def write_small_model(directory: Path, *, shards: int = 1, seed: int = 0, damping: float = 1.0, **changes: Any) -> Path:
    """bfloat16 weights; ``changes`` replace keys of the config. Tensors are made and written one by one.

    ``damping`` below 1 shrinks what a layer adds to the residual stream: undamped, sixteen random layers blow the error of
    four-bit weights up until no choice of the reference is left.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config = CONFIG | changes
    (directory / "config.json").write_text(json.dumps(config))
    decoder = describe_config(config)
    stored = {place.stored: decoder.tensors()[name] for name, place in places(decoder).items()}
    weight_map: dict[str, str] = {}
    for number in range(shards):
        names = sorted(stored)[number::shards]
        file = "model.safetensors" if shards == 1 else f"model-{number + 1:05}-of-{shards:05}.safetensors"
        weight_map |= dict.fromkeys(names, file)
        with SafetensorsWriter(directory / file, {name: ("BF16", stored[name]) for name in names}) as writer:
            for name in names:
                writer.write(name, _random(name, stored[name], seed, damping))
    if shards > 1:
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    write_byte_tokenizer(directory)
    return directory


def _random(name: str, shape: tuple[int, ...], seed: int, damping: float) -> np.ndarray[Any, np.dtype[np.uint16]]:
    generator = np.random.default_rng([seed, *name.encode()])
    values = generator.standard_normal(shape, dtype=np.float32)
    if len(shape) == 1:
        return to_bfloat16(1 + np.float32(0.1) * values)
    if "embed" in name:
        return to_bfloat16(values)
    factor = damping if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
    return to_bfloat16(values * np.float32(1.5 * factor / shape[1] ** 0.5))


def write_byte_tokenizer(directory: Path) -> None:
    vocabulary = {text: index for index, text in enumerate(sorted(ByteLevel.alphabet()))}
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in ("<s>", "</s>")])
    tokenizer.save(str(directory / "tokenizer.json"))
