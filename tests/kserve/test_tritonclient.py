"""NVIDIA's own client against the whole server: what TensorRT-LLM's users have code for works as it is."""

from __future__ import annotations

import asyncio
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from protos.firsttoken.v1 import generation_pb2 as pb
from protos.firsttoken.v1.generation_pb2_grpc import GenerationStub
from server.app import App
from tests.e2e.whole_server import ENGINES, say, serving
from tests.fakes.running import collect, until

PROGRAM = Path(__file__).with_name("triton_program.py")
WARM = pb.Sampling(temperature=1.0, seed=11)
# Looked for, never imported: its messages and ours bear the same names, and a process holds one of each.
pytestmark = pytest.mark.skipif(find_spec("tritonclient") is None, reason="tritonclient is not installed (extra dev)")


async def triton(app: App, scenario: str) -> Any:
    command = (sys.executable, str(PROGRAM), f"127.0.0.1:{app.grpc_port}", scenario)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)
    out, error = await process.communicate()
    assert process.returncode == 0, error.decode()
    return json.loads(out.decode().splitlines()[-1])


async def native(stub: GenerationStub, text: str, max_tokens: int, **fields: Any) -> str:
    return (await collect(stub.Generate(say(text, max_tokens=max_tokens, **fields))))[1]


@pytest.mark.parametrize("engine", ENGINES)
async def test_what_the_server_says_of_itself(engine: str) -> None:
    async with serving(engine) as (app, _):
        seen = await triton(app, "metadata")
        assert seen["live"]
        assert seen["ready"]
        assert seen["models"] == {
            "simulated-instant": True,
            "ensemble": True,
            "tensorrt_llm_bls": True,
            "tensorrt_llm": True,
            "nobody": False,
        }
        assert seen["server"]["name"] == "firsttoken"
        assert "statistics" in seen["server"]["extensions"]
        assert {"input_ids", "input_lengths", "request_output_len", "streaming", "stop"} <= set(seen["inputs"])
        assert seen["decoupled"] is True


@pytest.mark.parametrize("engine", ENGINES)
async def test_text_is_the_native_apis_for_the_same_seed_case_G1(engine: str) -> None:
    async with serving(engine) as (app, stub):
        expected = await native(stub, "Tell me", 30, sampling=WARM)
        seen = await triton(app, "text")
        assert seen["stream"]["text"] == expected
        assert seen["stream"]["error"] is None
        assert seen["stream"]["final"] == ["finish_reason", "triton_final_response"]
        assert seen["whole_on_a_stream"]["text"] == expected
        assert seen["whole_on_a_stream"]["parts"] == 2
        assert seen["infer"] == [expected]
        assert seen["with_prompt"] == ["Tell me" + expected]
        statistics = seen["statistics"]
        assert int(statistics["inference_count"]) == 4
        assert int(statistics["execution_count"]) > 0
        assert int(statistics["last_inference"]) > 0
        stats = statistics["inference_stats"]
        assert {int(stats[name]["count"]) for name in ("success", "queue", "compute_input", "compute_infer")} == {4}
        assert int(stats["success"]["ns"]) > 0


@pytest.mark.parametrize("engine", ENGINES)
async def test_tokens_in_tokens_out(engine: str) -> None:
    async with serving(engine) as (app, stub):
        expected, _, _ = await collect(stub.Generate(say("Tell me", max_tokens=30)))
        seen = await triton(app, "tokens")
        assert seen["whole"] == [[[*b"Tell me", *expected]]]
        assert seen["length"] == [[37]]
        assert seen["stream"]["ids"] == expected


@pytest.mark.parametrize("engine", ENGINES)
async def test_several_outputs_and_their_log_probabilities(engine: str) -> None:
    async with serving(engine) as (app, stub):
        answer = await stub.Complete(say("Tell me", max_tokens=20, n=3, sampling=WARM, logprobs=pb.Logprobs()))
        seen = await triton(app, "several")
        assert seen["texts"] == [output.text for output in answer.outputs]
        assert seen["indices"] == [0, 1, 2]
        assert seen["log_probs"] == [3, 20]
        assert seen["reasons"] == ["length"] * 3
        sums = [sum(position.logprob for position in output.logprobs) for output in answer.outputs]
        assert seen["sums"] == pytest.approx(sums, rel=1e-4)


@pytest.mark.parametrize("engine", ENGINES)
async def test_what_is_wrong_is_told_in_this_wires_names_case_M6(engine: str) -> None:
    expected = {
        "model": ("NOT_FOUND", "model: no 'nobody'"),
        "temperature": ("INVALID_ARGUMENT", "temperature: must be from 0 to 100, it is -1"),
        "beams": ("INVALID_ARGUMENT", "beam_width: must be 1"),
        "lora": ("INVALID_ARGUMENT", "lora_task_id: is part of the protocol but not built"),
        "unknown": ("INVALID_ARGUMENT", "inputs[nothing]: does not exist"),
        "batch": ("INVALID_ARGUMENT", "text_input: must have 1 element"),
        "datatype": ("INVALID_ARGUMENT", "max_tokens: must be INT"),
        "huge": ("INVALID_ARGUMENT", "max_tokens: must be from 0 to 8191, it is 2147483647"),
        "priority": ("INVALID_ARGUMENT", "parameters.priority: must be a whole number from 0 to 3, it is 9"),
        "parameter": ("INVALID_ARGUMENT", "parameters.mystery: does not exist"),
    }
    async with serving(engine) as (app, stub):
        seen = await triton(app, "errors")
        for name, (code, text) in expected.items():
            assert seen[name].startswith(f"StatusCode.{code} {text}"), (name, seen[name])
            assert f"{code}: {text}" in seen[f"{name} on a stream"], (name, seen[f"{name} on a stream"])
        for name in ("load_model", "unload_model", "get_trace_settings", "get_log_settings"):
            assert seen[name].startswith("StatusCode.UNIMPLEMENTED"), name
            assert "is not offered: " in seen[name]
        assert await native(stub, "Still here?", 3)


@pytest.mark.parametrize("engine", ENGINES)
async def test_stop_ends_a_request_by_its_id_case_D1(engine: str) -> None:
    async with serving(engine, "laptop", lifecycle__warm_up=False) as (app, _):
        seen = await triton(app, "stop")
        assert seen["finals"] == ["", "cancelled"]
        assert seen["parts"] < 1000


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_queue_timeout_ends_who_waits_case_E2_E10(engine: str) -> None:
    async with serving(engine, "laptop", scheduler__max_sequences=1, lifecycle__warm_up=False) as (app, stub):
        blocker = stub.Generate(say("Long", max_tokens=8000))
        await blocker.read()
        seen = await triton(app, "timeout")
        assert seen["error"].startswith("StatusCode.DEADLINE_EXCEEDED")
        blocker.cancel()


@pytest.mark.parametrize("engine", ENGINES)
async def test_the_asynchronous_client_streams_side_by_side_and_leaves(engine: str) -> None:
    async with serving(engine, "laptop", lifecycle__warm_up=False) as (app, stub):
        seen = await triton(app, "aio")
        expected = [await native(stub, f"Prompt {number}", 20, sampling=WARM) for number in range(8)]
        assert seen["streamed"] == seen["whole"] == expected
        assert seen["cancelled"] == 3
        await until(lambda: not app._open_streams())


async def test_the_wire_is_tritons_field_by_field() -> None:
    """Names, numbers and types of everything that we define are the public client's own."""
    program = """
import json, sys
from tritonclient.grpc import model_config_pb2, service_pb2
print(json.dumps({
    name: {f.name: [f.number, f.type, f.message_type.name if f.message_type else None] for f in message.fields}
    for module in (model_config_pb2, service_pb2) for name, message in module.DESCRIPTOR.message_types_by_name.items()
}))
"""
    from protos.inference import grpc_service_pb2 as wire

    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=pipe)
    theirs = json.loads((await process.communicate())[0])
    ours = wire.DESCRIPTOR.message_types_by_name
    for name, message in ours.items():
        if name == "NotOffered":
            continue
        for field in message.fields:
            kind = field.message_type.name if field.message_type else None
            assert theirs[name][field.name] == [field.number, field.type, kind], f"{name}.{field.name}"
    assert len(ours) > 25
