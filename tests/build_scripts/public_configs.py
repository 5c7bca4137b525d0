"""What public models' config.json say that matters here: names and features, written down from their published values.

``SUPPORTED`` maps a model to its config; ``REFUSED`` to its config and the words that the refusal must contain.
"""

from __future__ import annotations

from typing import Any

Config = dict[str, Any]


def _llama(hidden: int, wide: int, layers: int, heads: int, kv: int, vocab: int, context: int, **more: Any) -> Config:  # noqa: PLR0917 - a row of a table
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": wide,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "vocab_size": vocab,
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-5,
        "initializer_range": 0.02,
        "pretraining_tp": 1,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.40.0",
        "use_cache": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "attention_dropout": 0.0,
    } | more


def _as(kind: str, architecture: str, base: Config, **more: Any) -> Config:
    return base | {"model_type": kind, "architectures": [architecture]} | more


LLAMA31 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
_QWEN2 = {"max_window_layers": 28, "rope_theta": 1000000.0, "sliding_window": 131072, "use_sliding_window": False}
_PHI3 = {"embd_pdrop": 0.0, "resid_pdrop": 0.0, "attention_bias": False, "original_max_position_embeddings": 4096,
         "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"}, "pad_token_id": 32000}  # fmt: skip
_GEMMA2 = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "query_pre_attn_scalar": 256,
           "sliding_window": 4096, "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh",
           "head_dim": 256, "cache_implementation": "hybrid", "attention_bias": False, "rope_theta": 10000.0}  # fmt: skip

SUPPORTED: dict[str, Config] = {
    "meta-llama/Llama-2-7b-hf": _llama(4096, 11008, 32, 32, 32, 32000, 4096, rope_scaling=None),
    "meta-llama/Llama-2-70b-hf": _llama(8192, 28672, 80, 64, 8, 32000, 4096),
    "meta-llama/Meta-Llama-3-8B": _llama(4096, 14336, 32, 32, 8, 128256, 8192, rope_theta=500000.0),
    "meta-llama/Llama-3.1-8B-Instruct": _llama(
        4096, 14336, 32, 32, 8, 128256, 131072, rope_theta=500000.0, rope_scaling=LLAMA31, attention_bias=False,
        mlp_bias=False, eos_token_id=[128001, 128008, 128009],
    ),
    "meta-llama/Llama-3.2-1B": _llama(
        2048, 8192, 16, 32, 8, 128256, 131072, rope_theta=500000.0, rope_scaling=LLAMA31 | {"factor": 32.0},
        tie_word_embeddings=True, head_dim=64,
    ),
    "HuggingFaceTB/SmolLM2-135M-Instruct": _llama(
        576, 1536, 30, 9, 3, 49152, 8192, rope_theta=100000, tie_word_embeddings=True, rope_interleaved=False,
        is_llama_config=True, **{"transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}},
    ),
    "HuggingFaceTB/SmolLM2-1.7B": _llama(2048, 8192, 24, 32, 32, 49152, 8192, rope_theta=130000, tie_word_embeddings=True),
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": _llama(2048, 5632, 22, 32, 4, 32000, 2048),
    "01-ai/Yi-6B": _llama(4096, 11008, 32, 32, 4, 64000, 4096, rope_theta=5000000.0),
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": _llama(
        4096, 14336, 32, 32, 8, 128256, 131072, rope_theta=500000.0, rope_scaling=LLAMA31
    ),
    "NousResearch/Yarn-Llama-2-7b-64k (in transformers' spelling)": _llama(
        4096, 11008, 32, 32, 32, 32000, 65536,
        rope_scaling={"type": "yarn", "factor": 16.0, "original_max_position_embeddings": 4096},
    ),
    "mistralai/Mistral-7B-v0.1": _as("mistral", "MistralForCausalLM", _llama(4096, 14336, 32, 32, 8, 32000, 32768), sliding_window=4096),
    "mistralai/Mistral-7B-Instruct-v0.3": _as(
        "mistral", "MistralForCausalLM", _llama(4096, 14336, 32, 32, 8, 32768, 32768), sliding_window=None, rope_theta=1e6
    ),
    "mistralai/Mistral-Nemo-Instruct-2407": _as(
        "mistral", "MistralForCausalLM", _llama(5120, 14336, 40, 32, 8, 131072, 1024000), head_dim=128, sliding_window=None
    ),
    "Qwen/Qwen2-0.5B": _as("qwen2", "Qwen2ForCausalLM", _llama(896, 4864, 24, 14, 2, 151936, 131072), tie_word_embeddings=True, **_QWEN2),
    "Qwen/Qwen2.5-7B-Instruct": _as("qwen2", "Qwen2ForCausalLM", _llama(3584, 18944, 28, 28, 4, 152064, 32768), **_QWEN2),
    "Qwen/Qwen2.5-7B-Instruct with its card's YaRN": _as(
        "qwen2", "Qwen2ForCausalLM", _llama(3584, 18944, 28, 28, 4, 152064, 32768),
        rope_scaling={"factor": 4.0, "original_max_position_embeddings": 32768, "type": "yarn"}, **_QWEN2,
    ),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": _as(
        "qwen2", "Qwen2ForCausalLM", _llama(1536, 8960, 28, 12, 2, 151936, 131072), use_mrope=False, **_QWEN2
    ),
    "Qwen/Qwen3-0.6B": _as(
        "qwen3", "Qwen3ForCausalLM", _llama(1024, 3072, 28, 16, 8, 151936, 40960), head_dim=128, attention_bias=False,
        tie_word_embeddings=True, use_sliding_window=False, max_window_layers=28, sliding_window=None, rope_theta=1000000,
    ),
    "google/gemma-2-2b": _as("gemma2", "Gemma2ForCausalLM", _llama(2304, 9216, 26, 8, 4, 256000, 8192), **_GEMMA2),
    "google/gemma-3-1b-it": _as(
        "gemma3_text", "Gemma3ForCausalLM", _llama(1152, 6912, 26, 4, 1, 262144, 32768), hidden_activation="gelu_pytorch_tanh",
        head_dim=256, query_pre_attn_scalar=256, rope_local_base_freq=10000, rope_theta=1000000, rope_scaling=None,
        sliding_window=512, sliding_window_pattern=6, attn_logit_softcapping=None, final_logit_softcapping=None,
        cache_implementation="hybrid", hidden_act=None,
    ),
    "microsoft/Phi-3-mini-4k-instruct": _as(
        "phi3", "Phi3ForCausalLM", _llama(3072, 8192, 32, 32, 32, 32064, 4096), sliding_window=2047, rope_scaling=None, **_PHI3
    ),
    "microsoft/Phi-3.5-mini-instruct": _as(
        "phi3", "Phi3ForCausalLM", _llama(3072, 8192, 32, 32, 32, 32064, 131072), sliding_window=262144,
        rope_scaling={"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48}, **_PHI3,
    ),
    "microsoft/phi-4": _as(
        "phi3", "Phi3ForCausalLM", _llama(5120, 17920, 40, 40, 10, 100352, 16384), sliding_window=None, rope_theta=250000, **_PHI3
    ),
    "microsoft/Phi-4-mini-instruct": _as(
        "phi3", "Phi3ForCausalLM", _llama(3072, 8192, 32, 24, 8, 200064, 131072), tie_word_embeddings=True,
        partial_rotary_factor=0.75, sliding_window=262144,
        rope_scaling={"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48}, **_PHI3,
    ),
}  # fmt: skip

REFUSED: dict[str, tuple[Config, str]] = {
    "mistralai/Mixtral-8x7B-v0.1": (
        _as("mixtral", "MixtralForCausalLM", _llama(4096, 14336, 32, 32, 8, 32000, 32768), num_local_experts=8), '"mixtral"'
    ),
    "Qwen/Qwen3-30B-A3B": (_as("qwen3_moe", "Qwen3MoeForCausalLM", {}, num_experts=128), '"qwen3_moe"'),
    "deepseek-ai/DeepSeek-V3": (_as("deepseek_v3", "DeepseekV3ForCausalLM", {}, kv_lora_rank=512), '"deepseek_v3"'),
    "google/gemma-3-4b-it": ({"model_type": "gemma3", "text_config": {}, "vision_config": {}}, '"gemma3"'),
    "Qwen/Qwen2-VL-2B-Instruct": ({"model_type": "qwen2_vl"}, '"qwen2_vl"'),
    "openai-community/gpt2": ({"model_type": "gpt2"}, '"gpt2"'),
    "EleutherAI/pythia-160m": ({"model_type": "gpt_neox"}, '"gpt_neox"'),
    "tiiuae/falcon-7b": ({"model_type": "falcon", "alibi": False}, '"falcon"'),
    "mosaicml/mpt-7b": ({"model_type": "mpt"}, '"mpt"'),
    "state-spaces/mamba-130m-hf": ({"model_type": "mamba"}, '"mamba"'),
    "microsoft/phi-2": ({"model_type": "phi"}, '"phi"'),
    "microsoft/Phi-3-small-8k-instruct": ({"model_type": "phi3small"}, '"phi3small"'),
    "openai/gpt-oss-20b": ({"model_type": "gpt_oss"}, '"gpt_oss"'),
    "CohereForAI/c4ai-command-r-v01": ({"model_type": "cohere", "logit_scale": 0.0625}, '"cohere"'),
    "ibm-granite/granite-3.0-2b-base": ({"model_type": "granite", "attention_multiplier": 0.015625}, '"granite"'),
    "allenai/OLMo-2-1124-7B": ({"model_type": "olmo2"}, '"olmo2"'),
    "HuggingFaceTB/SmolLM3-3B": ({"model_type": "smollm3", "no_rope_layers": [1, 0]}, '"smollm3"'),
    "meta-llama/Llama-4-Scout-17B-16E": ({"model_type": "llama4"}, '"llama4"'),
    "a Llama with experts": (_llama(64, 96, 2, 8, 8, 131, 64, num_local_experts=4), "num_local_experts = 4"),
    "a Llama that scales its residuals": (_llama(64, 96, 2, 8, 8, 131, 64, residual_multiplier=0.22), "residual_multiplier"),
    "a Llama with interleaved rotation": (_llama(64, 96, 2, 8, 8, 131, 64, rope_interleaved=True), "rope_interleaved"),
    "a Llama with squared ReLU": (_llama(64, 96, 2, 8, 8, 131, 64, hidden_act="relu2"), 'hidden_act "relu2"'),
    "multimodal rotation": (
        _as("qwen2", "Qwen2ForCausalLM", _llama(64, 96, 2, 8, 8, 131, 64), rope_scaling={"type": "mrope", "mrope_section": [1]}),
        'rope scaling "mrope"',
    ),
    "proportional rotation": (_llama(64, 96, 2, 8, 8, 131, 64, rope_scaling={"rope_type": "proportional"}), '"proportional"'),
    "a scaling with an unknown option": (
        _llama(64, 96, 2, 8, 8, 131, 64, rope_scaling={"type": "linear", "factor": 2.0, "finetuned_window": 4}),
        "finetuned_window",
    ),
    "a Qwen with dual chunk attention": (
        _as("qwen2", "Qwen2ForCausalLM", _llama(64, 96, 2, 8, 8, 131, 64), dual_chunk_attention_config={"chunk_size": 262144}),
        "dual_chunk_attention_config",
    ),
    "a Gemma 3 that looks ahead": (
        _as("gemma3_text", "Gemma3ForCausalLM", _llama(64, 96, 2, 8, 8, 131, 64, hidden_act=None), use_bidirectional_attention=True),
        "use_bidirectional_attention",
    ),
    "layers that attend in chunks": (
        _as("qwen3", "Qwen3ForCausalLM", _llama(64, 96, 2, 8, 8, 131, 64), layer_types=["chunked_attention"] * 2),
        "chunked_attention",
    ),
}  # fmt: skip
