"""What a step costs on a device that nobody has measured yet: the roofline, with the shares of it that servers reach.

The formula is the one that manifests carry and the scheduler refits (engines.manifest.StepProfile); here its coefficients come
from the device's bandwidth and arithmetic instead of a stopwatch.
"""

from __future__ import annotations

from build_scripts.devices import Device
from engines.manifest import StepProfile
from loadtest.planner.model import KV_BYTES, PlannedModel

MEMORY_SHARE = 0.75
"""Of the datasheet's bandwidth that reading weights and keys reaches."""
COMPUTE_SHARE = 0.5
"""Of the datasheet's operations that prompts of usual length reach."""
STEP_OVERHEAD = 1.0e-3
"""Seconds of a step that are neither memory nor arithmetic: launching, sampling, scheduling."""
REDUCE_SECONDS = 12e-6
"""Latency of one all-reduce between linked devices."""


def step_cost(model: PlannedModel, device: Device, tp: int, *, weights: str, kv: str) -> StepProfile:
    """Coefficients of the step-time formula for one replica over ``tp`` devices."""
    bandwidth = device.bandwidth * MEMORY_SHARE * tp
    flops = (device.flops_8 if weights == "fp8" else device.flops_16) * COMPUTE_SHARE * tp
    attention_flops = device.flops_16 * COMPUTE_SHARE * tp
    reduces = 2 * model.layers if tp > 1 else 0
    per_token = 2 * model.parameters / flops + reduces * _reduce_bytes(model, tp) / device.link
    kv_per_token = 2 * model.layers * model.kv_heads * model.head_dim * KV_BYTES[kv]
    return StepProfile(
        fixed=STEP_OVERHEAD + model.weight_bytes(weights) / bandwidth + reduces * REDUCE_SECONDS,
        per_new_token=per_token,
        per_decode=per_token,
        per_decode_context=kv_per_token / bandwidth,
        # Scores and weighted values: 4 operations for each head, its size, and each token that is looked at.
        per_attention=4 * model.layers * model.heads * model.head_dim / attention_flops,
        machine=f"{tp} x {device.name}, estimated",
        relative_error=0.3,
    )


def _reduce_bytes(model: PlannedModel, tp: int) -> float:
    """Bytes that one token's activations send over a link in one all-reduce (ring)."""
    return 2 * model.hidden * 2 * (tp - 1) / tp
