"""What a TensorRT-LLM engine was compiled with and for: the part of engine.json that other engines do not have."""

from __future__ import annotations

import msgspec


class TensorRtFacts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tensorrt_llm: str
    """Versions, as their packages state them: a compiled engine is bound to these two exactly."""
    tensorrt: str
    cuda: str
    """Version of the CUDA bindings, of which the major number counts."""
    driver: str
    """Of the machine that compiled."""
    gpu_name: str
    compute_capability: str
    """"9.0": a compiled engine runs on no other."""
    gpu_memory: int
    """Bytes of one GPU of the machine that compiled."""
    tp: int
    pp: int
    profile: str
    """"latency" or "throughput"."""
    max_batch_size: int
    max_num_tokens: int
    """New tokens of one iteration."""
    max_input_len: int
    max_seq_len: int
    """Prompt and output of one sequence."""
    tokens_per_block: int
    kv_bytes_per_token: int
    """On the GPU that holds most of it."""
    kv_dtype: str
    """"float16", "bfloat16", "fp8" or "int8"."""
    weight_bytes: int
    """On the GPU that holds most."""
    workspace_bytes: int
    """Activations of a full iteration, estimated."""
    max_attention_window: tuple[int, ...]
    """One for each layer."""
    max_lora_rank: int = 0
    """0 = compiled without adapters."""
    lora_modules: tuple[str, ...] = ()
    """What adapters may be for, by TensorRT-LLM's names."""

    @property
    def world_size(self) -> int:
        return self.tp * self.pp
