"""The program that runs inside the exporter's environment: a Hugging Face directory into a stateful OpenVINO graph.

    PYTHON exporter.py versions
    PYTHON exporter.py export ORDER.json

``versions`` prints the versions of what it needs, as JSON, null for what is missing. ``export`` reads an order (source,
output, weights, prompts of token ids), writes model.xml and model.bin, and reference.json: what transformers' own forward
pass in float32 says of the prompts. It reads safetensors only and runs no code that a checkpoint brings. Nothing of this
project is imported here.
"""

from __future__ import annotations

import importlib
import json
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("optimum-intel", "optimum", "transformers", "torch", "openvino")
_SAFE = {"trust_remote_code": False, "local_files_only": True}


def main() -> None:
    if sys.argv[1:] == ["versions"]:
        sys.stdout.write(json.dumps(versions()) + "\n")
    else:
        export(json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")))


def versions() -> dict[str, str | None]:
    return {name: _version(name) for name in PACKAGES}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def export(order: dict[str, Any]) -> None:
    output = Path(order["output"])
    reference = _reference(order["source"], order["prompts"])
    (output / "reference.json").write_text(json.dumps(reference), encoding="utf-8")
    _write_graph(order["source"], output, order["weights"])


def _reference(source: str, prompts: list[list[int]]) -> dict[str, Any]:
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        source, torch_dtype=torch.float32, attn_implementation="eager", use_safetensors=True, **_SAFE
    ).eval()
    with torch.no_grad():
        sequences = [_sequence(model(torch.tensor([ids[:-1]])).logits[0], ids, torch) for ids in prompts]
    return {"parameters": sum(values.numel() for values in model.parameters()), "sequences": sequences}


def _sequence(logits: Any, ids: list[int], torch: Any) -> dict[str, Any]:  # noqa: ANN401 - a library that is not here
    table = logits.double().log_softmax(-1)
    best = table.topk(2, -1).values
    follows = torch.tensor(ids[1:])[:, None]
    return {
        "text": "",
        "prompt": ids,
        "tokens": [],
        "argmax": table.argmax(-1).tolist(),
        "lead": (best[:, 0] - best[:, 1]).tolist(),
        "logprobs": table.gather(1, follows)[:, 0].tolist(),
    }


def _write_graph(source: str, output: Path, weights: str) -> None:
    torch: Any = importlib.import_module("torch")
    intel: Any = importlib.import_module("optimum.intel")
    openvino: Any = importlib.import_module("openvino")
    model = intel.OVModelForCausalLM.from_pretrained(
        source, export=True, compile=False, stateful=True, load_in_8bit=False, torch_dtype=torch.float32, **_SAFE
    )
    openvino.save_model(model.model, str(output / "model.xml"), compress_to_fp16=weights == "f16")


if __name__ == "__main__":
    main()
