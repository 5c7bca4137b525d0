"""How large an engine's steps and batches are: fixed when it is compiled, so chosen from what is wanted and what the device has room for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from build_scripts.errors import UnsupportedError
from build_scripts.target_device import TargetDevice
from build_scripts.trtllm.bill import TOKENS_PER_BLOCK, RankBill, workspace
from build_scripts.trtllm.config import served_context
from build_scripts.trtllm.convert import Conversion
from build_scripts.trtllm.unattended import least_step_tokens, most_step_tokens

Profile: TypeAlias = Literal["latency", "throughput"]

_STEP_TOKENS: dict[Profile, int] = {"latency": 2048, "throughput": 8192}
"""A chunk of a long prompt delays everybody's next token by its own time: short chunks for latency, long ones for throughput."""
_BATCH: dict[Profile, int] = {"latency": 64, "throughput": 512}
_LONGEST = 32_768
"""Longest sequence unless more is asked for: each one that is allowed must have room (case B1)."""
LORA_MODULES = ("attn_q", "attn_k", "attn_v", "attn_dense", "mlp_h_to_4h", "mlp_4h_to_h", "mlp_gate")
"""TensorRT-LLM's names of what an adapter can be for in a dense decoder."""
_HIGHEST_LORA_RANK = 512
EXPECTED_LENGTH = 2048
"""Prompt and output of a usual request, for the number that run at once."""


@dataclass(frozen=True)
class EngineLimits:
    max_batch_size: int
    max_num_tokens: int
    max_seq_len: int
    lora_rank: int = 0
    """Highest rank of a LoRA adapter; 0 = no adapters."""
    lora_modules: tuple[str, ...] = ()

    @property
    def max_input_len(self) -> int:
        """Chunked context takes any prompt that leaves room for a token (case A9)."""
        return self.max_seq_len - 1


@dataclass(frozen=True)
class LimitsWish:
    """What the user said; None = chosen here."""

    max_batch_size: int | None = None
    max_num_tokens: int | None = None
    max_seq_len: int | None = None
    lora_rank: int = 0
    lora_modules: tuple[str, ...] = ()
    """Empty = all of attention and feed-forward, where there is a rank."""


@dataclass(frozen=True)
class EngineBill:
    """Bytes on the GPU that has the least room left."""

    usable: int
    weights: int
    workspace: int
    kv_per_token: int

    @property
    def kv_blocks(self) -> int:
        return max(0, self.usable - self.weights - self.workspace) // (self.kv_per_token * TOKENS_PER_BLOCK)

    @property
    def kv_tokens(self) -> int:
        return self.kv_blocks * TOKENS_PER_BLOCK

    def sequences(self, length: int) -> int:
        """How many sequences of ``length`` tokens the pool holds."""
        return self.kv_blocks // -(-length // TOKENS_PER_BLOCK)


def choose_limits(
    conversion: Conversion, ranks: tuple[RankBill, ...], device: TargetDevice, profile: Profile, wish: LimitsWish
) -> EngineLimits:
    """A batch no larger than what the pool holds of usual requests: larger ones only take memory from it (case A7).

    Raises UnsupportedError where wishes contradict the model, each other or the device.
    """
    context = served_context(conversion.decoder)
    longest = wish.max_seq_len or min(context, _LONGEST)
    if not 2 <= longest <= context:
        raise UnsupportedError(f"--max-seq-len must be 2 .. {context}, what the model was trained for; given {longest}")
    tokens = wish.max_num_tokens or _STEP_TOKENS[profile]
    batch = wish.max_batch_size or _BATCH[profile]
    for name, value in (("--max-num-tokens", tokens), ("--max-batch-size", batch)):
        if value < 1:
            raise UnsupportedError(f"{name} must be at least 1, given {value}")
    bill = engine_bill(conversion, ranks, device, EngineLimits(batch, tokens, longest))
    if wish.max_batch_size is None:
        batch = max(1, min(batch, bill.sequences(min(EXPECTED_LENGTH, longest))))
    if wish.max_num_tokens is None:
        tokens = min(tokens, most_step_tokens(longest, batch))
    if not least_step_tokens() <= tokens <= most_step_tokens(longest, batch):
        raise UnsupportedError(
            f"--max-num-tokens must be {least_step_tokens()} .. {most_step_tokens(longest, batch)}, --max-seq-len times --max-batch-size, "
            f"given {tokens}: trtllm-build would change it"
        )
    if tokens < batch:
        raise UnsupportedError(
            f"--max-num-tokens {tokens} is less than --max-batch-size {batch}: each running sequence needs a token of every step"
        )
    limits = EngineLimits(batch, tokens, longest, wish.lora_rank, _lora_modules(wish))
    _require_room(engine_bill(conversion, ranks, device, limits), limits, device, conversion.layout.tp)
    return limits


def _lora_modules(wish: LimitsWish) -> tuple[str, ...]:
    if not 0 <= wish.lora_rank <= _HIGHEST_LORA_RANK:
        raise UnsupportedError(f"--lora-rank must be 0 .. {_HIGHEST_LORA_RANK}, given {wish.lora_rank}")
    if wish.lora_modules and not wish.lora_rank:
        raise UnsupportedError(
            f"--lora-modules {','.join(wish.lora_modules)} needs --lora-rank, the highest of any adapter"
        )
    if unknown := [name for name in wish.lora_modules if name not in LORA_MODULES]:
        raise UnsupportedError(f"--lora-modules must be among {', '.join(LORA_MODULES)}; given {', '.join(unknown)}")
    return (wish.lora_modules or LORA_MODULES) if wish.lora_rank else ()


def engine_bill(
    conversion: Conversion, ranks: tuple[RankBill, ...], device: TargetDevice, limits: EngineLimits
) -> EngineBill:
    """Of the tightest stage: all stages hold each sequence."""
    bills = [
        EngineBill(
            usable=device.usable,
            weights=rank.weights,
            workspace=workspace(conversion, rank.stage, limits.max_num_tokens, limits.max_batch_size),
            kv_per_token=rank.kv_per_token,
        )
        for rank in ranks
    ]
    return min(bills, key=lambda bill: bill.kv_tokens)


def _require_room(bill: EngineBill, limits: EngineLimits, device: TargetDevice, tp: int) -> None:
    if bill.sequences(limits.max_seq_len) < 1:
        left = (bill.usable - bill.weights - bill.workspace) / 1e9
        raise UnsupportedError(
            f"{device.name} has {bill.usable / 1e9:.1f} GB usable; weights take {bill.weights / 1e9:.1f} GB and activations "
            f"{bill.workspace / 1e9:.1f} GB of each GPU, so {left:.1f} GB are left and one sequence of --max-seq-len "
            f"{limits.max_seq_len} needs {limits.max_seq_len * bill.kv_per_token / 1e9:.1f} GB: use a greater --tp (now {tp}), a "
            "smaller --max-seq-len or --max-num-tokens, or quantised weights"
        )
