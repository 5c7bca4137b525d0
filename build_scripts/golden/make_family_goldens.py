"""Ask Hugging Face transformers for the log-probabilities of every tiny model: families.npz and families.json.

Run in an environment of its own, from the project's root, when a tiny model is added or its rule changes::

    python3 -m venv /tmp/goldens && /tmp/goldens/bin/pip install "torch==2.13.0" "transformers==5.24.0" "numpy<3"
    /tmp/goldens/bin/python -m build_scripts.golden.make_family_goldens

transformers loads each model from a config.json written as public models write theirs, in eager attention (the only kind
that applies Gemma 2's soft caps), with weights in float64. What it keeps in float32 inside (norms, rotary tables) bounds
the precision of these numbers at about 1e-6. families.json records the tensors that transformers' model has, by name and
shape, so that a tensor which our own description forgets is missed.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from build_scripts.golden.tiny_models import TINY_MODELS, TinyModel, tensor, tokens

HERE = Path(__file__).parent


def main() -> None:
    arrays: dict[str, Any] = {}
    tensors: dict[str, Any] = {}
    for model in TINY_MODELS:
        arrays[model.name], tensors[model.name] = _ask(model)
        sys.stdout.write(f"{model.name}: {len(tensors[model.name])} tensors\n")
    np.savez(HERE / "families.npz", **arrays)
    (HERE / "families.json").write_text(json.dumps(tensors, sort_keys=True, separators=(",", ":")) + "\n")


def _ask(model: TinyModel) -> tuple[Any, dict[str, list[int]]]:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as directory:
        config = {key: value for key, value in model.config.items() if value is not None or key != "rope_theta"}
        Path(directory, "config.json").write_text(json.dumps(config))
        settings = AutoConfig.from_pretrained(directory)
    network = AutoModelForCausalLM.from_config(settings, attn_implementation="eager").double().eval()
    state = network.state_dict()
    if settings.tie_word_embeddings:
        del state["lm_head.weight"]
    shapes = {name: list(value.shape) for name, value in state.items()}
    weights = {name: torch.from_numpy(tensor(model, name, tuple(shape))).double() for name, shape in shapes.items()}
    network.load_state_dict(weights, strict=not settings.tie_word_embeddings)
    network.tie_weights()
    with torch.no_grad():
        logits = network(torch.tensor([tokens(model)]), use_cache=False).logits[0].double()
    logprobs = torch.log_softmax(logits, -1).numpy()
    return logprobs[list(model.positions)].astype(np.float32), shapes


if __name__ == "__main__":
    main()
