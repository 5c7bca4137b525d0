"""What trtllm-build would change or refuse on its own: said beforehand, since it changes with a warning in the middle of a long log.

Read in its public source (builder.py, _common.py); each rule names what the compiler does.
"""

from __future__ import annotations

from build_scripts.errors import UnsupportedError
from build_scripts.target_device import TargetDevice
from build_scripts.trtllm.bill import TOKENS_PER_BLOCK
from build_scripts.trtllm.config import Quantisation

_FP8_ATTENTION = ("FP8", "W4A8_AWQ", "NVFP4")
"""With these it has paged context attention over an FP8 cache."""
_WEIGHT_ONLY = ("W8A16", "W4A16")


def check_quantisation(quantisation: Quantisation, device: TargetDevice) -> None:
    """Raises UnsupportedError for an engine that could not reuse blocks or take long prompts in chunks: paged context attention would be
    turned off, and this server stands on it. So for weights that it does not compile for the device."""
    algo, cache = quantisation.quant_algo, quantisation.kv_cache_quant_algo
    capability = None if device.compute_capability is None else tuple(map(int, device.compute_capability.split(".")))
    if cache == "INT8":
        raise UnsupportedError(
            "INT8 keys and values: trtllm-build has no paged context attention over them; use FP8 or none"
        )
    if cache == "FP8" and algo not in _FP8_ATTENTION:
        raise UnsupportedError(
            f"FP8 keys and values with {algo or 'unquantised'} weights: trtllm-build has paged context attention over them with "
            f"{', '.join(_FP8_ATTENTION)} weights only; leave the cache in floats, or quantise the weights so"
        )
    if cache == "FP8" and capability is not None and capability < (8, 9):
        raise UnsupportedError(
            f"FP8 keys and values need compute capability 8.9 or later for their attention, {device.name} has {device.compute_capability}"
        )
    if algo in _WEIGHT_ONLY and capability is not None and (10, 0) <= capability < (12, 0):
        raise UnsupportedError(
            f"{algo} is not compiled for compute capability {device.compute_capability} ({device.name}): use FP8 or NVFP4 weights there"
        )


def most_step_tokens(max_seq_len: int, max_batch_size: int) -> int:
    """It shrinks max_num_tokens to what so many sequences can have at all ..."""
    return max(least_step_tokens(), max_seq_len * max_batch_size)


def least_step_tokens() -> int:
    """... and raises it to a block."""
    return TOKENS_PER_BLOCK
