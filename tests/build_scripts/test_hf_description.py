"""Public configs are understood, or refused by the name of what is not implemented."""

from __future__ import annotations

from typing import Any

import pytest

from build_scripts.errors import CheckpointError, UnsupportedError
from build_scripts.hf_description import describe_config
from tests.build_scripts.public_configs import REFUSED, SUPPORTED, _llama

PARAMETERS = {
    "meta-llama/Llama-2-7b-hf": 6_738_415_616,
    "meta-llama/Llama-2-70b-hf": 68_976_648_192,
    "meta-llama/Llama-3.1-8B-Instruct": 8_030_261_248,
    "meta-llama/Llama-3.2-1B": 1_235_814_400,
    "HuggingFaceTB/SmolLM2-135M-Instruct": 134_515_008,
    "mistralai/Mistral-7B-v0.1": 7_241_732_096,
    "Qwen/Qwen2-0.5B": 494_032_768,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "google/gemma-2-2b": 2_614_341_888,
    "google/gemma-3-1b-it": 999_885_952,
    "microsoft/Phi-3-mini-4k-instruct": 3_821_079_552,
    "microsoft/Phi-4-mini-instruct": 3_836_021_760,
}
"""As the model cards count them."""


@pytest.mark.parametrize("name", SUPPORTED)
def test_a_public_config_is_understood(name: str) -> None:
    decoder = describe_config(SUPPORTED[name])
    if name in PARAMETERS:
        assert decoder.parameters() == PARAMETERS[name]


@pytest.mark.parametrize("name", REFUSED)
def test_a_feature_that_is_not_implemented_is_refused_by_name(name: str) -> None:
    config, says = REFUSED[name]
    with pytest.raises(UnsupportedError) as caught:
        describe_config(config)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"num_attention_heads": 0}, "num_attention_heads must be at least 1, it is 0"),
        ({"num_key_value_heads": 3}, "8 query heads cannot share 3 key heads evenly"),
        ({"hidden_size": "64"}, "hidden_size should be a int, it is str '64'"),
        ({"vocab_size": None}, "config.json lacks vocab_size"),
        ({"num_hidden_layers": 0}, "layers must be at least 1, the file has 0"),
        ({"head_dim": 7}, "rotary positions need an even size"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling lacks factor"),
        ({"rope_scaling": {"type": "linear", "factor": -2}}, "factor must be above 0, it is -2"),
        (
            {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0] * 4}},
            "short_factor holds 1 values, the head has 4 frequencies",
        ),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1}},
            "high_freq_factor 1.0 must be above low_freq_factor 4.0",
        ),
    ],
)
def test_nonsense_is_refused_with_field_and_value(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        describe_config(_llama(64, 96, 2, 8, 8, 131, 64, **changes))
    assert says in str(caught.value)


def test_windows_follow_each_familys_rule() -> None:
    gemma2 = describe_config(SUPPORTED["google/gemma-2-2b"]).windows
    assert gemma2[:3] == (4096, None, 4096)
    gemma3 = describe_config(SUPPORTED["google/gemma-3-1b-it"])
    assert [layer for layer in range(26) if gemma3.window(layer) is None] == [5, 11, 17, 23]
    assert (gemma3.rope_of(0).theta, gemma3.rope_of(5).theta) == (10000.0, 1000000.0)
    assert set(describe_config(SUPPORTED["mistralai/Mistral-7B-v0.1"]).windows) == {4096}
    assert set(describe_config(SUPPORTED["Qwen/Qwen2.5-7B-Instruct"]).windows) == {None}


def test_contexts_that_a_cache_cannot_serve_exactly_are_cut() -> None:
    phi = describe_config(SUPPORTED["microsoft/Phi-3.5-mini-instruct"])
    assert (phi.max_context, phi.static_context) == (131072, 4096)
    llama = describe_config(SUPPORTED["meta-llama/Llama-3.1-8B-Instruct"])
    assert llama.static_context == llama.max_context == 131072
