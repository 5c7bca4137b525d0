"""The decoder in a GGUF file.

The reading is closed: a metadata key of the architecture, or a tensor, that is not known here is refused by its name,
because ignoring one (rope scaling, a sliding window, a bias) gives an engine that runs and is wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from build_scripts.decoder import Decoder, check_arithmetic, check_tensors
from build_scripts.errors import CheckpointError, UnsupportedError
from build_scripts.rope import Rope

if TYPE_CHECKING:
    from build_scripts.gguf_checkpoint import GgufCheckpoint

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
        "vocab_size",
    }
)
_NEUTRAL: dict[str, tuple[object, ...]] = {
    "rope.scaling.type": ("none",),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "attention.causal": (True,),
}
"""Keys that may stand in a file as long as they say what this recipe does anyway."""


def describe(checkpoint: GgufCheckpoint) -> Decoder:
    """The decoder in a checkpoint. Raises UnsupportedError naming what is not implemented, CheckpointError for nonsense."""
    architecture = checkpoint.require("general.architecture", str)
    if architecture != "llama":
        raise UnsupportedError(f'architecture "{architecture}" is not implemented; there is "llama"')
    _refuse_unknown_keys(checkpoint, architecture)
    decoder = _read(checkpoint, architecture)
    check_arithmetic(decoder)
    check_tensors(checkpoint.shapes(), decoder)
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
        rope=Rope(checkpoint.get(f"{architecture}.rope.freq_base", float) or 10000.0, head_dim),
        attention_scale=head_dim**-0.5,
    )
