"""Plans out of configs alone: the numbers by hand, the commands word for word, the refusals with both sides named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from build_scripts.errors import UnsupportedError
from build_scripts.target_device import TargetDevice, target_device
from build_scripts.trtllm.build import CheckpointRequest
from build_scripts.trtllm.config import Quantisation
from build_scripts.trtllm.engine_plan import EnginePlan, EngineWish, plan_from_config
from build_scripts.trtllm.layout import Layout
from build_scripts.trtllm.limits import LORA_MODULES, LimitsWish, Profile
from build_scripts.trtllm.options import build_options
from firsttoken.cli import main
from tests.build_scripts.trtllm.compiler_contract import PLUGIN_OPTIONS, refusal

GIB = 1 << 30
_ROPE = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}


def _config(hidden: int, wide: int, layers: int, heads: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": wide,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "vocab_size": 128_256,
        "max_position_embeddings": 131_072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "rope_scaling": _ROPE,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
    }


CONFIGS = {"Llama-3.1-8B": _config(4096, 14_336, 32, 32), "Llama-3.1-70B": _config(8192, 28_672, 80, 64)}


def planned(
    folder: Path, model: str, tp: int, device: str | TargetDevice, profile: Profile = "latency", **limits: Any
) -> EnginePlan:
    directory = folder / model
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIGS[model]))
    request = CheckpointRequest(str(directory), None, Layout(tp, 1), None, None, share_embedding=False, cache=folder)
    chosen = target_device(device) if isinstance(device, str) else device
    return plan_from_config(request, EngineWish(profile, LimitsWish(**limits), chosen))


# Llama's parameters by hand. 8B: 8,030,261,248 in all. 70B: 70,553,706,496 in all, of which the embedding, 128,256 * 8,192, and the
# norms, 161 * 8,192, lie whole on every GPU.
_EMBEDDING = 128_256 * 8192
_NORMS = 161 * 8192
_SPLIT = 70_553_706_496 - _EMBEDDING - _NORMS


def _rank_parameters(tp: int) -> int:
    return _SPLIT // tp + _EMBEDDING + _NORMS


BY_HAND = [
    # model, tp, device, bytes of its memory, weights of a GPU, bytes of a token's keys and values on it
    ("Llama-3.1-8B", 1, "L40S", 48 * GIB, 2 * 8_030_261_248, 2 * 32 * 8 * 128 * 2),
    ("Llama-3.1-70B", 4, "H100-80GB", 80 * GIB, 2 * _rank_parameters(4), 2 * 80 * 2 * 128 * 2),
    ("Llama-3.1-70B", 8, "H100-80GB", 80 * GIB, 2 * _rank_parameters(8), 2 * 80 * 1 * 128 * 2),
    ("Llama-3.1-70B", 4, "H200", 141 * GIB, 2 * _rank_parameters(4), 2 * 80 * 2 * 128 * 2),
    ("Llama-3.1-70B", 8, "H200", 141 * GIB, 2 * _rank_parameters(8), 2 * 80 * 1 * 128 * 2),
]


@pytest.mark.parametrize(("model", "tp", "device", "memory", "weights", "kv"), BY_HAND)
def test_bill_capacity_and_concurrency_by_hand(  # noqa: PLR0917 - a row of a table
    tmp_path: Path, model: str, tp: int, device: str, memory: int, weights: int, kv: int
) -> None:
    """case_A7, case_B2."""
    plan = planned(tmp_path, model, tp, device)
    bill, config = plan.bill, CONFIGS[model]
    hidden, wide, heads = config["hidden_size"], config["intermediate_size"], config["num_attention_heads"]
    key_heads = max(1, 8 // tp)
    activations = 2048 * (4 * hidden + (heads // tp + 2 * key_heads) * 128 + 2 * wide // tp) * 2
    assert plan.limits.max_batch_size == 64
    assert bill.usable == int(0.9 * memory)
    assert bill.weights == weights
    assert bill.kv_per_token == kv
    assert bill.workspace == activations + 4 * 64 * 128_256
    blocks = (int(0.9 * memory) - weights - bill.workspace) // (32 * kv)
    assert bill.kv_blocks == blocks
    assert bill.sequences(2048) == blocks // 64
    assert bill.sequences(2049) == blocks // 65


def test_the_figures_that_a_person_would_say(tmp_path: Path) -> None:
    """The same in round numbers, worked out on paper, so that a mistake in both formulas would show. 70B, tp 4, H100: 77.31 GB usable
    less 36.85 less 0.24 leave 40.22 GB; by 81,920 bytes that is 490,945 tokens, by blocks of 32 and 2,048 tokens 239 sequences."""
    small, four, eight = (
        planned(tmp_path, "Llama-3.1-8B", 1, "L40S"),
        planned(tmp_path, "Llama-3.1-70B", 4, "H100-80GB"),
        planned(tmp_path, "Llama-3.1-70B", 8, "H200"),
    )
    assert [round(plan.bill.weights / 1e9, 1) for plan in (small, four, eight)] == [16.1, 36.9, 19.5]
    assert [plan.bill.kv_per_token for plan in (small, four, eight)] == [131_072, 81_920, 40_960]
    assert [round(plan.bill.kv_tokens / 1000) for plan in (small, four, eight)] == [230, 491, 2846]
    assert [plan.bill.sequences(2048) for plan in (small, four, eight)] == [112, 239, 1389]


def test_seventy_billion_parameters_do_not_fit_one_h100(tmp_path: Path) -> None:
    with pytest.raises(
        UnsupportedError, match=r"H100-80GB has 77\.3 GB usable; weights take 141\.1 GB.*greater --tp \(now 1\)"
    ):
        planned(tmp_path, "Llama-3.1-70B", 1, "H100-80GB")


def test_steps_that_the_compiler_would_shrink_are_planned_as_small(tmp_path: Path) -> None:
    """Or config.json and engine.json would differ, and the preflight refuse what was just built."""
    limits = planned(tmp_path, "Llama-3.1-8B", 1, "L40S", max_batch_size=1, max_seq_len=1024).limits
    assert limits.max_num_tokens == 1024
    with pytest.raises(
        UnsupportedError, match=r"--max-num-tokens must be 32 \.\. 1024, .*given 2048: trtllm-build would"
    ):
        planned(tmp_path, "Llama-3.1-8B", 1, "L40S", max_batch_size=1, max_seq_len=1024, max_num_tokens=2048)
    with pytest.raises(UnsupportedError, match=r"--max-num-tokens must be 32 .*given 16"):
        planned(tmp_path, "Llama-3.1-8B", 1, "L40S", max_batch_size=8, max_num_tokens=16)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"max_seq_len": 200_000}, r"--max-seq-len must be 2 \.\. 131072.*given 200000"),
        ({"max_num_tokens": 32, "max_batch_size": 64}, "--max-num-tokens 32 is less than --max-batch-size 64"),
        ({"max_batch_size": -1}, "--max-batch-size must be at least 1, given -1"),
    ],
)
def test_contradicting_wishes_are_refused(tmp_path: Path, limits: dict[str, int], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        planned(tmp_path, "Llama-3.1-8B", 1, "L40S", "latency", **limits)


def test_a_batch_beyond_what_the_pool_holds_is_not_planned(tmp_path: Path) -> None:
    plan = planned(tmp_path, "Llama-3.1-8B", 1, TargetDevice("24GB", 24 * GIB, None), "throughput")
    assert plan.limits.max_batch_size < 512
    assert plan.bill.sequences(2048) >= plan.limits.max_batch_size


# ------------------------------------------------------------------ options


def test_every_option_is_told_and_none_twice(tmp_path: Path) -> None:
    plan = planned(tmp_path, "Llama-3.1-70B", 4, "H100-80GB")
    program, *words = plan.command()
    names, values = words[::2], words[1::2]
    assert program == "trtllm-build"
    assert len(set(names)) == len(names)
    assert all(name.startswith("--") for name in names)
    assert not any(value.startswith("--") or not value for value in values)
    told = dict(zip(names, values, strict=True))
    assert told["--workers"] == "4"
    assert told["--input_timing_cache"] == told["--output_timing_cache"]
    assert (told["--max_seq_len"], told["--max_input_len"]) == ("32768", "32767")


@pytest.mark.parametrize("profile", ["latency", "throughput"])
@pytest.mark.parametrize("device", ["L40S", "H100-80GB", "H200", "B200"])
@pytest.mark.parametrize("quantisation", [Quantisation(), Quantisation("FP8", "FP8"), Quantisation("W8A16")])
def test_the_compiler_takes_what_it_is_told_and_none_of_its_plugin_options_is_left_to_a_default(
    tmp_path: Path, profile: Profile, device: str, quantisation: Quantisation
) -> None:
    plan = planned(tmp_path, "Llama-3.1-8B", 2, device, profile)
    object.__setattr__(plan.conversion, "quantisation", quantisation)
    command = plan.command()
    told = {name.removeprefix("--"): value for name, value in zip(command[1::2], command[2::2], strict=True)}
    assert refusal(told) is None
    assert told.keys() >= PLUGIN_OPTIONS


def test_the_contract_of_the_compiler_refuses_what_it_refuses() -> None:
    assert refusal({"multiple_profiles": "enable", "opt_num_tokens": "8"}) is not None
    assert refusal({"nonsense": "1"}) == "unrecognized arguments: --nonsense 1"
    assert refusal({"gemm_swiglu_plugin": "bfloat16"}) is not None
    assert refusal({"max_batch_size": "8", "multiple_profiles": "enable"}) is None


def test_an_engine_for_adapters_is_told_their_rank_and_modules(tmp_path: Path) -> None:
    plan = planned(tmp_path, "Llama-3.1-8B", 1, "L40S", lora_rank=16, lora_modules=("attn_q", "attn_v"))
    command = plan.command()
    at = command.index("--lora_target_modules")
    assert command[at:] == ["--lora_target_modules", "attn_q", "attn_v"]
    told = {name.removeprefix("--"): value for name, value in zip(command[1:at:2], command[2:at:2], strict=True)}
    assert refusal(told) is None
    assert (told["lora_plugin"], told["max_lora_rank"], told["dora_plugin"]) == ("bfloat16", "16", "disable")
    everything = planned(tmp_path, "Llama-3.1-8B", 1, "L40S", lora_rank=8).limits
    assert everything.lora_modules == LORA_MODULES
    assert "max_lora_rank" not in planned(tmp_path, "Llama-3.1-8B", 1, "L40S").options


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ({"lora_rank": 1000}, r"--lora-rank must be 0 \.\. 512, given 1000"),
        ({"lora_modules": ("attn_q",)}, "--lora-modules attn_q needs --lora-rank"),
        ({"lora_rank": 8, "lora_modules": ("q_proj",)}, "--lora-modules must be among attn_q, .*given q_proj"),
    ],
)
def test_adapters_that_no_engine_takes_are_refused(tmp_path: Path, wish: dict[str, Any], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        planned(tmp_path, "Llama-3.1-8B", 1, "L40S", "latency", **wish)


def test_latency_and_throughput_differ_where_they_should(tmp_path: Path) -> None:
    latency = planned(tmp_path, "Llama-3.1-70B", 4, "H100-80GB").options
    throughput = planned(tmp_path, "Llama-3.1-70B", 4, "H100-80GB", "throughput").options
    assert throughput.keys() - latency.keys() == {"opt_num_tokens"}
    changed = {name: (latency[name], throughput[name]) for name in latency if latency[name] != throughput[name]}
    assert changed.keys() == {
        "max_batch_size",
        "max_num_tokens",
        "multiple_profiles",
        "reduce_fusion",
    }
    assert (changed["max_num_tokens"], changed["reduce_fusion"]) == (("2048", "8192"), ("enable", "disable"))
    for options in (latency, throughput):
        assert options["use_paged_context_fmha"] == "enable"


def test_what_one_gpu_or_plain_floats_cannot_use_is_off(tmp_path: Path) -> None:
    options = planned(tmp_path, "Llama-3.1-8B", 1, "L40S").options
    for name in ("nccl_plugin", "reduce_fusion", "user_buffer", "low_latency_gemm_plugin", "use_fp8_context_fmha"):
        assert options[name] == "disable", name


@pytest.mark.parametrize(("device", "plugin"), [("H100-80GB", "fp8"), ("B200", "disable")])
def test_fp8_takes_the_low_latency_plugins_where_the_hardware_has_them(
    tmp_path: Path, device: str, plugin: str
) -> None:
    plan = planned(tmp_path, "Llama-3.1-70B", 4, device)
    object.__setattr__(plan.conversion, "quantisation", Quantisation("FP8", "FP8"))
    options = build_options(plan.conversion, plan.device, plan.limits, "latency")
    assert options["low_latency_gemm_plugin"] == options["low_latency_gemm_swiglu_plugin"] == plugin
    assert (options["gemm_plugin"], options["user_buffer"], options["use_fp8_context_fmha"]) == (
        "disable",
        "enable",
        "enable",
    )


# ------------------------------------------------------------------ the command


def test_the_dry_run_prints_plan_bill_and_commands(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    planned(tmp_path, "Llama-3.1-70B", 4, "H100-80GB")
    arguments = ["build", str(tmp_path / "Llama-3.1-70B"), "--engine", "trtllm", "--tp", "4", "--device", "H100-80GB"]
    assert main([*arguments, "--dry-run", "--json"]) == 0
    document = json.loads(capsysbinary.readouterr().out)
    assert document["bill"]["kv_per_token"] == 81_920
    assert document["sequences"]["2048"] == 239
    assert document["compile"][0] == "trtllm-build"
    assert document["convert"].startswith("firsttoken build ")
    assert main([*arguments, "--dry-run"]) == 0
    text = capsysbinary.readouterr().out.decode()
    assert "70.55 B parameters, tp 4, pp 1, for 4 x H100-80GB, profile latency" in text
    assert "trtllm-build --checkpoint_dir engine-cache/Llama-3.1-70B-trtllm-bfloat16-tp4-pp1" in text


def test_a_config_alone_cannot_be_built(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    planned(tmp_path, "Llama-3.1-8B", 1, "L40S")
    arguments = ["build", str(tmp_path / "Llama-3.1-8B"), "--engine", "trtllm", "--device", "L40S", "--stage", "engine"]
    assert main(arguments) == 1
    assert "holds a config and no weights: add --dry-run for a plan" in capsys.readouterr().err
