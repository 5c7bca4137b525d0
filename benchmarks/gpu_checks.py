"""The seven checks of `make gpu-check`. Each returns what it found, raises NotHereError where this machine cannot answer, or fails."""

from __future__ import annotations

import itertools
import json
import shutil
import statistics
import subprocess
import sys
import time
from array import array
from collections.abc import Callable
from importlib import import_module, metadata
from typing import Any

from benchmarks.gpu_features import features_are_taken
from benchmarks.gpu_workbench import Workbench, differing_tensors, greedy_log, signature, with_executor
from engines.contract import ExecutorFinish, ExecutorRequest, RequestExecutor
from engines.manifest_file import read_manifest
from engines.sampling.params import SamplingParams
from engines.trtllm.causes import find_cause
from engines.trtllm.native import load_bindings
from engines.trtllm.probe import EXPECTED, differences, named


def installed_names(bench: Workbench) -> dict[str, Any]:
    """1. Is the library what this adapter is written for, name by name?"""
    bench.require()
    bindings = load_bindings()
    found = differences(bindings)
    files = metadata.distribution("tensorrt_llm").files or []
    wheel = next((str(file) for file in files if file.name == "WHEEL"), None)
    classes = {one.name: _class_of(bindings, one.name) for one in EXPECTED}
    report = {
        "wheel_tags": metadata.distribution("tensorrt_llm").read_text("WHEEL") if wheel else None,
        "installed_bytes": sum(file.size or 0 for file in files),
        "signatures": {name: _signature_of(class_) for name, class_ in classes.items()},
        "names": {name: sorted(dir(class_)) for name, class_ in classes.items()},
        "build_config": signature("tensorrt_llm.builder", "BuildConfig"),
        "differences": found,
    }
    if found:
        raise AssertionError(json.dumps(report))
    return report


def _class_of(bindings: Any, name: str) -> Any:  # noqa: ANN401 - the library ships no types
    """None where the library has none of that name: the differences say so."""
    try:
        return named(bindings, name)
    except AttributeError:
        return None


def _signature_of(class_: Any) -> str:  # noqa: ANN401 - as above
    """nanobind writes what a constructor takes into its docstring."""
    texts = (getattr(class_, "__doc__", None), getattr(getattr(class_, "__init__", None), "__doc__", None))
    return "\n".join(text for text in texts if text)[:4000]


def rank_files(bench: Workbench) -> dict[str, Any]:
    """2. Are our rank files NVIDIA's own, byte for byte, and does trtllm-build take them?"""
    bench.require(2)
    bench.engine(2)
    if bench.nvidia_converter is None:
        return {"compiled": True, "compared": "no: give --nvidia-converter PATH/convert_checkpoint.py"}
    from build_scripts.source import default_cache, resolve

    source = resolve(bench.model, cache=default_cache(), progress=lambda _: None).path
    theirs = bench.folder / "nvidia"
    command = [sys.executable, str(bench.nvidia_converter), "--model_dir", str(source), "--output_dir", str(theirs)]
    subprocess.run([*command, "--dtype", "bfloat16", "--tp_size", "2"], check=True, timeout=3600)
    return {"compiled": True, "differing": differing_tensors(bench.folder / "tp2", theirs)}


def greedy_tokens(bench: Workbench) -> dict[str, Any]:
    """3. Under mpirun -n 2, does the engine say what transformers says?"""
    bench.require(2)
    numerics = read_manifest(bench.engine(2), "trtllm").numerics
    return {
        "reference": numerics.golden_reference,
        "equal": numerics.golden_greedy_equal,
        "of": numerics.golden_greedy_total,
    }


def failure_texts(bench: Workbench) -> dict[str, Any]:
    """4. Are a damaged plan's and a wrong rank count's error texts the ones that are mapped?"""
    bench.require()
    engine, damaged = bench.engine(1), bench.folder / "damaged"
    shutil.copytree(engine, damaged, dirs_exist_ok=True)
    plan = damaged / "rank0.engine"
    plan.write_bytes(plan.read_bytes()[: plan.stat().st_size // 2])
    cases = {"half a plan": (damaged, 1), "two ranks for tp 1": (engine, 2)}
    found = {}
    for name, (directory, ranks) in cases.items():
        log = greedy_log(directory, ranks)
        cause = find_cause(log)
        found[name] = {"cause": None if cause is None else cause[0].key, "log": log[-60:]}
    if any(one["cause"] is None for one in found.values()):
        raise AssertionError(json.dumps(found))
    return found


def cancel_and_time(bench: Workbench) -> dict[str, Any]:
    """5. Cancel, allotted time, priority, guides, bans, biases and the rest of a request: do they do what the contract says?"""
    bench.require()

    def both(executor: RequestExecutor) -> dict[str, Any]:
        return requests_are_controlled(executor) | {"features": features_are_taken(executor)}

    found: dict[str, Any] = with_executor(bench.engine(1), both)
    if any(said != "yes" for said in found["features"].values()):
        raise AssertionError(json.dumps(found))
    return found


def requests_are_controlled(executor: RequestExecutor) -> dict[str, Any]:
    """One running request is cancelled, one runs out of time, an urgent one overtakes. Raises AssertionError."""
    prompt = array("i", range(10, 30))

    def asked(number: int, **fields: object) -> ExecutorRequest:
        told: dict[str, Any] = {"max_tokens": 200, "priority": 0.5} | fields
        return ExecutorRequest(request=number, tokens=prompt, sampling=SamplingParams(seed=number), end_ids=(), **told)

    executor.enqueue([asked(1), asked(2, allotted_ms=50), asked(3, max_tokens=5, priority=1.0)])
    finishes: dict[int, ExecutorFinish | None] = {}
    late, cancelled_at, answered_at = 0, None, None
    end = time.monotonic() + 120
    while len(finishes) < 3:
        if time.monotonic() > end:
            raise AssertionError(f"only {finishes} have ended")
        for response in executor.await_responses(0.5):
            if response.error is not None:
                raise AssertionError(response.error)
            if response.request == 1 and cancelled_at is not None:
                late += len(response.tokens)
            if response.request == 1 and cancelled_at is None and response.tokens:
                executor.cancel(1)
                cancelled_at = time.perf_counter()
            if response.final:
                finishes[response.request] = response.finish
                answered_at = time.perf_counter() if response.request == 1 else answered_at
    expected = {1: ExecutorFinish.CANCELLED, 2: ExecutorFinish.TIMED_OUT, 3: ExecutorFinish.LENGTH}
    if finishes != expected:
        raise AssertionError(f"expected {expected}, got {finishes}")
    seconds = None if cancelled_at is None or answered_at is None else answered_at - cancelled_at
    return {"late_tokens": late, "cancel_seconds": seconds, "stats": str(executor.stats())}


def coexistence(bench: Workbench) -> dict[str, Any]:
    """6. Do gRPC, protobuf 6.33 and the library live in one environment and one process?"""
    bench.require()
    load_bindings()
    modules = ("grpc", "grpc_health.v1.health_pb2", "protos.firsttoken.v1.generation_pb2", "server.app")
    for name in modules:
        import_module(name)
    checked = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    versions = {name: metadata.version(name) for name in ("grpcio", "protobuf", "numpy", "tokenizers", "pydantic")}
    return {"versions": versions, "pip_check": checked.stdout.splitlines()[-20:]}


def overhead(bench: Workbench) -> dict[str, Any]:
    """7. What does a token cost through these bindings, and what through the library's own LLM class?"""
    bench.require()
    engine = bench.engine(1)
    ours = with_executor(engine, gaps_between_tokens)
    script = (
        "import sys, time, asyncio, json\n"
        "from tensorrt_llm._tensorrt_engine import LLM\n"
        "from tensorrt_llm import SamplingParams\n"
        "async def main():\n"
        # Ids in and out, as on our side: an engine directory has no tokenizer that the library would find.
        "    llm, times = LLM(model=sys.argv[1], skip_tokenizer_init=True), []\n"
        "    asked = SamplingParams(max_tokens=100, top_k=1, end_id=-1, pad_id=0, detokenize=False)\n"
        "    async for _ in llm.generate_async(list(range(10, 20)), asked, streaming=True):\n"
        "        times.append(time.perf_counter())\n"
        "    print(json.dumps([b - a for a, b in zip(times, times[1:])]))\n"
        "if __name__ == '__main__':\n"
        "    asyncio.run(main())\n"
    )
    program = bench.folder / "llm_api.py"
    program.write_text(script)
    done = subprocess.run(
        [sys.executable, str(program), str(engine)], capture_output=True, text=True, timeout=1200, check=True
    )
    theirs = json.loads(done.stdout.splitlines()[-1])
    return {"bindings_gap_ms": 1e3 * statistics.median(ours), "llm_gap_ms": 1e3 * statistics.median(theirs)}


def gaps_between_tokens(executor: RequestExecutor) -> list[float]:
    """Seconds between the tokens of one stream."""
    request = ExecutorRequest(
        request=1, tokens=array("i", range(10, 20)), max_tokens=100, sampling=SamplingParams(), end_ids=()
    )
    executor.enqueue([request])
    times: list[float] = []
    while True:
        for response in executor.await_responses(1.0):
            times += [time.perf_counter()] * len(response.tokens)
            if response.final:
                return [after - before for before, after in itertools.pairwise(times)]


CHECKS: list[tuple[str, Callable[[Workbench], Any]]] = [
    ((check.__doc__ or "").partition(". ")[2].splitlines()[0], check)
    for check in (
        installed_names,
        rank_files,
        greedy_tokens,
        failure_texts,
        cancel_and_time,
        coexistence,
        overhead,
    )
]
