"""A TensorRT-LLM checkpoint's forward pass out of its rank files and config.json alone.

Each rank sees its own file. What it computes follows the layers that TensorRT-LLM's public sources describe: a fused
query-key-value product, attention over its own heads, a row-parallel product summed over the shards before its bias, a
gated feed-forward whose activated projection is called fc, and a head split over the vocabulary.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from build_scripts.reference.arithmetic import Array, activate, attend, log_softmax, rms_norm, rotate, soft_cap
from build_scripts.reference.lockstep import AllGather, AllReduce, Coordinates, RankProgram, Receive, Send, run
from build_scripts.reference.rank_weights import RankWeights
from build_scripts.rope import Rope, RopeScaling, longrope_attention_factor, yarn_attention_factor

Windows = Sequence[int | None]


def log_probabilities(
    directory: Path, tokens: Sequence[int], dtype: DTypeLike = np.float64, windows: Windows | None = None
) -> Array:
    """[tokens, vocabulary]. ``windows`` is what the executor would be told: checkpoints of most families carry none."""
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    mapping = config["mapping"]
    places = [(stage, shard) for stage in range(mapping["pp_size"]) for shard in range(mapping["tp_size"])]
    programs = {place: _Rank(config, directory, place, dtype, windows).forward(tokens) for place in places}
    last = run(programs)[mapping["pp_size"] - 1, 0]
    return log_softmax(last[:, : config["vocab_size"]])


class _Rank:
    def __init__(
        self, config: dict[str, Any], directory: Path, place: Coordinates, dtype: DTypeLike, windows: Windows | None
    ) -> None:
        self._config = config
        self._stage, self._shard = stage, shard = place
        self._tp, self._pp = config["mapping"]["tp_size"], config["mapping"]["pp_size"]
        rank = stage * self._tp + shard
        self._weights = RankWeights(directory / f"rank{rank}.safetensors", config["quantization"], dtype)
        self._size = config["head_size"]
        self._heads = config["num_attention_heads"] // self._tp
        self._kv_heads = -(-config["num_key_value_heads"] // self._tp)
        # A rank file counts its layers from the start of its stage; windows and local rotation need the model's count.
        self._layers = [int(layer) for layer in np.array_split(np.arange(config["num_hidden_layers"]), self._pp)[stage]]
        self._weights.require_layers(len(self._layers))
        self._windows = windows
        self._gemma = config["architecture"].startswith("Gemma")
        self._fused = config["hidden_act"] == "swiglu"

    def forward(self, tokens: Sequence[int]) -> RankProgram:
        hidden = (yield from self._embed(tokens)) if self._stage == 0 else (yield Receive())
        for local, layer in enumerate(self._layers):
            hidden = yield from self._layer(hidden, f"transformer.layers.{local}", layer)
        if self._stage < self._pp - 1:
            return (yield Send(hidden))
        head = "transformer.vocab_embedding" if self._config["share_embedding_table"] else "lm_head"
        logits = self._weights.linear(self._norm(hidden, "transformer.ln_f"), head)
        return soft_cap((yield AllGather("logits", logits)), self._config.get("final_logit_softcapping"))

    def _embed(self, tokens: Sequence[int]) -> RankProgram:
        table, chosen = self._weights.tensor("transformer.vocab_embedding.weight"), np.asarray(tokens)
        if self._config["use_parallel_embedding"]:
            local = chosen - self._shard * len(table)
            mine = (local >= 0) & (local < len(table))
            part = table[np.where(mine, local, 0)] * mine[:, None]
            hidden = yield AllReduce("embedding", part)
        else:
            hidden = table[chosen]
        return hidden * np.asarray(math.sqrt(self._config["hidden_size"]), hidden.dtype) if self._gemma else hidden

    def _layer(self, hidden: Array, name: str, layer: int) -> RankProgram:
        attended = yield from self._attention(self._norm(hidden, f"{name}.input_layernorm"), name, layer)
        if not self._config.get("inter_layernorms"):
            hidden = hidden + attended
            return hidden + (yield from self._feed_forward(self._norm(hidden, f"{name}.post_layernorm"), name))
        hidden = hidden + self._norm(attended, f"{name}.post_layernorm")
        fed = yield from self._feed_forward(self._norm(hidden, f"{name}.pre_feedforward_layernorm"), name)
        return hidden + self._norm(fed, f"{name}.post_feedforward_layernorm")

    def _attention(self, hidden: Array, name: str, layer: int) -> RankProgram:
        config, local = self._config, self._is_local(layer)
        qkv = self._weights.linear(hidden, f"{name}.attention.qkv").reshape(len(hidden), -1, self._size)
        query, key, value = np.split(qkv, [self._heads, self._heads + self._kv_heads], axis=1)
        if self._weights.has(f"{name}.attention.q_layernorm.weight"):
            query = self._norm(query, f"{name}.attention.q_layernorm")
            key = self._norm(key, f"{name}.attention.k_layernorm")
        rope = rope_of(config, local=local)
        turns = rope.frequencies(len(hidden))
        scale = 1 / math.sqrt(config.get("query_pre_attn_scalar") or self._size)
        mixed = attend(
            rotate(query, turns, rope.stretch),
            rotate(key, turns, rope.stretch),
            value,
            scale=scale,
            cap=config.get("attn_logit_softcapping"),
            window=self._window(layer, local=local),
        )
        return (yield from self._row_parallel(mixed.reshape(len(hidden), -1), f"{name}.attention.dense"))

    def _feed_forward(self, hidden: Array, name: str) -> RankProgram:
        if self._fused:
            plain, activated = np.split(self._weights.linear(hidden, f"{name}.mlp.fc"), 2, axis=-1)
            inner = plain * activate(activated, "silu")
        else:
            kind = "silu" if self._config["hidden_act"] == "silu" else "gelu_tanh"
            activated = activate(self._weights.linear(hidden, f"{name}.mlp.fc"), kind)
            inner = activated * self._weights.linear(hidden, f"{name}.mlp.gate")
        return (yield from self._row_parallel(inner, f"{name}.mlp.proj"))

    def _row_parallel(self, values: Array, name: str) -> RankProgram:
        """Each shard's columns make a partial sum; the bias is added once, to the whole."""
        whole = yield AllReduce(name, self._weights.product(values, name))
        return self._weights.add_bias(whole, name)

    def _norm(self, values: Array, name: str) -> Array:
        return rms_norm(values, self._weights.tensor(f"{name}.weight"), self._config["norm_epsilon"])

    def _is_local(self, layer: int) -> bool:
        period = self._config.get("_sliding_window_pattern")
        return period is not None and (layer + 1) % period != 0

    def _window(self, layer: int, *, local: bool) -> int | None:
        if local:
            return int(self._config["sliding_window"])
        return self._windows[layer] if self._windows else None


def rope_of(config: dict[str, Any], *, local: bool) -> Rope:
    """The rotation that config.json tells."""
    dims = int(config["head_size"] * config.get("rotary_pct", 1.0))
    if local:
        return Rope(config["rope_local_base_freq"], dims)
    return Rope(config["rotary_base"], dims, _scaling(config))


def _scaling(config: dict[str, Any]) -> RopeScaling:
    if config["position_embedding_type"] == "long_rope":
        original = config["original_max_position_embeddings"]
        return RopeScaling(
            "longrope",
            original_context=original,
            short_factors=tuple(config["longrope_scaling_short_factors"]),
            long_factors=tuple(config["longrope_scaling_long_factors"]),
            attention_factor=longrope_attention_factor(config["max_position_embeddings"] / original, original),
        )
    told = config["rotary_scaling"]
    if told is None:
        return RopeScaling()
    if told["type"] == "linear":
        return RopeScaling("linear", factor=told["factor"])
    if told["type"] == "llama3":
        return RopeScaling(
            "llama3",
            factor=told["factor"],
            original_context=told["original_max_position_embeddings"],
            low_freq_factor=told["low_freq_factor"],
            high_freq_factor=told["high_freq_factor"],
        )
    stretch = yarn_attention_factor(told["factor"]) if told["mscale"] == 1 else _stretch(told)
    return RopeScaling(
        "yarn",
        factor=told["factor"],
        original_context=told["original_max_position_embeddings"],
        beta_fast=told["beta_fast"],
        beta_slow=told["beta_slow"],
        attention_factor=stretch,
    )


def _stretch(told: dict[str, Any]) -> float:
    return 0.1 * float(told["mscale"]) * math.log(told["factor"]) + 1.0
