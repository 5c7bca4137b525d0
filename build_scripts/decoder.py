"""What a decoder-only transformer is, in numbers, and which of them this recipe implements.

The reading is closed: a metadata key of the architecture, or a tensor, that is not known here is refused by its name,
because ignoring one (rope scaling, a sliding window, a bias) gives an engine that runs and is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from build_scripts.errors import CheckpointError, UnsupportedError

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


@dataclass(frozen=True)
class Decoder:
    """A Llama-shaped decoder: RMS norms, rotary positions in half-split order, grouped-query attention, gated SiLU."""

    family: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    max_context: int
    norm_epsilon: float
    rope_theta: float
    tied_embeddings: bool

    def parameters(self) -> int:
        """Weights that are stored; tied embeddings count once."""
        return sum(_count(shape) for shape in self.tensors().values())

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of the model under its GGUF name, with its shape, rows first."""
        shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (self.vocab_size, self.hidden)}
        for layer in range(self.layers):
            shapes |= {f"blk.{layer}.{name}": shape for name, shape in self._layer_tensors().items()}
        shapes["output_norm.weight"] = (self.hidden,)
        if not self.tied_embeddings:
            shapes["output.weight"] = (self.vocab_size, self.hidden)
        return shapes

    def _layer_tensors(self) -> dict[str, tuple[int, ...]]:
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return {
            "attn_norm.weight": (self.hidden,),
            "attn_q.weight": (queries, self.hidden),
            "attn_k.weight": (keys, self.hidden),
            "attn_v.weight": (keys, self.hidden),
            "attn_output.weight": (self.hidden, queries),
            "ffn_norm.weight": (self.hidden,),
            "ffn_gate.weight": (self.intermediate, self.hidden),
            "ffn_up.weight": (self.intermediate, self.hidden),
            "ffn_down.weight": (self.hidden, self.intermediate),
        }


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def describe(checkpoint: GgufCheckpoint) -> Decoder:
    """The decoder in a checkpoint. Raises UnsupportedError naming what is not implemented, CheckpointError for nonsense."""
    architecture = checkpoint.require("general.architecture", str)
    if architecture != "llama":
        raise UnsupportedError(f'architecture "{architecture}" is not implemented; there is "llama"')
    _refuse_unknown_keys(checkpoint, architecture)
    decoder = _read(checkpoint, architecture)
    _check_arithmetic(decoder)
    _check_tensors(checkpoint.shapes(), decoder)
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
        rope_theta=checkpoint.get(f"{architecture}.rope.freq_base", float) or 10000.0,
        tied_embeddings="output.weight" not in shapes,
    )


def _check_arithmetic(decoder: Decoder) -> None:
    for name in ("layers", "hidden", "intermediate", "heads", "kv_heads", "head_dim", "max_context"):
        value = getattr(decoder, name)
        if value < 1:
            raise CheckpointError(f"{name} must be at least 1, the file has {value}")
    if decoder.heads % decoder.kv_heads:
        raise CheckpointError(f"{decoder.heads} query heads cannot share {decoder.kv_heads} key heads evenly")
    if decoder.head_dim % 2:
        raise CheckpointError(f"rotary positions need an even head size, the file has {decoder.head_dim}")


def _check_tensors(found: dict[str, tuple[int, ...]], decoder: Decoder) -> None:
    wanted = decoder.tensors()
    if missing := sorted(wanted.keys() - found.keys()):
        raise CheckpointError(f"the file lacks tensor {missing[0]} ({len(missing)} missing)")
    if extra := sorted(found.keys() - wanted.keys()):
        raise UnsupportedError(f"tensor {extra[0]} has no place in this recipe ({len(extra)} such)")
    for name, shape in wanted.items():
        if found[name] != shape:
            raise CheckpointError(f"tensor {name} should have shape {shape}, the file has {found[name]}")
