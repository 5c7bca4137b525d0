"""How a model is spread over ranks: ``tp`` ranks share each layer, ``pp`` groups of them take turns with the layers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from build_scripts.decoder import Decoder
from build_scripts.errors import UnsupportedError


@dataclass(frozen=True)
class Layout:
    tp: int
    pp: int

    @property
    def world_size(self) -> int:
        return self.tp * self.pp

    def rank(self, stage: int, shard: int) -> int:
        """Ranks count through a stage's shards first."""
        return stage * self.tp + shard

    def coordinates(self) -> Iterator[tuple[int, int]]:
        """(stage, shard) of every rank in order."""
        return ((stage, shard) for stage in range(self.pp) for shard in range(self.tp))

    def stage_layers(self, layers: int, stage: int) -> range:
        """Where layers do not divide evenly the first stages take one more, as TensorRT-LLM's mapping does."""
        least, extra = divmod(layers, self.pp)
        start = stage * least + min(stage, extra)
        return range(start, start + least + (1 if stage < extra else 0))


def check_layout(decoder: Decoder, layout: Layout) -> None:
    """Raises UnsupportedError, saying which sizes would do, where the model cannot be spread so."""
    for name, value in (("tp", layout.tp), ("pp", layout.pp)):
        if value < 1:
            raise UnsupportedError(f"{name} must be at least 1, given {value}")
    if layout.pp > decoder.layers:
        raise UnsupportedError(f"pp {layout.pp} leaves stages without a layer: the model has {decoder.layers}")
    sizes = tensor_parallel_sizes(decoder)
    if layout.tp not in sizes:
        raise UnsupportedError(
            f"tp {layout.tp} cannot share {decoder.heads} query heads, {decoder.kv_heads} key heads and "
            f"{decoder.intermediate} feed-forward values evenly; this model takes tp {', '.join(map(str, sizes))}"
        )


def tensor_parallel_sizes(decoder: Decoder) -> tuple[int, ...]:
    """Every tp that gives each rank whole query heads, and whole key heads or one replicated key head."""
    return tuple(
        tp
        for tp in range(1, decoder.heads + 1)
        if decoder.heads % tp == 0
        and decoder.intermediate % tp == 0
        and (decoder.kv_heads % tp == 0 or tp % decoder.kv_heads == 0)
    )


def kv_head_share(kv_heads: int, tp: int, shard: int) -> range:
    """The key heads of a shard: its part of them, or, where there are fewer heads than shards, the one that it shares."""
    if kv_heads >= tp:
        each = kv_heads // tp
        return range(shard * each, (shard + 1) * each)
    return range(shard * kv_heads // tp, shard * kv_heads // tp + 1)


def padded_vocabulary(vocabulary: int, tp: int) -> int:
    return -(-vocabulary // tp) * tp
