"""What the server adds to the runner: one process, one runner, driven bare and by the server in turn; medians over rounds.

Two loads of one engine differ by several per cent by where their memory happens to lie, which is more than what is measured here.
So the server runs in the process of the bare loop, asked over gRPC by a client in a process of its own, and between its rounds
benchmarks/bare.py drives the very same runner. Greedy, same prompts, fresh in every round, so that the prefix cache never helps.
What is added differs from process to process, too, by more than from round to round: the figures are medians over several fresh ones.
The client's work runs on the same cores and counts against the server; benchmarks/asking.py keeps it small.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import statistics
import threading
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing.connection import Connection
from typing import Self

import msgspec
import numpy as np
import structlog

from benchmarks.asking import ServedRun, answer
from benchmarks.bare import BareLoop, BareRun
from benchmarks.figure import Figure, at_least, at_most
from benchmarks.shared_runner import SharedRunner
from engines.openvino import load
from engines.openvino.loader import read_manifest
from server.app import App
from server.assembly import chat_template, step_engine, text_tokenizer
from server.config import Config
from server.event_loop import loop_factory
from server.loading import LoadedModel
from server.phases import Phases
from tests.engines_built import default_engine

PROCESSES = 3
SINGLE_ROUNDS, SINGLE_PROMPT, SINGLE_TOKENS = 15, 16, 24
"""Of each process."""
CROWD_ROUNDS, CROWD, CROWD_PROMPT, CROWD_TOKENS = 2, 16, 64, 64


class Added(msgspec.Struct, frozen=True):
    """What one process found, each the median of its rounds. Seconds."""

    share: float
    """Throughput at 16 streams by the bare loop's."""
    ttft: float
    itl: float


def figures() -> list[Figure]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as fresh:
        found = list(fresh.map(measure, range(PROCESSES)))
    return [
        at_least(
            "throughput at 16 streams, share of the bare runner's",
            90,
            100 * statistics.median(added.share for added in found),
            "%",
        ),
        at_most("TTFT added at one stream, p50", 5, 1e3 * statistics.median(added.ttft for added in found), "ms"),
        at_most("ITL added at one stream, p50", 0.5, 1e3 * statistics.median(added.itl for added in found), "ms"),
    ]


def measure(seed: int) -> Added:
    """In this process. ``seed``: of the prompts."""
    config = Config.model_validate(
        {"grpc": {"port": 0}, "http": {"port": 0}, "telemetry": {"log_level": "error", "log_requests": False}}
    )
    directory = default_engine()
    manifest = read_manifest(directory)
    scheduler = config.scheduler
    runner = SharedRunner(load(directory, max_rows=scheduler.max_sequences, max_step_tokens=scheduler.step_tokens))
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    loading: Future[LoadedModel] = Future()
    tokenizer = text_tokenizer(manifest, (directory / "tokenizer.json").read_text(encoding="utf-8"))
    loading.set_result(
        LoadedModel(step_engine(runner, manifest, config, Phases()), tokenizer, chat_template(manifest, tokenizer))
    )
    bare = BareLoop(runner, scheduler.step_tokens, frozenset(manifest.tokenizer.end_ids), runner.first_foreign_sequence)
    with asyncio.Runner(loop_factory=loop_factory(uvloop=config.lifecycle.uvloop)) as loop:
        return loop.run(_serve_and_compare(App(config, loading, Phases()), bare, runner.limits.vocab_size, seed))


async def _serve_and_compare(app: App, bare: BareLoop, vocabulary: int, seed: int) -> Added:
    """The server lives in this loop; the comparing happens in a thread, as it blocks."""
    life = asyncio.create_task(app.run())
    while not app.readiness.ready:
        if life.done():
            raise RuntimeError(f"the server ended with {life.result()}")
        await asyncio.sleep(0.05)
    compared: Future[Added] = Future()

    def compare() -> None:
        try:
            with _Client(f"127.0.0.1:{app.grpc_port}") as client:
                compared.set_result(_compare(bare, client, vocabulary, seed))
        except BaseException as error:
            compared.set_exception(error)
            raise

    threading.Thread(target=compare, name="bench", daemon=True).start()
    try:
        return await asyncio.wrap_future(compared)
    finally:
        app.request_stop()
        await life


def _compare(bare: BareLoop, client: _Client, vocabulary: int, seed: int) -> Added:
    random = np.random.default_rng(seed)

    def prompts(count: int, length: int) -> list[list[int]]:
        drawn: list[list[int]] = random.integers(1000, vocabulary, (count, length)).tolist()
        return drawn

    def both(count: int, length: int, tokens: int) -> tuple[BareRun, ServedRun]:
        asked = prompts(count, length)
        return bare.run(asked, tokens), client.ask(asked, tokens)

    both(CROWD, CROWD_PROMPT, 8)  # warm, both
    singles = [both(1, SINGLE_PROMPT, SINGLE_TOKENS) for _ in range(SINGLE_ROUNDS)]
    crowds = [both(CROWD, CROWD_PROMPT, CROWD_TOKENS) for _ in range(CROWD_ROUNDS)]
    return Added(
        share=statistics.median(served.tokens_per_second / alone.tokens_per_second for alone, served in crowds),
        ttft=statistics.median(served.ttfts[0] - alone.ttfts[0] for alone, served in singles),
        itl=statistics.median(
            statistics.median(served.gaps) - statistics.median(alone.gaps) for alone, served in singles
        ),
    )


class _Client:
    """The asking side, in a process of its own."""

    def __init__(self, address: str) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._pipe: Connection = ours
        self._process = context.Process(target=answer, args=(address, theirs), daemon=True)
        self._process.start()

    def ask(self, prompts: list[list[int]], max_tokens: int) -> ServedRun:
        self._pipe.send((prompts, max_tokens))
        run: ServedRun = self._pipe.recv()
        return run

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.send(None)
        self._process.join(10)
