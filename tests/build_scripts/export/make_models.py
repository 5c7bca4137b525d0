"""Tiny random models of families that this project does not describe itself; runs in the exporter's environment.

PYTHON make_models.py DIRECTORY NAME...
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

SHAPE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 264}
LLAMA_LIKE = SHAPE | {"intermediate_size": 128, "num_key_value_heads": 2, "max_position_embeddings": 256}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256, "vocab_size": 264}),
    "committed": ("GPT2", {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 96, "vocab_size": 264}),
    "opt": ("OPT", SHAPE | {"ffn_dim": 128, "word_embed_proj_dim": 64, "max_position_embeddings": 256}),
    "bloom": ("Bloom", {"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 264, "seq_length": 256}),
    "gpt_neox": ("GPTNeoX", SHAPE | {"intermediate_size": 128, "max_position_embeddings": 256}),
    "mistral": ("Mistral", LLAMA_LIKE | {"sliding_window": 64}),
    "phi3": ("Phi3", LLAMA_LIKE | {"pad_token_id": 0}),
    "qwen2_moe": (
        "Qwen2Moe",
        LLAMA_LIKE | {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 64, "num_experts": 4},
    ),
    "mamba": ("Mamba", {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 264, "state_size": 8}),
}


def main() -> None:
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    for name in sys.argv[2:]:
        family, changes = MODELS[name]
        torch.manual_seed(0)
        config = getattr(transformers, f"{family}Config")(**changes, bos_token_id=256, eos_token_id=257)
        model = transformers.AutoModelForCausalLM.from_config(config)
        for values in model.parameters():  # far from the start's small numbers: attention must matter
            values.data.normal_(0, 0.15 if values.dim() > 1 else 0.3)
        model.save_pretrained(Path(sys.argv[1]) / name)


if __name__ == "__main__":
    main()
