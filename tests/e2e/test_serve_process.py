"""The server as its operators meet it: a process, signals, exit statuses, a killed client."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import grpc
import pytest

from protos.firsttoken.v1 import generation_pb2 as pb
from protos.firsttoken.v1.generation_pb2_grpc import GenerationStub
from tests.e2e.process import ROOT, serve_command, served
from tests.e2e.whole_server import ENGINES
from tests.fakes.ports import unused_port

NEVER_LOADED = """
import sys, time, server.loading
def load_model(config, phases, under_way):
    print("loading", flush=True)
    time.sleep(600)
server.loading.load_model = load_model
from firsttoken.commands.serve import run_raw
sys.exit(run_raw(["simulated:instant", "--grpc.port", "0", "--http.port", "0"]))
"""
CLIENT = """
import sys, grpc
from protos.firsttoken.v1 import generation_pb2 as pb
from protos.firsttoken.v1.generation_pb2_grpc import GenerationStub
request = pb.GenerateRequest(prompt=pb.Prompt(text="Tell me everything"), max_tokens=4000)
for message in GenerationStub(grpc.insecure_channel(sys.argv[1])).Generate(request):
    print(message.delta.text, flush=True)
"""


def until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "too late"
        time.sleep(0.02)


def run_serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(serve_command(*arguments), cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_killed_amid_its_stream_leaves_nothing_behind_case_D5_D12(engine: str) -> None:
    with served(engine=f"{engine}:laptop") as server:
        client = subprocess.Popen([sys.executable, "-c", CLIENT, server.target], cwd=ROOT, stdout=subprocess.PIPE)
        assert client.stdout is not None
        client.stdout.readline()
        until(lambda: server.metric("firsttoken_running_sequences") == 1)
        assert server.metric('firsttoken_kv_blocks{state="in_use"}') > 0
        client.send_signal(signal.SIGKILL)
        client.wait()
        client.stdout.close()
        until(lambda: server.metric("firsttoken_running_sequences") == 0)
        until(lambda: server.metric('firsttoken_kv_blocks{state="in_use"}') == 0)
        until(lambda: server.metric("firsttoken_open_streams") == 0)
        until(lambda: server.metric('firsttoken_requests_total{class="interactive",outcome="cancelled"}') == 1)
        until(lambda: any(line["event"] == "request" for line in server.log()))
        ended = next(line for line in server.log() if line["event"] == "request")
        assert ended["outcome"] == "cancelled"


@pytest.mark.parametrize(("signals", "status"), [(1, 0), (2, 1)])
@pytest.mark.parametrize("engine", ENGINES)
def test_sigterm_drains_and_a_second_one_does_not_wait_case_I1_I3(engine: str, signals: int, status: int) -> None:
    with served("--lifecycle.drain_grace", "1" if signals == 1 else "600", engine=f"{engine}:laptop") as server:
        with grpc.insecure_channel(server.target) as channel:
            request = pb.GenerateRequest(prompt=pb.Prompt(text="Go on"), max_tokens=4000)
            call = GenerationStub(channel).Generate(request)
            next(call)
            server.process.send_signal(signal.SIGTERM)
            if signals == 2:
                # Only one that was heard can be followed by a second: the system merges those that wait.
                until(lambda: any(line["event"] == "draining" for line in server.log()))
                server.process.send_signal(signal.SIGTERM)
            with pytest.raises(grpc.RpcError):
                list(call)
            assert call.code() is grpc.StatusCode.UNAVAILABLE
        assert server.process.wait(60) == status
        assert server.log()[-1]["event"] == "stopped"


def test_after_kill_9_it_starts_again_on_the_same_ports_as_if_nothing_had_been() -> None:
    ports = ("--grpc.port", str(unused_port()), "--http.port", str(unused_port()))
    with served(*ports) as first:
        with grpc.insecure_channel(first.target) as channel:
            request = pb.GenerateRequest(prompt=pb.Prompt(text="Go on"), max_tokens=4000)
            call = GenerationStub(channel).Generate(request)
            next(call)
            first.process.send_signal(signal.SIGKILL)
            with pytest.raises(grpc.RpcError):
                list(call)
            assert call.code() is grpc.StatusCode.UNAVAILABLE
        assert first.process.wait(60) == -signal.SIGKILL
    with served(*ports) as again, grpc.insecure_channel(again.target) as channel:
        request = pb.GenerateRequest(prompt=pb.Prompt(text="Go on"), max_tokens=5)
        assert list(GenerationStub(channel).Generate(request))[-1].HasField("final")


def test_sigterm_is_handled_before_there_is_a_server() -> None:
    """A container's first process would not even be ended by one that it does not handle."""
    with subprocess.Popen([sys.executable, "-c", NEVER_LOADED], cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"loading\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM


def test_the_effective_settings_are_printed_with_their_sources() -> None:
    done = run_serve("some-engine", "--print-config", "--grpc.port=7")
    assert done.returncode == 0
    tree = tomllib.loads(done.stdout)
    assert (tree["engine"]["directory"], tree["grpc"]["port"]) == ("some-engine", 7)
    assert "port = 7  # --grpc.port" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--grpc.prot", "1"], 2, "did you mean --grpc.port"),
        (["--frobnicate"], 2, "unknown option --frobnicate"),
        (["one", "two"], 2, "two engines: one and two"),
        (["--config", "/does/not/exist.toml"], 2, "No such file"),
        (["--help"], 0, "--scheduler.step_tokens (default 512)"),
        (["simulated:nonsense", "--grpc.port", "0", "--http.port", "0"], 1, "must be one of"),
        (
            ["simulated:instant", "--engine.adapters", "x", "--grpc.port", "0", "--http.port", "0"],
            1,
            "simulated:instant takes no adapters, only TensorRT-LLM engines do",
        ),
        (["/does/not/exist", "--grpc.port", "0", "--http.port", "0"], 1, "build one with `firsttoken build`"),
    ],
)
def test_what_cannot_work_is_said_in_words(arguments: list[str], status: int, words: str) -> None:
    done = run_serve(*arguments)
    assert done.returncode == status
    assert words in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        ("", "engine.json"),
        ('{"schema_version": 1, "engine": "openvino"', "engine.json"),
        ('{"schema_version": 99}', "schema_version must be 1, got 99"),
        ('{"schema_version": 1, "engine": "openvino", "surprise": 1}', "engine.json"),
    ],
    ids=["empty", "cut off", "of another version", "of no version"],
)
def test_a_corrupted_manifest_is_refused_by_name_and_never_served(tmp_path: Path, manifest: str, words: str) -> None:
    (tmp_path / "engine.json").write_text(manifest)
    done = run_serve(str(tmp_path), "--grpc.port", "0", "--http.port", "0")
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("uvloop", "loop"), [("true", "uvloop"), ("false", "asyncio")])
def test_either_event_loop_drives_it_and_the_log_names_it(uvloop: str, loop: str) -> None:
    with served("--lifecycle.uvloop", uvloop, engine="simulated:laptop") as server:
        with grpc.insecure_channel(server.target) as channel:
            request = pb.GenerateRequest(prompt=pb.Prompt(text="Go on"), max_tokens=5)
            assert len(list(GenerationStub(channel).Generate(request))) >= 2
        until(lambda: any(line["event"] == "serving" for line in server.log()))
        assert next(line for line in server.log() if line["event"] == "serving")["event_loop"] == loop
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
