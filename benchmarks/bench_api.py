"""What the API costs and withstands, on simulated engines.

Token path: 64 streams of a server whose steps take 10 ms, and the same messages from a bare gRPC server, in turn; processor time of
each server's process over the messages that came, all threads, medians of interleaved rounds. What the simulated model itself takes, which
stands for a real one, is measured bare beside it and taken off; planning, hand-over and everything else of the server's counts.
Guides: 16 streams held to a JSON schema against 16 free ones of the same engine. Fuzz: 20,000 wild requests on both wires.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import TypeVar

import grpc
import psutil

from benchmarks.bare import BareLoop
from benchmarks.figure import Figure, at_least, at_most, equal
from benchmarks.served import serving
from benchmarks.shared_runner import SharedRunner
from engines.contract import StepHandle, StepPlan, StepResult
from engines.simulated.loading import load
from protos.firsttoken.v1 import generation_pb2 as pb
from protos.firsttoken.v1 import generation_pb2_grpc as rpc
from tests.rpc.wire_fuzz import KNOWN, fuzz

T = TypeVar("T")
STREAMS, TOKENS, ROUNDS = 64, 300, 3
GUIDED_STREAMS, GUIDED_TOKENS = 16, 200
WILD = 20_000
SCHEMA = (
    '{"type":"array","minItems":400,"items":{"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"}},'
    '"required":["name","age"],"additionalProperties":false}}'
)


def figures() -> list[Figure]:
    return [*token_path(), *guides(), *one_prompt(), *withstands()]


# ------------------------------------------------------------------ processor time a message


def token_path() -> list[Figure]:
    requests = [free(number, TOKENS) for number in range(STREAMS)]
    with bare() as (address, process), serving("simulated:steady", "--telemetry.log_requests", "false") as server:
        ours, theirs, model = [], [], []
        for _ in range(ROUNDS):
            theirs.append(cost(address, process, requests))
            ours.append(cost(server.address, server.process, requests))
            model.append(model_cost())
    per_message, floor, models = median(ours), median(theirs), median(model)
    return [
        at_most(
            f"server processor time per token message at {STREAMS} streams ({per_message * 1e6:.0f} us, less the simulated "
            f"model's {models * 1e6:.0f}), over a bare gRPC stream's ({floor * 1e6:.0f} us)",
            2.0,
            (per_message - models) / floor,
            "x",
        )
    ]


def model_cost() -> float:
    """Processor seconds a token of the simulated model, driven bare with as many streams, its waits included."""
    runner = _Metered(load("steady").engine)
    prompts = [list(f"Prompt {number}".encode()) for number in range(STREAMS)]
    BareLoop(runner, STREAMS * 16, frozenset()).run(prompts, TOKENS)
    runner.close()
    return runner.seconds / (STREAMS * TOKENS)


class _Metered(SharedRunner):
    """A step runner, and the processor time that its own calls take on the thread that drives it."""

    seconds = 0.0

    def start(self, plan: StepPlan) -> StepHandle:
        return self.timed(lambda: _MeteredHandle(self, super(_Metered, self).start(plan)))

    def timed(self, call: Callable[[], T]) -> T:
        began = time.thread_time()
        value = call()
        self.seconds += time.thread_time() - began
        return value


class _MeteredHandle:
    def __init__(self, runner: _Metered, handle: StepHandle) -> None:
        self._runner = runner
        self._handle = handle
        self.done = handle.done

    def result(self) -> StepResult:
        return self._runner.timed(self._handle.result)


def guides() -> list[Figure]:
    """Stated, and bounded by what a step of the default model leaves: 16 streams of 30 tokens/s."""
    with serving("simulated:steady", "--telemetry.log_requests", "false") as server:
        guided = [constrained(number, GUIDED_TOKENS) for number in range(GUIDED_STREAMS)]
        unguided = [free(number, GUIDED_TOKENS) for number in range(GUIDED_STREAMS)]
        cost(server.address, server.process, guided[:1])  # reads the tokenizer, compiles
        pairs = [
            (cost(server.address, server.process, guided), cost(server.address, server.process, unguided))
            for _ in range(ROUNDS)
        ]
    added = median(with_guide - without for with_guide, without in pairs)
    return [
        at_most(
            f"processor time that a JSON schema adds to a token at {GUIDED_STREAMS} streams", 500, added * 1e6, "us"
        )
    ]


@contextlib.contextmanager
def bare() -> Iterator[tuple[str, int]]:
    """A bare gRPC server in a process of its own: address and process id."""
    command = [sys.executable, "-m", "benchmarks.bare_stream"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        if process.stdout is None or process.stdin is None:
            raise RuntimeError("no pipes to the bare server")
        try:
            yield f"127.0.0.1:{process.stdout.readline().strip()}", process.pid
        finally:
            process.stdin.close()


def free(number: int, tokens: int) -> pb.GenerateRequest:
    return pb.GenerateRequest(
        prompt=pb.Prompt(text=f"Prompt {number}"), max_tokens=tokens, stop=pb.Stop(ignore_end=True)
    )


def constrained(number: int, tokens: int) -> pb.GenerateRequest:
    request = free(number, tokens)
    request.ClearField("stop")
    request.guide.json_schema = SCHEMA
    request.sampling.temperature, request.sampling.seed = 1.0, number
    return request


def cost(address: str, process: int, requests: Sequence[pb.GenerateRequest]) -> float:
    """Processor seconds of the whole server per message, all requests at once."""
    before = _process_seconds(process)
    messages = asyncio.run(_count(address, requests))
    return (_process_seconds(process) - before) / messages


def _process_seconds(process: int) -> float:
    times = psutil.Process(process).cpu_times()
    return times.user + times.system


async def _count(address: str, requests: Sequence[pb.GenerateRequest]) -> int:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = rpc.GenerationStub(channel)

        async def one(request: pb.GenerateRequest) -> int:
            return sum([1 async for message in stub.Generate(request) if message.delta.tokens])

        return sum(await asyncio.gather(*map(one, requests)))


# ------------------------------------------------------------------ one prompt, and the fuzz


def one_prompt() -> list[Figure]:
    """Each further output computes the prompt's last token once more, to draw from it, and nothing else of the prompt."""
    with serving("simulated:instant", "--lifecycle.warm_up", "false") as server:
        request = pb.GenerateRequest(prompt=pb.Prompt(text="y" * 512), max_tokens=1, n=8)
        asyncio.run(_complete(server.address, request))
        computed = sample(server.http, "firsttoken_computed_tokens_total")
    return [equal("tokens computed for 8 outputs of 1 token on a 512-token prompt", 512 + 7, int(computed))]


async def _complete(address: str, request: pb.GenerateRequest) -> pb.CompleteResponse:
    async with grpc.aio.insecure_channel(address) as channel:
        answer: pb.CompleteResponse = await rpc.GenerationStub(channel).Complete(request)
        return answer


def withstands() -> list[Figure]:
    with serving("simulated:instant", "--telemetry.log_requests", "false") as server:
        process = psutil.Process(server.process)
        asyncio.run(_fuzz(server.address, WILD // 4, seed=1))
        before = process.memory_info().rss
        codes = asyncio.run(_fuzz(server.address, WILD, seed=2))
        growth = process.memory_info().rss - before
        asyncio.run(_complete(server.address, free(1, 2)))
        held = sample(server.http, "firsttoken_running_sequences") + sample(server.http, "firsttoken_open_streams")
    return [
        equal(
            f"{WILD} fuzzed requests on both wires: answers outside the table of statuses",
            0,
            sum(codes[code] for code in codes if code not in KNOWN),
        ),
        at_least("of them served", 1000, codes[0], "requests"),
        at_most("memory that the server then holds more", 32, growth / 2**20, "MiB"),
        equal("seats and streams held after them", 0, int(held)),
    ]


def sample(http: str, name: str) -> float:
    """One metric's value, as the server tells it once its last step is over."""
    time.sleep(0.5)
    with urllib.request.urlopen(f"{http}/metrics") as page:  # noqa: S310 - our own loopback address
        lines = page.read().decode().splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[-1])


async def _fuzz(address: str, count: int, *, seed: int) -> dict[int, int]:
    async with grpc.aio.insecure_channel(address) as channel:
        return await fuzz(channel, count, seed=seed)
