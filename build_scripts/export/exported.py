"""What an exported graph is: its shape as the manifest tells it, read from config.json and from the graph itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import openvino as ov

from build_scripts.errors import CheckpointError, UnsupportedError
from build_scripts.golden.reference import GoldenSequence
from engines.contract import EngineLoadError
from engines.manifest import ModelShape
from engines.openvino.graph import page

REFERENCE_NAME = "reference.json"

_ALIASES = {
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "intermediate": ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size"),
    "context": ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
}
"""Names that config.json has for one number, from family to family."""
_CHANGES_WITH_LENGTH = ("dynamic", "longrope", "su")
"""Rotations that turn all keys anew when a sequence grows past the original context: cached keys would be wrong there."""


class Reference(msgspec.Struct, frozen=True):
    """What the exporter's own forward pass said."""

    parameters: int
    sequences: list[GoldenSequence]


def read_reference(directory: Path) -> Reference:
    return msgspec.json.decode((directory / REFERENCE_NAME).read_bytes(), type=Reference)


def check_config(config: dict[str, Any]) -> None:
    """Raises UnsupportedError, before the exporter runs, for what it or paged attention is known not to compute."""
    if config.get("is_encoder_decoder"):
        raise UnsupportedError("config.json: is_encoder_decoder is not implemented: engines are decoders")
    if "auto_map" in config and not config.get("model_type"):
        raise UnsupportedError("config.json: auto_map names code of the checkpoint's own, which is not run")
    if (cap := config.get("attn_logit_softcapping")) is not None:
        raise UnsupportedError(
            f"attn_logit_softcapping {cap} is not implemented on the embedded engine: its paged attention has no cap on scores"
        )
    max_context(config)


def max_context(config: dict[str, Any]) -> int:
    """Longest sequence that is exact with cached keys. Raises CheckpointError where config.json names none."""
    longest = _number(config, "context")
    if longest is None:
        raise CheckpointError(f"config.json names no longest sequence: one of {', '.join(_ALIASES['context'])}")
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type", scaling.get("type")) in _CHANGES_WITH_LENGTH:
        original = config.get("original_max_position_embeddings", scaling.get("original_max_position_embeddings"))
        return min(longest, original or longest)
    return longest


def vocabulary(config: dict[str, Any]) -> int:
    rows = config.get("vocab_size")
    if not isinstance(rows, int) or rows < 1:
        raise CheckpointError(f"config.json: vocab_size must be a whole number, at least 1, the file has {rows!r}")
    return rows


def describe_graph(directory: Path, config: dict[str, Any], parameters: int) -> ModelShape:
    """Layers, key heads and head size are the graph's own. Raises UnsupportedError where it is no graph of paged attention."""
    model = ov.Core().read_model(str(directory / "model.xml"))
    kv_heads, head_dim, layers = _cache_shape(model)
    rows = int(list(model.outputs[0].get_partial_shape())[-1].get_length())
    try:
        page(model)
    except EngineLoadError as error:
        raise UnsupportedError(f"the exported graph cannot be served: {str(error).splitlines()[0]}") from error
    hidden = _number(config, "hidden") or 0
    return ModelShape(
        family=str(config["model_type"]),
        layers=layers,
        hidden=hidden,
        intermediate=_number(config, "intermediate") or 4 * hidden,
        heads=_number(config, "heads") or kv_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=rows,
        max_context=max_context(config),
        parameters=parameters,
    )


def _cache_shape(model: ov.Model) -> tuple[int, int, int]:
    """KV heads, head size and layers, from the states: [batch, heads, tokens, size], keys and values of each layer."""
    shapes = {
        tuple(size.get_length() if size.is_static else -1 for size in node.get_output_partial_shape(0))
        for node in model.get_ops()
        if node.get_type_name() == "ReadValue"
    }
    if len(shapes) != 1:
        raise UnsupportedError(
            f"the exported graph keeps states of {len(shapes)} shapes {sorted(shapes)}, one is served"
        )
    shape = shapes.pop()
    if len(shape) != 4 or shape[1] < 1 or shape[3] < 1:
        raise UnsupportedError(
            f"the exported graph keeps states of shape {shape}, [batch, heads, tokens, size] is served"
        )
    states = sum(node.get_type_name() == "ReadValue" for node in model.get_ops())
    return shape[1], shape[3], states // 2


def _number(config: dict[str, Any], name: str) -> int | None:
    found = (config.get(alias) for alias in _ALIASES[name])
    return next((value for value in found if isinstance(value, int) and value > 0), None)
