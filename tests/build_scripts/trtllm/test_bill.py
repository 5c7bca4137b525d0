"""What a rank costs and what a device has room for, by the arithmetic of the field."""

from __future__ import annotations

from typing import Any

import pytest

from build_scripts.decoder import Decoder
from build_scripts.errors import UnsupportedError
from build_scripts.hf_description import describe_config
from build_scripts.target_device import TargetDevice, check_capability, parse_report, target_device
from build_scripts.trtllm.bill import ClusterBill, draw_up
from build_scripts.trtllm.config import Quantisation
from build_scripts.trtllm.convert import plan_conversion
from build_scripts.trtllm.layout import Layout
from build_scripts.trtllm.recipe import FloatRecipe
from build_scripts.weights import Dense
from tests.build_scripts.public_configs import SUPPORTED

GIB = 1 << 30


class NoWeights:
    def read(self, name: str) -> Dense:
        raise AssertionError(f"a bill reads no weights, it read {name}")


def bill(name: str, tp: int = 1, pp: int = 1, quantisation: Quantisation | None = None) -> ClusterBill:
    decoder: Decoder = describe_config(SUPPORTED[name])
    conversion = plan_conversion(decoder, Layout(tp, pp), "float16", quantisation=quantisation)
    return draw_up(conversion, FloatRecipe(decoder, NoWeights(), "float16"))


def test_the_articles_example_a_48_gb_card_runs_seven_sequences_of_8k_of_llama_2_7b() -> None:
    """0.9 of 48 GB is usable, weights are 14 GB, a token costs 0.5 MB, 8k of them 4 GB: seven worst cases at once.

    The article speaks of a context of 8k; Llama 2's own is 4k, which only bounds the longest sequence.
    """
    llama, card = bill("meta-llama/Llama-2-7b-hf"), target_device("48GB")
    rank = llama.ranks[0]
    assert card.usable == int(48 * GIB * 0.9)
    assert round(rank.weights / 1e9) == 13
    assert rank.kv_per_token == 512 * 1024
    assert 28e9 < rank.budget(card) < 33e9
    assert rank.kv_per_token * 8192 == 4 * GIB
    assert llama.sequences(card, 8192) == 7


def test_each_doubling_of_the_context_halves_the_room() -> None:
    llama, card = bill("meta-llama/Llama-3.1-8B-Instruct"), target_device("H100-80GB")
    rooms = [llama.sequences(card, length) for length in (8192, 16384, 32768)]
    assert rooms[0] // 2 in (rooms[1], rooms[1] + 1)
    assert rooms[1] // 2 in (rooms[2], rooms[2] + 1)


def test_tensor_parallel_ranks_share_weights_and_key_heads() -> None:
    one, four = bill("meta-llama/Llama-3.1-8B-Instruct"), bill("meta-llama/Llama-3.1-8B-Instruct", tp=4)
    assert four.ranks[0].kv_per_token * 4 == one.ranks[0].kv_per_token
    embedding = 128256 * 4096 * 2  # held whole by every rank
    assert four.ranks[0].weights == pytest.approx((one.ranks[0].weights - embedding) / 4 + embedding, rel=1e-3)


def test_more_ranks_than_key_heads_replicate_them() -> None:
    two, eight = (bill("Qwen/Qwen2.5-7B-Instruct", tp=tp).ranks[0].kv_per_token for tp in (2, 4))
    assert two == 2 * eight
    assert bill("Qwen/Qwen2-0.5B", tp=2).ranks[0].kv_per_token == bill("Qwen/Qwen2-0.5B", tp=2).ranks[0].kv_per_token


def test_the_tightest_stage_decides() -> None:
    staged, card = bill("meta-llama/Llama-2-7b-hf", pp=3), target_device("24GB")  # 11, 11 and 10 layers
    rooms = [rank.sequences(card, 8192) for rank in staged.ranks]
    assert rooms[0] < rooms[2]
    assert staged.sequences(card, 8192) == min(rooms)


def test_case_B1_a_card_without_room_for_one_sequence_does_not_fit() -> None:
    assert not bill("meta-llama/Llama-2-70b-hf").fits(target_device("H100-80GB"))
    assert bill("meta-llama/Llama-2-70b-hf", tp=8).fits(target_device("H100-80GB"))


def test_weight_only_quantisation_shrinks_the_linear_weights() -> None:
    plain, int8, int4 = (
        bill("meta-llama/Llama-2-7b-hf", quantisation=Quantisation(algo)).ranks[0].weights
        for algo in (None, "W8A16", "W4A16")
    )
    floats = 2 * 32000 * 4096 * 2 + 65 * 4096 * 2
    assert int8 == floats + (plain - floats) // 2
    assert int4 == floats + (plain - floats) // 4


@pytest.mark.parametrize(
    ("name", "memory", "capability"),
    [("H200", 141 * GIB, "9.0"), ("l40s", 48 * GIB, "8.9"), ("48GB", 48 * GIB, None), ("24 gib", 24 * GIB, None)],
)
def test_devices_by_name_or_size(name: str, memory: int, capability: str | None) -> None:
    device = target_device(name)
    assert (device.memory, device.compute_capability) == (memory, capability)


def test_an_unknown_device_is_refused_with_those_there_are() -> None:
    with pytest.raises(UnsupportedError, match=r"Voodoo2.* is not in the table; there are A10, "):
        target_device("Voodoo2")


def test_what_the_driver_reports_is_understood() -> None:
    assert parse_report("NVIDIA H100 80GB HBM3, 81559, 9.0") == TargetDevice(
        "NVIDIA H100 80GB HBM3", 81559 << 20, "9.0"
    )
    assert parse_report("NVIDIA Thor, [N/A], 11.0") is None


@pytest.mark.parametrize(
    ("device", "algo", "fits"),
    [
        ("L40S", "FP8", True),
        ("A100-80GB", "FP8", False),
        ("H200", "NVFP4", False),
        ("B200", "NVFP4", True),
        ("48GB", "NVFP4", True),
    ],
)
def test_a_format_needs_tensor_cores_that_have_it(device: str, algo: str, fits: Any) -> None:
    if fits:
        check_capability(target_device(device), algo)
    else:
        with pytest.raises(UnsupportedError, match=f"{algo} needs compute capability"):
            check_capability(target_device(device), algo)
