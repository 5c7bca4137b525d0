"""Tiny random models, one for every family and option that the builder claims to read.

A model is a public-style ``config.json`` and a seed. Its weights follow one rule, :func:`tensor`, made of NumPy's Philox
counter bits, which every NumPy version gives alike; so the weights need not be stored, and the script that asked Hugging
Face transformers for log-probabilities and the tests that check against them make the same bytes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

LENGTH = 48
"""Tokens of a golden sequence."""
POSITIONS = (0, 1, 5, 11, 17, 23, 31, 39, 43, 47)
"""Where log-probabilities over the whole vocabulary were kept."""


@dataclass(frozen=True)
class TinyModel:
    name: str
    config: dict[str, Any]
    """As a public config.json spells it."""
    length: int = LENGTH
    positions: tuple[int, ...] = POSITIONS

    @property
    def zero_centred_norms(self) -> bool:
        """Gemma stores a norm's weight as its distance from one."""
        return str(self.config["model_type"]).startswith("gemma")


_SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 131,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}


def _llama(name: str, **changes: Any) -> TinyModel:  # noqa: ANN401 - values of a JSON file
    return TinyModel(name, _SHAPE | {"model_type": "llama", "architectures": ["LlamaForCausalLM"]} | changes)


def _other(name: str, kind: str, architecture: str, **changes: Any) -> TinyModel:  # noqa: ANN401
    return TinyModel(name, _SHAPE | {"model_type": kind, "architectures": [architecture]} | changes)


def _gemma2(name: str, **changes: Any) -> TinyModel:  # noqa: ANN401
    gemma = {
        "hidden_act": "gelu_pytorch_tanh",
        "hidden_activation": "gelu_pytorch_tanh",
        "head_dim": 16,
        "num_hidden_layers": 4,
        "query_pre_attn_scalar": 24,
        "sliding_window": 8,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 4.0,
        "tie_word_embeddings": True,
        "vocab_size": 136,
    }
    return _other(name, "gemma2", "Gemma2ForCausalLM", **(gemma | changes))


def _gemma3(name: str, **changes: Any) -> TinyModel:  # noqa: ANN401
    gemma = {
        "hidden_activation": "gelu_pytorch_tanh",
        "head_dim": 16,
        "num_hidden_layers": 4,
        "query_pre_attn_scalar": 20,
        "sliding_window": 8,
        "sliding_window_pattern": 3,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "tie_word_embeddings": True,
        "vocab_size": 136,
    }
    shape = {key: value for key, value in _SHAPE.items() if key != "hidden_act"}
    body = shape | {"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]}
    return TinyModel(name, body | gemma | changes)


def _phi3(name: str, **changes: Any) -> TinyModel:  # noqa: ANN401
    phi = {"sliding_window": 20, "original_max_position_embeddings": 64, "pad_token_id": 0}
    return _other(name, "phi3", "Phi3ForCausalLM", **(phi | changes))


def _long_rope(original: int) -> dict[str, Any]:
    """Phi-3's per-frequency factors: eight frequencies of a head of sixteen."""
    return {
        "original_max_position_embeddings": original,
        "max_position_embeddings": 96,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rope_scaling": {
            "type": "longrope",
            "short_factor": [1.0, 1.05, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6],
            "long_factor": [1.0, 1.4, 1.9, 2.6, 3.5, 4.5, 5.5, 6.0],
        },
    }


_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}

TINY_MODELS: tuple[TinyModel, ...] = (
    _llama("llama2", num_key_value_heads=8),
    _llama("llama-tied-wide-heads", tie_word_embeddings=True, head_dim=16, vocab_size=129),
    _llama("llama-biases-mqa", num_key_value_heads=1, attention_bias=True, mlp_bias=True, head_dim=24),
    _llama("llama3-scaled", rope_theta=500000.0, rope_scaling=_LLAMA3),
    _llama("llama-linear", rope_scaling={"type": "linear", "factor": 4.0}),
    _llama("llama-dynamic", rope_scaling={"type": "dynamic", "factor": 2.0}),
    _llama("llama-dynamic-beyond", rope_scaling={"type": "dynamic", "factor": 4.0}, max_position_embeddings=32),
    _llama("llama-yarn", rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}),
    _llama(
        "llama-rope-parameters",
        rope_theta=None,
        rope_parameters={"rope_type": "yarn", "rope_theta": 5000.0, "factor": 3.0, "original_max_position_embeddings": 20,
                         "beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 1.2},
    ),
    _llama(
        "smollm2", hidden_size=72, num_attention_heads=9, num_key_value_heads=3, rope_theta=100000.0,
        tie_word_embeddings=True, vocab_size=128,
    ),
    _other("mistral", "mistral", "MistralForCausalLM", sliding_window=None, head_dim=16),
    _other("mistral-window", "mistral", "MistralForCausalLM", sliding_window=12, num_key_value_heads=2),
    _other("qwen2", "qwen2", "Qwen2ForCausalLM", tie_word_embeddings=True, use_sliding_window=False, sliding_window=16,
           max_window_layers=2, num_key_value_heads=2),
    _other("qwen2-window", "qwen2", "Qwen2ForCausalLM", use_sliding_window=True, sliding_window=10, max_window_layers=2,
           num_hidden_layers=4),
    _other("qwen2-yarn", "qwen2", "Qwen2ForCausalLM", rope_theta=1000000.0, use_sliding_window=False,
           rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}),
    _other("qwen3", "qwen3", "Qwen3ForCausalLM", head_dim=16, use_sliding_window=False, rope_theta=1000000.0),
    _other("qwen3-tied-mqa", "qwen3", "Qwen3ForCausalLM", head_dim=32, num_key_value_heads=1, tie_word_embeddings=True),
    _gemma2("gemma2"),
    _gemma2("gemma2-uncapped", attn_logit_softcapping=None, num_key_value_heads=2),
    _gemma3("gemma3"),
    _gemma3("gemma3-scaled", rope_scaling={"rope_type": "linear", "factor": 8.0}, num_key_value_heads=1),
    _phi3("phi3"),
    _phi3("phi3-mha", num_key_value_heads=8, sliding_window=None),
    _phi3("phi3-longrope-short", **_long_rope(64)),
    _phi3("phi3-longrope-long", **_long_rope(32)),
    _phi3(
        "phi4-mini", tie_word_embeddings=True, partial_rotary_factor=0.75, head_dim=16,
        rope_scaling={"type": "longrope", "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
                      "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 5.0]},
        max_position_embeddings=128, num_attention_heads=4, num_key_value_heads=2,
    ),
)  # fmt: skip


def tokens(model: TinyModel) -> list[int]:
    """The golden sequence of a model."""
    vocabulary = int(model.config["vocab_size"])
    return [int(value) for value in _bits(model.name, "tokens", model.length) % np.uint64(vocabulary)]


def tensor(model: TinyModel, name: str, shape: tuple[int, ...]) -> Floats:
    """The weights of one tensor, named and shaped as transformers stores it.

    Uniform with a spread that makes every part count: sharp attention, uneven norms, biases that matter.
    """
    count = int(np.prod(shape))
    unit = ((_bits(model.name, name, count) >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0) * np.sqrt(3.0)
    values = unit.reshape(shape)
    if len(shape) == 1:
        centre = 1.0 if "norm" in name and not model.zero_centred_norms else 0.0
        spread = 0.3 if "norm" in name else 0.5
        return np.asarray(centre + spread * values, dtype=np.float32)
    if "embed_tokens" in name:
        # Tied embeddings are the head as well: kept small, so that the logits stay where float32 is precise.
        spread = 0.3 if model.config["tie_word_embeddings"] else 1.0
        return np.asarray(spread * values, dtype=np.float32)
    gain = 2.0 if any(part in name for part in ("q_proj", "k_proj", "lm_head")) else 1.2
    return np.asarray(gain * values / np.sqrt(shape[1]), dtype=np.float32)


def _bits(model: str, name: str, count: int) -> NDArray[np.uint64]:
    digest = hashlib.sha256(f"{model}/{name}".encode()).digest()
    return np.asarray(np.random.Philox(key=np.frombuffer(digest[:16], dtype="<u8")).random_raw(count), dtype=np.uint64)
