"""What the contract fake of TensorRT-LLM does with requests: hands them to the simulated executor, in the library's manner of speaking."""

from __future__ import annotations

import itertools
import threading
from array import array
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from engines.contract import EngineDeadError, ExecutorRequest, ExecutorStats
from engines.sampling.params import SamplingParams
from engines.simulated.clock import RealClock
from engines.simulated.cost import CostModel
from engines.simulated.executor import SimulatedExecutor
from engines.simulated.faults import Faults
from engines.simulated.language import Language

HABITS = "fake.json"
"""Beside config.json: how the fake speaks and fails (FakeHabits)."""
FIRST_ID = 1001
"""The library numbers requests by itself; not from 1, so that ids cannot be taken for each other."""
FAULTS: dict[str, Faults] = {}
"""By engine directory: faults that a test throws while the fake runs."""


class FakeHabits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    seed: int = 3
    end_rate: float = 0.02
    end_ids: tuple[int, ...] = (2,)
    fixed: float = 4e-4
    """Seconds of an iteration."""
    per_new_token: float = 1e-6
    fail_requests: dict[int, str] = {}
    """Error text by the library's id: the first request after the first light has FIRST_ID + 1."""
    alphabet: tuple[int, ...] | None = None

    @classmethod
    def read(cls, directory: Path) -> FakeHabits:
        path = directory / HABITS
        return msgspec.json.decode(path.read_bytes(), type=cls) if path.exists() else cls()


class FakeEvents:
    """Changes of the cache since they were last asked for; beyond ``size`` the oldest are dropped, and their numbers are missing then."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._numbers = itertools.count()
        self._waiting: deque[tuple[int, bool, int]] = deque(maxlen=size)

    def note(self, reusable: bool, key: object) -> None:
        self._waiting.append((next(self._numbers), reusable, hash(key)))

    def take(self) -> list[tuple[int, bool, int]]:
        """(number, whether it became reusable, hash)."""
        taken = []
        while self._waiting:
            taken.append(self._waiting.popleft())
        return taken


@dataclass
class _Inside:
    client_id: int | None
    prompt: list[int]
    excludes_input: bool
    log_probs: bool
    perf_metrics: bool
    said: dict[int, int] = field(default_factory=dict)
    """Tokens so far by sequence."""


class FakeEngine:
    """Leader only. Any thread."""

    def __init__(self, directory: Path, document: dict[str, Any], config: Any) -> None:
        habits = FakeHabits.read(directory)
        build = document["build_config"]
        self.block_size = int(build["plugin_config"]["tokens_per_block"])
        self.adapters = _prefetched(config.peft_cache_config.lora_prefetch_dir)
        self.events = FakeEvents(config.kv_cache_config.event_buffer_max_size)
        faults = FAULTS.get(str(directory)) or Faults(fail_requests=habits.fail_requests)
        language = Language(
            document["pretrained_config"]["vocab_size"],
            end_ids=habits.end_ids,
            end_rate=habits.end_rate,
            seed=habits.seed,
            alphabet=habits.alphabet,
        )
        self._executor = SimulatedExecutor(
            language,
            blocks=config.kv_cache_config.max_tokens // self.block_size,
            block_size=self.block_size,
            max_batch_size=min(config.max_batch_size, build["max_batch_size"]),
            max_num_tokens=min(config.max_num_tokens, build["max_num_tokens"]),
            max_context=build["max_seq_len"],
            cost=CostModel(fixed=habits.fixed, per_new_token=habits.per_new_token),
            clock=RealClock(),
            faults=faults,
            journal=self.events.note,
        )
        self._lock = threading.Lock()
        self._ids = itertools.count(FIRST_ID)
        self._inside: dict[int, _Inside] = {}
        self._told_iteration = 0
        self.closed = False

    def enqueue(self, requests: list[Any]) -> list[int]:
        for request in requests:
            lora = request.lora_config
            if lora is not None and lora.weights is None and lora.task_id not in self.adapters:
                raise RuntimeError(
                    f"LoRA task {lora.task_id} not found in cache. Please send LoRA weights with request"
                )
        with self._lock:
            ids = [next(self._ids) for _ in requests]
            for number, request in zip(ids, requests, strict=True):
                output = request.output_config
                self._inside[number] = _Inside(
                    request.client_id,
                    request.input_token_ids,
                    output.exclude_input_from_output,
                    output.return_log_probs,
                    output.return_perf_metrics,
                )
        self._alive(lambda: self._executor.enqueue([_ours(n, one) for n, one in zip(ids, requests, strict=True)]))
        return ids

    def cancel(self, number: int) -> None:
        self._alive(lambda: self._executor.cancel(number))

    def await_responses(self, seconds: float) -> list[tuple[int, int | None, dict[str, Any]]]:
        responses = self._alive(lambda: self._executor.await_responses(seconds))
        with self._lock:
            return [self._spoken(response) for response in responses]

    def new_stats(self) -> ExecutorStats | None:
        """None where no iteration ran since the last time."""
        stats = self._executor.stats()
        if stats.iterations == self._told_iteration:
            return None
        self._told_iteration = stats.iterations
        return stats

    def close(self) -> None:
        self.closed = True
        self._executor.close()

    def _alive(self, call: Any) -> Any:
        try:
            return call()
        except EngineDeadError as error:
            raise RuntimeError(
                f"[TensorRT-LLM][ERROR] Encountered an error in forwardAsync function: {error}"
            ) from error

    def _spoken(self, response: Any) -> tuple[int, int | None, dict[str, Any]]:
        inside = self._inside[response.request]
        tokens, index = list(response.tokens), response.sequence_index
        first = index not in inside.said
        said = inside.said[index] = inside.said.get(index, 0) + len(tokens)
        if first and not inside.excludes_input:
            tokens = inside.prompt + tokens
        reused = None
        if response.final:
            del self._inside[response.request]
            if inside.perf_metrics and response.cached_tokens is not None:
                reused = response.cached_tokens // self.block_size
        spoken = {
            "tokens": tokens,
            "index": index,
            "finish": response.finish.name if response.finish is not None else "NOT_FINISHED",
            "final": response.final,
            "error": response.error or "",
            "reused": reused,
            "log_probs": [[-float(at + 1) for at in range(said)]] if inside.log_probs else None,
        }
        return response.request, inside.client_id, spoken


def _prefetched(directory: str | None) -> dict[int, bytes]:
    """Numbers of the adapters that were there when the executor was made, and their weights' bytes."""
    if directory is None:
        return {}
    found = {}
    for folder in Path(directory).iterdir():
        (folder / "model.lora_config.npy").read_bytes()
        found[int(folder.name)] = (folder / "model.lora_weights.npy").read_bytes()
    return found


def _ours(number: int, request: Any) -> ExecutorRequest:
    sampling = request.sampling_config
    if not request.streaming:
        raise RuntimeError("the fake streams only")
    greedy = sampling.temperature is None
    if greedy and sampling.top_k != 1:
        raise RuntimeError("the fake wants to be told how to draw")
    params = SamplingParams(
        temperature=0.0 if greedy else sampling.temperature,
        top_k=0 if greedy else sampling.top_k,
        top_p=1.0 if greedy else sampling.top_p,
        min_p=sampling.min_p or 0.0,
        seed=sampling.seed,
    )
    if request.guided_decoding_params is not None and request.guided_decoding_params.guide == "unsupported":
        raise RuntimeError("[TensorRT-LLM][ERROR] xgrammar: unsupported pattern")
    allotted = request.allotted_time_ms
    return ExecutorRequest(
        request=number,
        tokens=array("i", request.input_token_ids),
        max_tokens=request.max_tokens,
        sampling=params,
        end_ids=() if request.end_id is None else (request.end_id,),
        stop_ids=tuple(run[0] for run in request.stop_words or () if len(run) == 1),
        n=sampling.num_return_sequences or 1,
        priority=request.priority,
        allotted_ms=None if allotted is None else round(allotted.total_seconds() * 1000),
        salt=_kept_apart(request),
    )


def _kept_apart(request: Any) -> int | None:
    """Keys and values depend on the adapter, so its blocks are nobody else's."""
    adapter = 0 if request.lora_config is None else request.lora_config.task_id
    return ((request.cache_salt_id or 0) << 32) + adapter or None
