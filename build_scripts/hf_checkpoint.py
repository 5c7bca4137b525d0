"""A Hugging Face directory: config.json, and tensors one by one out of one safetensors file or many with an index."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from build_scripts.decoder import Decoder, check_tensors
from build_scripts.errors import CheckpointError, UnsupportedError
from build_scripts.finite import refuse_not_finite
from build_scripts.hf_description import describe_config
from build_scripts.safetensors_file import SafetensorsFile
from build_scripts.weights import Dense, Floats

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

_FLOATS = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class Place:
    """Where a tensor of the description lies: a stored tensor, or a run of its rows."""

    stored: str
    rows: tuple[int, int] | None = None


class HfCheckpoint:
    """Opening reads the config and the headers; each read costs one tensor."""

    def __init__(self, directory: Path) -> None:
        """Raises CheckpointError or UnsupportedError, one sentence naming what is wrong or not implemented."""
        self.path = directory
        self.config = read_json(directory / "config.json")
        self.decoder = describe_config(self.config)
        refuse_quantised(self.config)
        self._files = open_shards(directory)
        self._places = places(self.decoder)
        self._check_stored_names()
        check_tensors(self.shapes(), self.decoder)
        self._check_formats()

    def shapes(self) -> dict[str, tuple[int, ...]]:
        shapes = {}
        for name, place in self._places.items():
            file = self._files.get(place.stored)
            if file is None:
                continue
            whole = file.entries[place.stored].shape
            shapes[name] = whole if place.rows is None else (place.rows[1] - place.rows[0], *whole[1:])
        return shapes

    def formats(self) -> dict[str, str]:
        """Storage format by tensor name: "BF16"."""
        return {name: self._files[place.stored].entries[place.stored].dtype for name, place in self._places.items()}

    def quantisation(self) -> str:
        """Formats by how many matrices use them: "BF16 (211)"."""
        formats = self.formats()
        matrices = Counter(formats[name] for name, shape in self.shapes().items() if len(shape) > 1)
        return ", ".join(f"{name} ({count})" for name, count in matrices.most_common())

    def read(self, name: str) -> Dense:
        place = self._places[name]
        values = self._files[place.stored].read(place.stored, place.rows)
        refuse_not_finite(values, place.stored)
        return Dense(values)

    def read_float32(self, name: str) -> Floats:
        return self.read(name).to_float32()

    def _check_stored_names(self) -> None:
        known = {place.stored for place in self._places.values()}
        for name in sorted(self._files.keys() - known):
            spare = name.endswith("rotary_emb.inv_freq") or (self.decoder.tied_embeddings and name == "lm_head.weight")
            if not spare:
                raise UnsupportedError(f"tensor {name} has no place in the description of {self.decoder.family}")
        for place in self._places.values():
            if place.rows is not None and place.stored in self._files:
                self._check_fused(place.stored)

    def _check_fused(self, stored: str) -> None:
        wanted = max(place.rows[1] for place in self._places.values() if place.stored == stored and place.rows)
        found = self._files[stored].entries[stored].shape
        if found[0] != wanted:
            raise CheckpointError(f"tensor {stored} should have {wanted} rows, the checkpoint has {found[0]}")

    def _check_formats(self) -> None:
        for name, dtype in self.formats().items():
            if dtype not in _FLOATS:
                stored = self._places[name].stored
                raise CheckpointError(f"tensor {stored} is stored as {dtype}; weights are {', '.join(_FLOATS)}")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises CheckpointError."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path.parent.name or path.parent} holds no {path.name}") from error
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read {path.name}: {error}") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path.name} should hold a JSON object")
    return values


def open_shards(directory: Path) -> dict[str, SafetensorsFile]:
    """The file of every stored tensor."""
    if (directory / INDEX).exists():
        return _open_indexed(directory)
    if (directory / SINGLE).exists() or (directory / SINGLE).is_symlink():
        single = SafetensorsFile(directory / SINGLE)
        return dict.fromkeys(single.entries, single)
    if any(directory.glob("*.bin")):
        raise UnsupportedError(
            f"{directory.name} holds its weights as pickled .bin files, which can run code when read; "
            "ask for the model's safetensors, or convert them with transformers' save_pretrained"
        )
    raise CheckpointError(f"{directory.name} holds neither {SINGLE} nor {INDEX}: the download is not whole")


def _open_indexed(directory: Path) -> dict[str, SafetensorsFile]:
    weight_map = read_json(directory / INDEX).get("weight_map")
    if not isinstance(weight_map, dict):
        raise CheckpointError(f"{INDEX} lacks weight_map")
    files = {name: SafetensorsFile(directory / str(name)) for name in sorted(set(weight_map.values()))}
    for name, shard in weight_map.items():
        if name not in files[shard].entries:
            raise CheckpointError(f"{INDEX} places tensor {name} in {shard}, which does not hold it")
    for shard, file in files.items():
        if unlisted := sorted(file.entries.keys() - weight_map.keys()):
            raise CheckpointError(f"{shard} holds tensor {unlisted[0]}, which {INDEX} does not list")
    return {name: files[shard] for name, shard in weight_map.items()}


def refuse_quantised(config: dict[str, Any]) -> None:
    stated = config.get("quantization_config")
    if stated:
        method = stated.get("quant_method", "unnamed") if isinstance(stated, dict) else stated
        raise UnsupportedError(
            f'config.json: quantization_config "{method}" is not implemented for this target; build from the '
            "unquantised checkpoint (--weights chooses a quantisation of ours)"
        )


_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_SANDWICH_NAMES = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
"""Gemma 2 and 3 give post_attention_layernorm its literal meaning; elsewhere it is the norm before the feed-forward."""


def places(decoder: Decoder) -> dict[str, Place]:
    """Where Hugging Face stores each tensor of the description."""
    found = {"token_embd.weight": Place("model.embed_tokens.weight"), "output_norm.weight": Place("model.norm.weight")}
    if not decoder.tied_embeddings:
        found["output.weight"] = Place("lm_head.weight")
    names = _LAYER_NAMES | (_SANDWICH_NAMES if decoder.post_norms else {})
    fused = _fused_rows(decoder) if decoder.family == "phi3" else {}
    for layer in range(decoder.layers):
        for tensor in decoder.layer_tensors():
            part, kind = tensor.rsplit(".", 1)
            stored, rows = fused.get(part, (names[part], None))
            found[f"blk.{layer}.{tensor}"] = Place(f"model.layers.{layer}.{stored}.{kind}", rows)
    return found


def _fused_rows(decoder: Decoder) -> dict[str, tuple[str, tuple[int, int]]]:
    """Phi-3 keeps queries, keys and values in one matrix, gate and up in another, in this order."""
    queries, keys = decoder.heads * decoder.head_dim, decoder.kv_heads * decoder.head_dim
    wide = decoder.intermediate
    return {
        "attn_q": ("self_attn.qkv_proj", (0, queries)),
        "attn_k": ("self_attn.qkv_proj", (queries, queries + keys)),
        "attn_v": ("self_attn.qkv_proj", (queries + keys, queries + 2 * keys)),
        "ffn_gate": ("mlp.gate_up_proj", (0, wide)),
        "ffn_up": ("mlp.gate_up_proj", (wide, 2 * wide)),
    }
