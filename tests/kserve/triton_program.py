"""A user of this wire: NVIDIA's own client, in a process of its own (two copies of its messages cannot live in one).

``python triton_program.py TARGET SCENARIO`` prints what it saw as one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import queue
import sys
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio


def tensor(name: str, value: Any, kind: str, module: Any = triton) -> Any:
    dtypes: dict[str, Any] = {
        "BYTES": np.object_,
        "INT32": np.int32,
        "UINT64": np.uint64,
        "FP32": np.float32,
        "BOOL": np.bool_,
    }
    array = np.array(value, dtype=dtypes[kind])
    made = module.InferInput(name, list(array.shape), kind)
    made.set_data_from_numpy(array)
    return made


def text_inputs(prompt: str, max_tokens: int, module: Any = triton, **more: tuple[Any, str]) -> list[Any]:
    inputs = [
        tensor("text_input", [[prompt.encode()]], "BYTES", module),
        tensor("max_tokens", [[max_tokens]], "INT32", module),
        tensor("exclude_input_in_output", [[True]], "BOOL", module),
    ]
    return inputs + [tensor(name, value, kind, module) for name, (value, kind) in more.items()]


WARM = {"temperature": ([[1.0]], "FP32"), "random_seed": ([[11]], "UINT64")}


def streamed(client: Any, model: str, inputs: list[Any], request_id: str = "", **more: Any) -> dict[str, Any]:
    """One request on a stream of its own, until its final response."""
    heard: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: heard.put((result, error)))
    client.async_stream_infer(model, inputs, request_id=request_id, enable_empty_final_response=True, **more)
    texts: list[str] = []
    ids: list[int] = []
    responses, error = 0, None
    final: dict[str, str] = {}
    while not final:
        result, failure = heard.get(timeout=60)
        if failure is not None:
            error = str(failure)
            break
        response = result.get_response()
        responses += 1
        if response.parameters["triton_final_response"].bool_param:
            final = {name: str(value) for name, value in response.parameters.items()}
        if (text := result.as_numpy("text_output")) is not None:
            texts.append(b"".join(text.flatten().tolist()).decode())
        if (output := result.as_numpy("output_ids")) is not None:
            ids += output.flatten().tolist()
    client.stop_stream()
    return {"text": "".join(texts), "ids": ids, "parts": responses, "error": error, "final": sorted(final)}


def metadata(client: Any) -> dict[str, Any]:
    index = client.get_model_repository_index(as_json=True)["models"]
    names = [model["name"] for model in index]
    config = client.get_model_config("ensemble", as_json=True)["config"]
    return {
        "live": client.is_server_live(),
        "ready": client.is_server_ready(),
        "models": {name: client.is_model_ready(name) for name in [*names, "nobody"]},
        "server": client.get_server_metadata(as_json=True),
        "inputs": [each["name"] for each in client.get_model_metadata("tensorrt_llm", as_json=True)["inputs"]],
        "decoupled": config["model_transaction_policy"]["decoupled"],
    }


def text(client: Any) -> dict[str, Any]:
    stream = text_inputs("Tell me", 30, stream=([[True]], "BOOL"), **WARM)
    return {
        "stream": streamed(client, "ensemble", stream),
        "whole_on_a_stream": streamed(client, "ensemble", text_inputs("Tell me", 30, **WARM)),
        "infer": infer_text(client, text_inputs("Tell me", 30, **WARM)),
        "with_prompt": infer_text(client, [*text_inputs("Tell me", 30, **WARM)[:2], *text_inputs("", 0, **WARM)[3:]]),
        "statistics": client.get_inference_statistics("ensemble", as_json=True)["model_stats"][0],
    }


def infer_text(client: Any, inputs: list[Any]) -> list[str]:
    result = client.infer("ensemble", inputs, request_id="one")
    assert result.get_response().id == "one"
    return [each.decode() for each in result.as_numpy("text_output").flatten().tolist()]


def tokens(client: Any) -> dict[str, Any]:
    ids = list(b"Tell me")
    inputs = [
        tensor("input_ids", [ids + [0] * 3], "INT32"),
        tensor("input_lengths", [[len(ids)]], "INT32"),
        tensor("request_output_len", [[30]], "INT32"),
    ]
    whole = client.infer("tensorrt_llm", inputs)
    streaming = [*inputs, tensor("streaming", [[True]], "BOOL")]
    return {
        "whole": whole.as_numpy("output_ids").tolist(),
        "length": whole.as_numpy("sequence_length").tolist(),
        "stream": streamed(client, "tensorrt_llm", streaming),
    }


def several(client: Any) -> dict[str, Any]:
    inputs = text_inputs(
        "Tell me", 20, num_return_sequences=([[3]], "INT32"), return_log_probs=([[True]], "BOOL"), **WARM
    )
    result = client.infer("ensemble", inputs, outputs=None)
    return {
        "texts": [each.decode() for each in result.as_numpy("text_output").tolist()],
        "indices": result.as_numpy("sequence_index").tolist(),
        "log_probs": result.as_numpy("output_log_probs").shape,
        "sums": [float(value) for value in result.as_numpy("cum_log_probs")],
        "reasons": [each.decode() for each in result.as_numpy("finish_reason").tolist()],
    }


def errors(client: Any) -> dict[str, str]:
    """What a wrong request hears, whole and on a stream."""
    said: dict[str, str] = {}
    cases: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
        "model": ("nobody", text_inputs("x", 1), {}),
        "temperature": ("ensemble", text_inputs("x", 1, temperature=([[-1.0]], "FP32")), {}),
        "beams": ("ensemble", text_inputs("x", 1, beam_width=([[2]], "INT32")), {}),
        "lora": ("ensemble", text_inputs("x", 1, lora_task_id=([[2]], "UINT64")), {}),
        "unknown": ("ensemble", text_inputs("x", 1, nothing=([[2]], "INT32")), {}),
        "batch": ("ensemble", [tensor("text_input", [[b"a"], [b"b"]], "BYTES"), *text_inputs("x", 1)[1:]], {}),
        "datatype": ("ensemble", [*text_inputs("x", 1)[:1], tensor("max_tokens", [[b"1"]], "BYTES")], {}),
        "huge": ("ensemble", text_inputs("x", 2**31 - 1), {}),
        "priority": ("ensemble", text_inputs("x", 1), {"priority": 9}),
        "parameter": ("ensemble", text_inputs("x", 1), {"parameters": {"mystery": 1}}),
    }
    for name, (model, inputs, more) in cases.items():
        try:
            client.infer(model, inputs, **more)
            said[name] = "nothing"
        except triton.InferenceServerException as error:
            said[name] = f"{error.status()} {error.message()}"
        said[f"{name} on a stream"] = str(streamed(client, model, inputs, **more)["error"])
    for name in ("load_model", "unload_model", "get_trace_settings", "get_log_settings"):
        try:
            getattr(client, name)(*(["ensemble"] if "model" in name else []))
        except triton.InferenceServerException as error:
            said[name] = f"{error.status()} {error.message()}"
    return said


def stop(client: Any) -> dict[str, Any]:
    """A second request of the same id ends the first, on the same stream."""
    heard: queue.Queue[tuple[Any, Any]] = queue.Queue()
    client.start_stream(lambda result, error: heard.put((result, error)))
    inputs = text_inputs("Go on", 5000, stream=([[True]], "BOOL"))
    client.async_stream_infer("ensemble", inputs, request_id="mine", enable_empty_final_response=True)
    heard.get(timeout=60)
    client.async_stream_infer(
        "ensemble", [tensor("stop", [[True]], "BOOL")], request_id="mine", enable_empty_final_response=True
    )
    finals: list[str] = []
    parts = 1
    while len(finals) < 2:
        result, error = heard.get(timeout=60)
        assert error is None, error
        parameters = result.get_response().parameters
        parts += 1
        if parameters["triton_final_response"].bool_param:
            finals.append(parameters["finish_reason"].string_param)
    client.stop_stream()
    return {"finals": sorted(finals), "parts": parts}


def timeout(client: Any) -> dict[str, Any]:
    """The server is full: a queue timeout ends who waits."""
    try:
        client.infer("ensemble", text_inputs("late", 5), timeout=50_000)
    except triton.InferenceServerException as error:
        return {"error": f"{error.status()} {error.message()}"}
    return {"error": None}


async def aio(target: str) -> dict[str, Any]:
    async with triton_aio.InferenceServerClient(target) as client:

        async def requests() -> AsyncIterator[dict[str, Any]]:
            for number in range(8):
                more = {"stream": ([[True]], "BOOL"), **WARM}
                yield {
                    "model_name": "ensemble",
                    "inputs": text_inputs(f"Prompt {number}", 20, triton_aio, **more),
                    "request_id": str(number),
                    "enable_empty_final_response": True,
                }

        texts: dict[str, str] = {str(number): "" for number in range(8)}
        finals = 0
        responses = client.stream_infer(requests())
        async for result, error in responses:
            assert error is None, error
            response = result.get_response()
            finals += response.parameters["triton_final_response"].bool_param
            text = result.as_numpy("text_output")
            if text is not None:
                texts[response.id] += b"".join(text.tolist()).decode()
            if finals == 8:
                break
        whole = [
            await client.infer("ensemble", text_inputs(f"Prompt {number}", 20, triton_aio, **WARM))
            for number in range(8)
        ]
        cancelled = await cancel(client)
    return {
        "streamed": list(texts.values()),
        "whole": [result.as_numpy("text_output").tolist()[0].decode() for result in whole],
        "cancelled": cancelled,
    }


async def cancel(client: Any) -> int:
    """Leave in the middle of a stream; what was heard until then."""

    async def endless() -> AsyncIterator[dict[str, Any]]:
        inputs = text_inputs("Go on", 5000, triton_aio, stream=([[True]], "BOOL"))
        yield {"model_name": "ensemble", "inputs": inputs, "request_id": "left"}
        await asyncio.sleep(60)

    heard = 0
    call = client.stream_infer(endless())
    async for _ in call:
        heard += 1
        if heard == 3:
            break
    call.cancel()
    return heard


SCENARIOS = {
    "metadata": metadata,
    "text": text,
    "tokens": tokens,
    "several": several,
    "errors": errors,
    "stop": stop,
    "timeout": timeout,
}


def main() -> None:
    target, scenario = sys.argv[1:]
    seen = asyncio.run(aio(target)) if scenario == "aio" else SCENARIOS[scenario](triton.InferenceServerClient(target))
    print(json.dumps(seen))  # noqa: T201 - how the test hears of it


if __name__ == "__main__":
    main()
