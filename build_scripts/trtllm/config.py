"""config.json of a checkpoint, and which models TensorRT-LLM's architectures can express.

Each refusal names the feature: a config that says less than the model needs would build an engine that runs and is wrong.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from build_scripts.casting import FloatType
from build_scripts.decoder import Decoder
from build_scripts.errors import UnsupportedError
from build_scripts.rope import longrope_attention_factor
from build_scripts.trtllm.layout import Layout
from build_scripts.trtllm.targets import Form

_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
}


@dataclass(frozen=True)
class Quantisation:
    """What config.json's ``quantization`` says; None throughout is a checkpoint of plain floats."""

    quant_algo: str | None = None
    kv_cache_quant_algo: str | None = None
    group_size: int | None = None
    has_zero_point: bool = False
    pre_quant_scale: bool = False
    exclude_modules: tuple[str, ...] | None = None

    def as_json(self) -> dict[str, Any]:
        stated = {
            "quant_algo": self.quant_algo,
            "kv_cache_quant_algo": self.kv_cache_quant_algo,
            "has_zero_point": self.has_zero_point,
            "pre_quant_scale": self.pre_quant_scale,
            "exclude_modules": None if self.exclude_modules is None else list(self.exclude_modules),
        }
        return stated if self.group_size is None else stated | {"group_size": self.group_size}


def architecture(decoder: Decoder) -> str:
    """Phi-3 is a Llama once its fused matrices are cut, and Llama's form splits over pipelines; only a rotation that Llama's
    form cannot express keeps it Phi3ForCausalLM."""
    if decoder.family == "phi3":
        plain = decoder.rope.scaling.kind != "longrope" and decoder.rope.dims == decoder.head_dim
        return "LlamaForCausalLM" if plain else "Phi3ForCausalLM"
    return _ARCHITECTURES[decoder.family]


def form_of(decoder: Decoder, layout: Layout, *, share_embedding: bool = False) -> Form:
    """The tensors' form. Raises UnsupportedError for a sharing that TensorRT-LLM does not have."""
    gemma = decoder.family.startswith("gemma")
    if share_embedding and not decoder.tied_embeddings:
        raise UnsupportedError("the embedding can be shared only where the model ties its head to it")
    if share_embedding and layout.pp > 1:
        raise UnsupportedError(
            f"the embedding can be shared only with pp 1: first and last stage differ (pp {layout.pp})"
        )
    shared = share_embedding or (gemma and layout.pp == 1)
    return Form(
        fused_feed_forward=architecture(decoder) == "Phi3ForCausalLM",
        sandwich_norms=decoder.post_norms,
        parallel_embedding=layout.tp > 1 and (gemma or shared),
        shared_embedding=shared,
    )


def check_expressible(decoder: Decoder, layout: Layout) -> None:
    """Raises UnsupportedError naming what TensorRT-LLM's architecture for this family does not have."""
    name, scaling = architecture(decoder), decoder.rope.scaling
    gemma = decoder.family.startswith("gemma")
    if name == "Phi3ForCausalLM" and layout.pp > 1:
        raise UnsupportedError(f"{name} has no pipeline hand-over in TensorRT-LLM; use pp 1 (given {layout.pp})")
    if decoder.family == "qwen3" and decoder.qkv_bias:
        raise UnsupportedError(f"{name} of TensorRT-LLM has no attention biases")
    if gemma and scaling.kind != "none":
        raise UnsupportedError(f'{name} of TensorRT-LLM would apply rope scaling "{scaling.kind}" to local layers too')
    if gemma and decoder.vocab_size % layout.tp:
        raise UnsupportedError(
            f"{name} splits its embedding: {decoder.vocab_size} tokens do not divide by tp {layout.tp}"
        )
    if decoder.family == "gemma3_text" and sliding_window_pattern(decoder) is None:
        raise UnsupportedError(f"{name} of TensorRT-LLM has windows in all but every n-th layer; this model's differ")
    if scaling.kind == "factors":
        raise UnsupportedError(
            "TensorRT-LLM takes no list of rotary factors; build from the Hugging Face checkpoint instead"
        )
    if scaling.kind == "yarn" and not scaling.truncate:
        raise UnsupportedError("yarn without truncation is not implemented in TensorRT-LLM")
    if scaling.kind == "longrope":
        told = longrope_attention_factor(decoder.max_context / scaling.original_context, scaling.original_context)
        if not math.isclose(told, scaling.attention_factor):
            raise UnsupportedError(
                f"longrope's attention_factor {scaling.attention_factor} differs from the rule's {told}"
            )


def sliding_window_pattern(decoder: Decoder) -> int | None:
    """The n of "a window in all but every n-th layer"; None where the layers follow no such rule."""
    for period in range(1, decoder.layers + 2):
        if all((decoder.window(layer) is None) == ((layer + 1) % period == 0) for layer in range(decoder.layers)):
            return period
    return None


def config_json(
    decoder: Decoder, layout: Layout, form: Form, dtype: FloatType, quantisation: Quantisation
) -> dict[str, Any]:
    gated = form.fused_feed_forward and decoder.activation == "silu"
    config: dict[str, Any] = {
        "architecture": architecture(decoder),
        "dtype": dtype,
        "logits_dtype": "float32",
        "vocab_size": decoder.vocab_size,
        "max_position_embeddings": served_context(decoder),
        "hidden_size": decoder.hidden,
        "num_hidden_layers": decoder.layers,
        "num_attention_heads": decoder.heads,
        "num_key_value_heads": decoder.kv_heads,
        "head_size": decoder.head_dim,
        "hidden_act": "swiglu" if gated else {"silu": "silu", "gelu_tanh": "gelu_pytorch_tanh"}[decoder.activation],
        "intermediate_size": decoder.intermediate,
        "norm_epsilon": decoder.norm_epsilon,
        "tie_word_embeddings": decoder.tied_embeddings,
        "use_parallel_embedding": form.parallel_embedding,
        "embedding_sharding_dim": 0,
        "share_embedding_table": form.shared_embedding,
        "attn_bias": decoder.qkv_bias,
        "mlp_bias": decoder.feed_forward_bias,
        "mapping": {"world_size": layout.world_size, "tp_size": layout.tp, "pp_size": layout.pp},
        "quantization": quantisation.as_json(),
    }
    return config | _rotation(decoder) | _family(decoder)


def served_context(decoder: Decoder) -> int:
    """Dynamic scaling changes nothing within the context it was trained for, and is served that far and no further."""
    return decoder.static_context if decoder.rope.scaling.kind == "dynamic" else decoder.max_context


def _rotation(decoder: Decoder) -> dict[str, Any]:
    rope, scaling = decoder.rope, decoder.rope.scaling
    base: dict[str, Any] = {
        "position_embedding_type": "rope_gpt_neox",
        "rotary_base": rope.theta,
        "rotary_scaling": None,
    }
    if rope.dims != decoder.head_dim or scaling.kind == "longrope":
        base["rotary_pct"] = rope.dims / decoder.head_dim
    if scaling.kind == "linear":
        return base | {"rotary_scaling": {"type": "linear", "factor": scaling.factor}}
    if scaling.kind == "llama3":
        return base | {
            "rotary_scaling": {
                "rope_type": "llama3",
                "type": "llama3",
                "factor": scaling.factor,
                "low_freq_factor": scaling.low_freq_factor,
                "high_freq_factor": scaling.high_freq_factor,
                "original_max_position_embeddings": scaling.original_context,
            }
        }
    if scaling.kind == "yarn":
        return base | {"rotary_scaling": _yarn(decoder)}
    if scaling.kind == "longrope":
        return base | {
            "position_embedding_type": "long_rope",
            "original_max_position_embeddings": scaling.original_context,
            "longrope_scaling_short_factors": list(scaling.short_factors),
            "longrope_scaling_long_factors": list(scaling.long_factors),
        }
    return base


def _yarn(decoder: Decoder) -> dict[str, Any]:
    """The stretch is told as the mscale that gives it: 0.1 * mscale * ln(factor) + 1."""
    scaling = decoder.rope.scaling
    slope = 0.1 * math.log(scaling.factor) if scaling.factor > 1 else 0.0
    if not slope and scaling.attention_factor != 1:
        raise UnsupportedError(
            f"yarn's attention_factor {scaling.attention_factor} cannot be told with factor {scaling.factor}"
        )
    return {
        "type": "yarn",
        "factor": scaling.factor,
        "original_max_position_embeddings": scaling.original_context,
        "beta_fast": scaling.beta_fast,
        "beta_slow": scaling.beta_slow,
        "mscale": (scaling.attention_factor - 1) / slope if slope else 1.0,
        "mscale_all_dim": 0.0,
    }


def _family(decoder: Decoder) -> dict[str, Any]:
    if decoder.family in ("qwen2", "qwen3"):
        return {"qwen_type": decoder.family}
    if not decoder.family.startswith("gemma"):
        return {}
    gemma: dict[str, Any] = {
        "inter_layernorms": True,
        "query_pre_attn_scalar": decoder.attention_scale**-2,
        "final_logit_softcapping": decoder.logit_cap,
    }
    if decoder.family == "gemma2":
        return gemma | {"attn_logit_softcapping": decoder.attention_cap}
    window = next((size for size in decoder.windows if size is not None), None)
    return gemma | {
        "_sliding_window_pattern": sliding_window_pattern(decoder),
        "sliding_window": window,
        "rope_local_base_freq": (decoder.local_rope or decoder.rope).theta,
    }


def attention_windows(decoder: Decoder) -> list[int]:
    """``max_attention_window`` for the executor, one for each layer: the checkpoint itself does not carry windows."""
    return [decoder.window(layer) or served_context(decoder) for layer in range(decoder.layers)]
