"""What trtllm-build would change or refuse on its own is refused beforehand, with both sides named; the rest passes."""

from __future__ import annotations

import pytest

from build_scripts.errors import UnsupportedError
from build_scripts.target_device import target_device
from build_scripts.trtllm.config import Quantisation
from build_scripts.trtllm.unattended import check_quantisation


@pytest.mark.parametrize(
    ("quantisation", "device", "words"),
    [
        (Quantisation("FP8", "INT8"), "H100-80GB", "INT8 keys and values: .*no paged context attention"),
        (
            Quantisation(None, "FP8"),
            "H100-80GB",
            "FP8 keys and values with unquantised weights: .*FP8, W4A8_AWQ, NVFP4",
        ),
        (Quantisation("W4A16_AWQ", "FP8"), "L40S", "FP8 keys and values with W4A16_AWQ weights"),
        (Quantisation("W4A8_AWQ", "FP8"), "A100-80GB", "8.9 or later for their attention, A100-80GB has 8.0"),
        (Quantisation("W8A16"), "B200", "W8A16 is not compiled for compute capability 10.0"),
    ],
)
def test_what_the_compiler_would_turn_off_in_silence_is_refused(
    quantisation: Quantisation, device: str, words: str
) -> None:
    with pytest.raises(UnsupportedError, match=words):
        check_quantisation(quantisation, target_device(device))


@pytest.mark.parametrize(
    ("quantisation", "device"),
    [
        (Quantisation(), "B200"),
        (Quantisation("FP8", "FP8"), "L40S"),
        (Quantisation("W4A8_AWQ", "FP8"), "H100-80GB"),
        (Quantisation("W4A16"), "A100-80GB"),
        (Quantisation("FP8", "FP8"), "24GB"),
    ],
)
def test_what_the_compiler_takes_as_it_is_passes(quantisation: Quantisation, device: str) -> None:
    check_quantisation(quantisation, target_device(device))
