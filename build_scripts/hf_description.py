"""The decoder in a Hugging Face config.json.

One function for each family fills in what its config means; everything that no function reads is refused by name.
Sources: the families' papers and model cards, and the configuration classes of transformers for the defaults that a
config.json leaves out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from build_scripts.config_reader import ConfigReader
from build_scripts.decoder import Decoder, check_arithmetic
from build_scripts.errors import CheckpointError, UnsupportedError
from build_scripts.hf_rope import read_ropes

_SILENT = frozenset(
    {
        "_attn_implementation_autoset",
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "auto_map",
        "bos_token_id",
        "cache_implementation",
        "dtype",
        "embd_pdrop",
        "eos_token_id",
        "id2label",
        "initializer_range",
        "is_llama_config",
        "label2id",
        "model_type",
        "pad_token_id",
        "pretraining_tp",
        "quantization_config",
        "resid_pdrop",
        "torch_dtype",
        "transformers.js_config",
        "transformers_version",
        "unk_token_id",
        "unsloth_fixed",
        "unsloth_version",
        "use_cache",
    }
)
"""Keys that do not change what the model computes. quantization_config is read, and judged, where the weights are."""

_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


def describe_config(values: Mapping[str, Any]) -> Decoder:
    """Raises UnsupportedError naming the feature that is not implemented, CheckpointError for a config that makes no sense."""
    kind = values.get("model_type")
    if kind not in FAMILIES:
        raise UnsupportedError(
            f'model_type "{kind}" is not implemented; there are {", ".join(FAMILIES)} (the embedded engine has others with --export)'
        )
    config = ConfigReader(values, "config.json")
    config.ignore(_SILENT)
    decoder = FAMILIES[kind](config)
    config.refuse_unread()
    check_arithmetic(decoder)
    return decoder


def _base(
    config: ConfigReader, family: str, *, tied: bool = False, theta: float = 10000.0, head_dim: int | None = None
) -> Decoder:
    """What all families share; ``tied``, ``theta`` and ``head_dim`` are the family's defaults."""
    heads, hidden = config.whole("num_attention_heads"), config.whole("hidden_size")
    if heads < 1:
        raise CheckpointError(f"config.json: num_attention_heads must be at least 1, it is {heads}")
    size = config.optional_whole("head_dim") or head_dim or hidden // heads
    rope, local = read_ropes(config, size, theta=theta)
    return Decoder(
        family=family,
        layers=config.whole("num_hidden_layers"),
        hidden=hidden,
        intermediate=config.whole("intermediate_size"),
        heads=heads,
        kv_heads=config.whole("num_key_value_heads", heads),
        head_dim=size,
        vocab_size=config.whole("vocab_size"),
        max_context=config.whole("max_position_embeddings"),
        norm_epsilon=config.number("rms_norm_eps", 1e-6),
        tied_embeddings=config.flag("tie_word_embeddings", tied),
        rope=rope,
        local_rope=local,
        attention_scale=size**-0.5,
    )


def _activation(config: ConfigReader, *keys: str, default: str) -> Any:  # noqa: ANN401 - one of two literals
    for key in keys:
        if config.has(key):
            name = config.text(key)
            if name not in _ACTIVATIONS:
                raise UnsupportedError(f'{key} "{name}" is not implemented; there are {", ".join(_ACTIVATIONS)}')
            return _ACTIVATIONS[name]
    return default


def _llama(config: ConfigReader) -> Decoder:
    bias = config.flag("attention_bias", False)
    return dataclasses.replace(
        _base(config, "llama"),
        activation=_activation(config, "hidden_act", default="silu"),
        qkv_bias=bias,
        output_bias=bias,
        feed_forward_bias=config.flag("mlp_bias", False),
    )


def _mistral(config: ConfigReader) -> Decoder:
    decoder = dataclasses.replace(
        _base(config, "mistral"), activation=_activation(config, "hidden_act", default="silu")
    )
    return dataclasses.replace(decoder, windows=(_window(config),) * decoder.layers)


def _qwen2(config: ConfigReader) -> Decoder:
    decoder = dataclasses.replace(
        _base(config, "qwen2"), qkv_bias=True, activation=_activation(config, "hidden_act", default="silu")
    )
    return dataclasses.replace(decoder, windows=_upper_windows(config, decoder.layers))


def _qwen3(config: ConfigReader) -> Decoder:
    bias = config.flag("attention_bias", False)
    decoder = dataclasses.replace(
        _base(config, "qwen3", head_dim=128),
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
        activation=_activation(config, "hidden_act", default="silu"),
    )
    return dataclasses.replace(decoder, windows=_upper_windows(config, decoder.layers))


def _phi3(config: ConfigReader) -> Decoder:
    config.ignore(frozenset({"original_max_position_embeddings"}))
    decoder = dataclasses.replace(_base(config, "phi3"), activation=_activation(config, "hidden_act", default="silu"))
    if config.flag("attention_bias", False):
        config.refuse("attention_bias", "Phi-3's published models have none")
    return dataclasses.replace(decoder, windows=(_window(config),) * decoder.layers)


def _gemma(config: ConfigReader, family: str, decoder: Decoder) -> Decoder:
    return dataclasses.replace(
        decoder,
        family=family,
        activation=_activation(config, "hidden_activation", "hidden_act", default="gelu_tanh"),
        post_norms=True,
        norm_shift=1.0,
        embedding_scale=decoder.hidden**0.5,
        attention_scale=config.number("query_pre_attn_scalar", 256.0) ** -0.5,
        attention_cap=config.optional_number("attn_logit_softcapping"),
        logit_cap=config.optional_number("final_logit_softcapping"),
    )


def _gemma2(config: ConfigReader) -> Decoder:
    config.ignore(frozenset({"hidden_act"}))
    _refuse_attention_bias(config)
    decoder = _gemma(config, "gemma2", _base(config, "gemma2", tied=True, head_dim=256))
    window = config.whole("sliding_window", 4096)
    alternating = tuple(window if layer % 2 == 0 else None for layer in range(decoder.layers))
    return dataclasses.replace(decoder, windows=_stated_windows(config, window, decoder.layers) or alternating)


def _gemma3(config: ConfigReader) -> Decoder:
    config.ignore(frozenset({"hidden_act"}))
    _refuse_attention_bias(config)
    if config.flag("use_bidirectional_attention", False):
        config.refuse("use_bidirectional_attention", "a decoder sees only what came before")
    decoder = _gemma(config, "gemma3_text", _base(config, "gemma3_text", tied=True, head_dim=256, theta=1000000.0))
    window = config.whole("sliding_window", 4096)
    period = config.whole("sliding_window_pattern", config.whole("_sliding_window_pattern", 6))
    mostly = tuple(window if (layer + 1) % period else None for layer in range(decoder.layers))
    local = decoder.local_rope or dataclasses.replace(decoder.rope, theta=10000.0, scaling=type(decoder.rope.scaling)())
    windows = _stated_windows(config, window, decoder.layers) or mostly
    return dataclasses.replace(decoder, qk_norm=True, local_rope=local, windows=windows)


def _refuse_attention_bias(config: ConfigReader) -> None:
    if config.flag("attention_bias", False):
        config.refuse("attention_bias", "Gemma's published models have none")


def _window(config: ConfigReader) -> int | None:
    window = config.optional_whole("sliding_window")
    if window is not None and window < 1:
        raise CheckpointError(f"config.json: sliding_window must be at least 1, it is {window}")
    return window


def _upper_windows(config: ConfigReader, layers: int) -> tuple[int | None, ...]:
    """Qwen: windows only when asked for, and only from layer max_window_layers on."""
    asked = config.flag("use_sliding_window", False)
    window, first = _window(config), config.whole("max_window_layers", 28)
    stated = _stated_windows(config, window if asked else None, layers)
    if not asked or window is None:
        return (None,) * layers
    return stated or tuple(window if layer >= first else None for layer in range(layers))


def _stated_windows(config: ConfigReader, window: int | None, layers: int) -> tuple[int | None, ...] | None:
    kinds = config.texts("layer_types")
    if kinds is None:
        return None
    if len(kinds) != layers:
        raise CheckpointError(f"config.json: layer_types names {len(kinds)} layers of {layers}")
    for kind in kinds:
        if kind not in ("full_attention", "sliding_attention"):
            raise UnsupportedError(f'config.json: layer_types "{kind}" is not implemented')
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


FAMILIES: dict[str, Callable[[ConfigReader], Decoder]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "phi3": _phi3,
}
"""By model_type. SmolLM2 is a Llama by its config."""
