"""Every option of trtllm-build, told explicitly: a default that changes between releases changes no engine of ours.

The options were read in the public sources of releases around 1.2.1 (docs/tensorrt-llm.md).
"""

from __future__ import annotations

from pathlib import Path

from build_scripts.target_device import TargetDevice
from build_scripts.trtllm.bill import TOKENS_PER_BLOCK
from build_scripts.trtllm.config import architecture
from build_scripts.trtllm.convert import Conversion
from build_scripts.trtllm.limits import EngineLimits, Profile

_LORA_MODULES = "lora_target_modules"
"""The one option that takes a list."""
_REDUCE_FUSION = ("LlamaForCausalLM", "Gemma2ForCausalLM")
"""Architectures whose all-reduce can be fused with the norm behind it."""


def build_options(
    conversion: Conversion, device: TargetDevice, limits: EngineLimits, profile: Profile
) -> dict[str, str]:
    """By name, without the paths."""
    return _shape(limits, profile) | _plugins(conversion, device, profile) | _lora(conversion, limits)


def build_command(checkpoint: Path, output: Path, timing_cache: Path, ranks: int, options: dict[str, str]) -> list[str]:
    """``ranks`` compile side by side, each on the GPU that it is for. The timing cache is read and written."""
    told = {
        "checkpoint_dir": str(checkpoint),
        "output_dir": str(output),
        "workers": str(ranks),
        "input_timing_cache": str(timing_cache),
        "output_timing_cache": str(timing_cache),
    } | options
    lists = {_LORA_MODULES: told.pop(_LORA_MODULES, "").split()}
    command = ["trtllm-build", *(text for name, value in told.items() for text in (f"--{name}", value))]
    return [*command, *(text for name, values in lists.items() if values for text in (f"--{name}", *values))]


def _lora(conversion: Conversion, limits: EngineLimits) -> dict[str, str]:
    if not limits.lora_rank:
        return {"lora_plugin": "disable"}
    return {
        "lora_plugin": conversion.dtype,
        "max_lora_rank": str(limits.lora_rank),
        _LORA_MODULES: " ".join(limits.lora_modules),
    }


def _shape(limits: EngineLimits, profile: Profile) -> dict[str, str]:
    # Kernels are tuned for one size, that of a step in which everybody decodes, or for several (multiple_profiles): not for both,
    # trtllm-build refuses that.
    tuned = {} if profile == "latency" else {"opt_num_tokens": str(limits.max_batch_size)}
    return tuned | {
        "max_batch_size": str(limits.max_batch_size),
        "max_num_tokens": str(limits.max_num_tokens),
        "max_input_len": str(limits.max_input_len),
        "max_seq_len": str(limits.max_seq_len),
        "max_beam_width": "1",
        "max_prompt_embedding_table_size": "0",
        "max_draft_len": "0",
        "kv_cache_type": "paged",
        "logits_dtype": "float32",
        "profiling_verbosity": "layer_names_only",
        "log_level": "info",
    }


def _plugins(conversion: Conversion, device: TargetDevice, profile: Profile) -> dict[str, str]:
    quantisation = conversion.quantisation
    fp8 = quantisation.quant_algo == "FP8"
    fp8_cache = quantisation.kv_cache_quant_algo == "FP8"
    latency, several = profile == "latency", conversion.layout.tp > 1
    low_latency = latency and fp8 and not _is_blackwell(device)
    fused = latency and several and architecture(conversion.decoder) in _REDUCE_FUSION
    dtype = conversion.dtype
    return {
        "gpt_attention_plugin": dtype,
        # FP8 products are TensorRT's own; the low-latency plugin takes them over where few rows are multiplied.
        "gemm_plugin": "disable" if fp8 else dtype,
        "low_latency_gemm_plugin": "fp8" if low_latency else "disable",
        "low_latency_gemm_swiglu_plugin": "fp8" if low_latency else "disable",
        "gemm_swiglu_plugin": "disable",
        "fp8_rowwise_gemm_plugin": "disable",
        "gemm_allreduce_plugin": "disable",
        "nccl_plugin": dtype if conversion.layout.world_size > 1 else "disable",
        "moe_plugin": "disable",
        "mamba_conv1d_plugin": "disable",
        "bert_attention_plugin": "disable",
        "dora_plugin": "disable",
        "context_fmha": "enable",
        "bert_context_fmha_fp32_acc": "disable",
        "use_paged_context_fmha": "enable",  # chunked context and block reuse stand on it
        "use_fp8_context_fmha": _switch(fp8_cache),
        "remove_input_padding": "enable",
        "tokens_per_block": str(TOKENS_PER_BLOCK),
        "multiple_profiles": _switch(latency),  # tuned kernels for small steps, too
        "reduce_fusion": _switch(fused),
        "user_buffer": _switch(fused and fp8),
        "use_fused_mlp": _switch(not fp8 or low_latency),
        "norm_quant_fusion": "disable",
        "fuse_fp4_quant": "disable",
        "paged_state": "enable",
        "pp_reduce_scatter": "disable",
        "streamingllm": "disable",
    }


def _is_blackwell(device: TargetDevice) -> bool:
    return device.compute_capability is not None and int(device.compute_capability.split(".")[0]) >= 10


def _switch(value: bool) -> str:
    return "enable" if value else "disable"
