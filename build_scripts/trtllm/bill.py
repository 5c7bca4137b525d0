"""What each rank costs on a GPU, and how many sequences a device has room for, before anything is converted.

The arithmetic is the field's: usable memory = 0.9 of the device; less weights and workspace; what is left, in blocks of
tokens_per_block tokens, holds keys and values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from build_scripts.target_device import TargetDevice
from build_scripts.trtllm.convert import Conversion
from build_scripts.trtllm.layout import kv_head_share
from build_scripts.trtllm.recipe import Recipe

TOKENS_PER_BLOCK = 32
MAX_NUM_TOKENS = 8192
"""Tokens in one step, as trtllm-build assumes where it is told nothing."""
MAX_BATCH = 256
CONVERSION_OVERHEAD = 150_000_000
"""Interpreter, libraries and headers while tensors stream."""
_FLOAT_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class RankBill:
    """One rank of a stage; all ranks of a stage cost the same. Bytes."""

    stage: int
    weights: int
    kv_per_token: int
    workspace: int
    """Activations of a full step, and the logits of a full batch on the last stage."""

    def budget(self, device: TargetDevice) -> int:
        """Left for keys and values; below zero where the weights do not fit."""
        return device.usable - self.weights - self.workspace

    def sequences(self, device: TargetDevice, length: int) -> int:
        blocks = max(self.budget(device), 0) // (self.kv_per_token * TOKENS_PER_BLOCK)
        return blocks // math.ceil(length / TOKENS_PER_BLOCK)


@dataclass(frozen=True)
class ClusterBill:
    ranks: tuple[RankBill, ...]
    """By stage."""
    disk: int
    """All rank files."""
    build_memory: int
    """Peak of the conversion."""
    max_context: int

    def sequences(self, device: TargetDevice, length: int) -> int:
        """Every stage holds a sequence's keys and values for its own layers: the tightest stage decides."""
        return min(rank.sequences(device, length) for rank in self.ranks)

    def fits(self, device: TargetDevice) -> bool:
        """Whether one sequence of the longest context has room (case B1)."""
        return self.sequences(device, self.max_context) > 0


def draw_up(conversion: Conversion, recipe: Recipe) -> ClusterBill:
    layout, decoder = conversion.layout, conversion.decoder
    ranks = tuple(_rank(conversion, recipe, stage) for stage in range(layout.pp))
    outputs = [output for stage in range(layout.pp) for output in conversion.outputs(recipe, stage)]
    pieces = [sum(math.prod(piece.shape) for piece in output.pieces) for output in outputs]
    return ClusterBill(
        ranks=ranks,
        disk=sum(rank.weights for rank in ranks) * layout.tp,
        # A tensor as stored, its cast form, and one shard's copy.
        build_memory=2 * max(pieces) * 4 + CONVERSION_OVERHEAD,
        max_context=decoder.static_context,
    )


def _rank(conversion: Conversion, recipe: Recipe, stage: int) -> RankBill:
    decoder, layout = conversion.decoder, conversion.layout
    size = _FLOAT_BYTES[conversion.dtype]
    cache_size = 1 if conversion.quantisation.kv_cache_quant_algo in ("FP8", "INT8") else size
    layers = len(layout.stage_layers(decoder.layers, stage))
    key_heads = len(kv_head_share(decoder.kv_heads, layout.tp, 0))
    return RankBill(
        stage=stage,
        weights=_weights(conversion, recipe, stage),
        kv_per_token=2 * layers * key_heads * decoder.head_dim * cache_size,
        workspace=workspace(conversion, stage, MAX_NUM_TOKENS, MAX_BATCH),
    )


def workspace(conversion: Conversion, stage: int, step_tokens: int, batch: int) -> int:
    """Bytes of a full step's activations on one rank, and of a full batch's logits on the last stage."""
    decoder, layout = conversion.decoder, conversion.layout
    key_heads = len(kv_head_share(decoder.kv_heads, layout.tp, 0))
    heads = (decoder.heads // layout.tp + 2 * key_heads) * decoder.head_dim
    per_token = 4 * decoder.hidden + heads + 2 * decoder.intermediate // layout.tp
    logits = 4 * batch * decoder.vocab_size if stage == layout.pp - 1 else 0
    return step_tokens * per_token * _FLOAT_BYTES[conversion.dtype] + logits


def _weights(conversion: Conversion, recipe: Recipe, stage: int) -> int:
    """On the device: weight-only quantisation happens in the engine builder, after the rank file was written."""
    stored = conversion.rank_bytes(recipe, stage)
    share = {"W8A16": 1, "W4A16": 0.5}.get(conversion.quantisation.quant_algo or "")
    if share is None:
        return stored
    size = _FLOAT_BYTES[conversion.dtype]
    linear = sum(
        math.prod(shape) * size
        for name, (_, shape) in conversion.declared(recipe, stage).items()
        if len(shape) == 2 and (".attention." in name or ".mlp." in name)
    )
    return stored - linear + int(linear / size * share)
