"""Make golden data for a GGUF checkpoint with Hugging Face transformers: run once, by hand, in an environment of its own.

    python -m venv /somewhere && /somewhere/bin/pip install torch==2.13.0 transformers==5.24.0 gguf==0.19.0
    /somewhere/bin/python build_scripts/golden/make_golden.py MODEL.gguf TOKENIZER.json build_scripts/golden/NAME.json

It shares no code with the build: weights are dequantised by the ``gguf`` library and un-permuted here, the model is
transformers' LlamaForCausalLM in float32 with eager attention. For each prompt it generates 48 tokens greedily, then
scores prompt and output in one teacher-forced pass; for each position of that pass it keeps the likeliest token, the lead of
the likeliest over the second, and the log-probability of the token that follows.
"""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, TypeAlias

import gguf
import numpy as np
import tokenizers
import torch
import transformers

Library: TypeAlias = Any
"""An object of a library that ships no types."""

TOKENS = 48
PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "<|im_start|>user\nExplain in two sentences why the sky is blue.<|im_end|>\n<|im_start|>assistant\n",
    "Once upon a time, in a village between two rivers, there lived an old clockmaker who",
    "The first ten prime numbers are 2, 3, 5, 7, 11,",
    '{"name": "Ada Lovelace", "born": 1815, "fields": ["mathematics", "',
    (
        "<|im_start|>system\nYou answer briefly.<|im_end|>\n<|im_start|>user\nTranslate to German: Good morning, my friends! "
        "How was the journey?<|im_end|>\n<|im_start|>assistant\n"
    ),
    (
        "Photosynthesis is the process by which green plants, algae and some bacteria turn light into chemical energy. Light is "
        "absorbed by chlorophyll in the thylakoid membranes, where water is split into oxygen, protons and electrons. The "
        "electrons pass along a chain of carriers and leave behind a gradient of protons, which drives the synthesis of ATP. In "
        "the stroma, the Calvin cycle then uses ATP and NADPH to fix carbon dioxide into sugars. In summary, plants need"
    ),
)

NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def load_model(path: Path) -> Library:
    reader = gguf.GGUFReader(path)
    model = transformers.LlamaForCausalLM(_config(reader)).to(torch.float32).eval()
    config = model.config
    state = {}
    for tensor in reader.tensors:
        values = np.array(gguf.dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        values = values.reshape(tuple(reversed(tensor.shape.tolist())))
        if "attn_q" in tensor.name:
            values = _half_split(values, config.num_attention_heads)
        if "attn_k" in tensor.name:
            values = _half_split(values, config.num_key_value_heads)
        state[_hugging_face_name(tensor.name)] = torch.from_numpy(values)
    state.setdefault("lm_head.weight", state["model.embed_tokens.weight"])
    model.load_state_dict(state, strict=True)
    return model


def _config(reader: Library) -> Library:
    def value(name: str) -> Library:
        return reader.fields[f"llama.{name}"].contents()

    return transformers.LlamaConfig(
        vocab_size=value("vocab_size"),
        hidden_size=value("embedding_length"),
        intermediate_size=value("feed_forward_length"),
        num_hidden_layers=value("block_count"),
        num_attention_heads=value("attention.head_count"),
        num_key_value_heads=value("attention.head_count_kv"),
        max_position_embeddings=value("context_length"),
        rms_norm_eps=value("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": value("rope.freq_base")},
        tie_word_embeddings=not any(tensor.name == "output.weight" for tensor in reader.tensors),
        attn_implementation="eager",
    )


def _half_split(values: np.ndarray[Any, np.dtype[np.float32]], heads: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    rows, columns = values.shape
    return values.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _hugging_face_name(name: str) -> str:
    fixed = {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
    }
    if name in fixed:
        return fixed[name]
    _, layer, part, kind = name.split(".")
    return f"model.layers.{layer}.{NAMES[part]}.{kind}"


def golden_sequence(model: Library, text: str, prompt: list[int]) -> dict[str, Any]:
    tokens: list[int] = []
    for _ in range(TOKENS):
        # The whole sequence each time: no key-value cache whose bugs could become golden.
        logits = model(torch.tensor([prompt + tokens]), use_cache=False).logits[0, -1]
        tokens.append(int(logits.argmax()))
    whole = prompt + tokens
    scores = torch.log_softmax(model(torch.tensor([whole[:-1]]), use_cache=False).logits[0].double(), dim=-1)
    best = scores.topk(2, dim=-1)
    following = scores.gather(1, torch.tensor(whole[1:]).unsqueeze(1)).squeeze(1)
    return {
        "text": text,
        "prompt": prompt,
        "tokens": tokens,
        "argmax": best.indices[:, 0].tolist(),
        "lead": [round(float(first - second), 6) for first, second in best.values],
        "logprobs": [round(float(value), 6) for value in following],
    }


def main() -> None:
    checkpoint, vocabulary, target = (Path(argument) for argument in sys.argv[1:4])
    torch.set_grad_enabled(False)
    model, tokenizer = load_model(checkpoint), tokenizers.Tokenizer.from_file(str(vocabulary))
    sequences = [golden_sequence(model, text, tokenizer.encode(text).ids) for text in PROMPTS]
    document = {
        "source_sha256": hashlib.sha256(checkpoint.read_bytes()).hexdigest(),
        "made_with": {
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "gguf": metadata.version("gguf"),
            "python": platform.python_version(),
        },
        "sequences": sequences,
    }
    target.write_text(json.dumps(document, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
