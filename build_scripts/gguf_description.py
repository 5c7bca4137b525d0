"""The decoder in a GGUF file.

The reading is closed: a metadata key of the architecture, or a tensor, that is not known here is refused by its name,
because ignoring one (rope scaling, a sliding window, a bias) gives an engine that runs and is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from build_scripts.decoder import Decoder, Shape, check_arithmetic, check_tensors
from build_scripts.errors import CheckpointError, UnsupportedError
from build_scripts.rope import Rope, RopeScaling, yarn_attention_factor

if TYPE_CHECKING:
    from build_scripts.gguf_checkpoint import GgufCheckpoint

ARCHITECTURES = ("llama", "qwen2", "qwen3")

ROPE_FACTORS = "rope_freqs.weight"
"""A divisor for each rotary frequency: llama.cpp's form of Llama 3.1's scaling."""

_READ = frozenset(
    {
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.layer_norm_rms_epsilon",
        "attention.key_length",
        "attention.value_length",
        "rope.freq_base",
        "rope.dimension_count",
        "rope.scaling.type",
        "rope.scaling.factor",
        "rope.scaling.original_context_length",
        "rope.scaling.attn_factor",
        "vocab_size",
    }
)
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "rope.scaling.finetuned": (True, False),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "attention.causal": (True,),
    "tensor_data_layout": ("Meta AI original pth", "reference"),
}
"""Keys that may stand in a file as long as they say what this recipe does anyway."""


def describe(checkpoint: GgufCheckpoint) -> Decoder:
    """The decoder in a checkpoint. Raises UnsupportedError naming what is not implemented, CheckpointError for nonsense."""
    architecture = checkpoint.require("general.architecture", str)
    if architecture not in ARCHITECTURES:
        raise UnsupportedError(
            f'architecture "{architecture}" is not implemented in GGUF files; there are {", ".join(ARCHITECTURES)}'
        )
    _refuse_unknown_keys(checkpoint, architecture)
    decoder = _read(checkpoint, architecture)
    check_arithmetic(decoder)
    found = checkpoint.shapes()
    factors = found.pop(ROPE_FACTORS, None)
    if factors is not None and factors != (decoder.rope.dims // 2,):
        raise CheckpointError(f"tensor {ROPE_FACTORS} should have shape ({decoder.rope.dims // 2},), it has {factors}")
    check_tensors(found, decoder)
    return decoder


def _refuse_unknown_keys(checkpoint: GgufCheckpoint, architecture: str) -> None:
    for key in checkpoint.keys():  # noqa: SIM118 - a method of ours, not a dict
        name = key.removeprefix(f"{architecture}.")
        if name == key or name in _READ:
            continue
        value = checkpoint.require(key, object)
        if value not in _NEUTRAL.get(name, ()):
            raise UnsupportedError(f"{key} = {value!r:.60} is not implemented")


def _read(checkpoint: GgufCheckpoint, architecture: str) -> Decoder:
    def whole(name: str) -> int:
        return checkpoint.require(f"{architecture}.{name}", int)

    heads, hidden = whole("attention.head_count"), whole("embedding_length")
    if heads < 1:
        raise CheckpointError(f"{architecture}.attention.head_count must be at least 1, the file has {heads}")
    head_dim = checkpoint.get(f"{architecture}.attention.key_length", int) or hidden // heads
    for name in ("attention.value_length", "rope.dimension_count"):
        size = checkpoint.get(f"{architecture}.{name}", int) or head_dim
        if size != head_dim:
            raise UnsupportedError(
                f"{architecture}.{name} = {size} other than the head size {head_dim} is not implemented"
            )
    shapes = checkpoint.shapes()
    return Decoder(
        family=architecture,
        layers=whole("block_count"),
        hidden=hidden,
        intermediate=whole("feed_forward_length"),
        heads=heads,
        kv_heads=checkpoint.get(f"{architecture}.attention.head_count_kv", int) or heads,
        head_dim=head_dim,
        vocab_size=shapes.get("token_embd.weight", (0,))[0],
        max_context=whole("context_length"),
        norm_epsilon=checkpoint.require(f"{architecture}.attention.layer_norm_rms_epsilon", float),
        tied_embeddings="output.weight" not in shapes,
        rope=Rope(
            checkpoint.get(f"{architecture}.rope.freq_base", float) or 10000.0,
            head_dim,
            _scaling(checkpoint, architecture, shapes),
        ),
        qkv_bias="blk.0.attn_q.bias" in shapes,
        output_bias="blk.0.attn_output.bias" in shapes,
        feed_forward_bias="blk.0.ffn_down.bias" in shapes,
        qk_norm=architecture == "qwen3",
        attention_scale=head_dim**-0.5,
    )


def _scaling(checkpoint: GgufCheckpoint, architecture: str, shapes: dict[str, Shape]) -> RopeScaling:
    kind = checkpoint.get(f"{architecture}.rope.scaling.type", str) or "none"
    factor = checkpoint.get(f"{architecture}.rope.scaling.factor", float) or 1.0
    original = checkpoint.get(f"{architecture}.rope.scaling.original_context_length", int)
    if kind not in ("none", "linear", "yarn"):
        raise UnsupportedError(f'{architecture}.rope.scaling.type = "{kind}" is not implemented')
    if ROPE_FACTORS in shapes:
        if kind != "none":
            raise UnsupportedError(f'tensor {ROPE_FACTORS} beside rope scaling "{kind}" is not implemented')
        values = checkpoint.read_float32(ROPE_FACTORS)
        return RopeScaling("factors", short_factors=tuple(float(value) for value in values))
    if kind == "yarn":
        stretch = checkpoint.get(f"{architecture}.rope.scaling.attn_factor", float) or 1.0
        return RopeScaling(
            "yarn",
            factor=factor,
            original_context=original or checkpoint.require(f"{architecture}.context_length", int),
            attention_factor=stretch * yarn_attention_factor(factor),
        )
    return RopeScaling("linear", factor=factor) if kind == "linear" else RopeScaling()
