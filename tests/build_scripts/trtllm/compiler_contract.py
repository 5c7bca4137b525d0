"""What trtllm-build takes, as read in its public sources (commands/build.py, plugin/plugin.py): names, values, and what it refuses together."""

from __future__ import annotations

from collections.abc import Mapping

_NUMBERS = [
    "workers",
    "max_batch_size",
    "max_num_tokens",
    "opt_num_tokens",
    "max_input_len",
    "max_seq_len",
    "max_beam_width",
    "max_prompt_embedding_table_size",
    "max_draft_len",
    "max_lora_rank",
    "tokens_per_block",
]
_PATHS = ["checkpoint_dir", "output_dir", "input_timing_cache", "output_timing_cache"]
_SWITCHES = [
    "context_fmha",
    "bert_context_fmha_fp32_acc",
    "remove_input_padding",
    "use_paged_context_fmha",
    "use_fp8_context_fmha",
    "fuse_fp4_quant",
    "multiple_profiles",
    "paged_state",
    "streamingllm",
    "norm_quant_fusion",
    "reduce_fusion",
    "user_buffer",
    "use_fused_mlp",
    "pp_reduce_scatter",
    "dora_plugin",
]
_TYPED = [
    "bert_attention_plugin",
    "gpt_attention_plugin",
    "fp8_rowwise_gemm_plugin",
    "lora_plugin",
    "moe_plugin",
    "mamba_conv1d_plugin",
    "nccl_plugin",
]
_FLOATS = ("float16", "float32", "bfloat16", "int32")
_TYPES = ("auto", *_FLOATS, "disable")
CHOICES: dict[str, tuple[str, ...]] = (
    dict.fromkeys(_SWITCHES, ("enable", "disable"))
    | dict.fromkeys(_TYPED, _TYPES)
    | {
        "gemm_plugin": (*_TYPES, "fp8", "nvfp4"),
        "gemm_swiglu_plugin": ("fp8", "disable"),
        "low_latency_gemm_plugin": ("fp8", "disable"),
        "low_latency_gemm_swiglu_plugin": ("fp8", "disable"),
        "gemm_allreduce_plugin": ("float16", "bfloat16", "disable"),
        "logits_dtype": ("float16", "float32"),
        "profiling_verbosity": ("layer_names_only", "detailed", "none"),
        "kv_cache_type": ("continuous", "paged", "disabled"),
        "log_level": ("internal_error", "error", "warning", "info", "verbose", "debug", "trace"),
    }
)
PLUGIN_OPTIONS = frozenset(
    (*_SWITCHES, *_TYPED, "tokens_per_block", *(name for name in CHOICES if name.endswith("plugin")))
)
"""All that `trtllm-build` has of them: whatever is not told falls to a default that may change."""


def refusal(told: Mapping[str, str]) -> str | None:
    """Why trtllm-build would not take these options (names without dashes); None where it would."""
    for name, value in told.items():
        if name not in (*_NUMBERS, *_PATHS, *CHOICES):
            return f"unrecognized arguments: --{name} {value}"
        if (name in _NUMBERS and not value.isdigit()) or value not in CHOICES.get(name, (value,)):
            return f"argument --{name}: invalid value: {value!r}"
    if told.get("multiple_profiles") == "enable" and "opt_num_tokens" in told:
        return "RuntimeError: multiple_profiles is enabled, while opt_num_tokens is set."
    if told.get("streamingllm") == "enable":
        return "AssertionError: StreamingLLM is no longer supported"
    if told.get("user_buffer") == "enable" and told.get("reduce_fusion") != "enable":
        return "AssertionError: user_buffer needs reduce_fusion"
    return None
