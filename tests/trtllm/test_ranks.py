"""One command, two ranks over real MPI, TensorRT-LLM replaced by the contract fake: served, drained, killed in every way."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

import grpc
import psutil
import pytest

from protos.firsttoken.v1 import generation_pb2 as pb
from protos.firsttoken.v1.generation_pb2_grpc import GenerationStub
from tests.trtllm.job import Job, job, require_mpi, wait_for

GONE = 5.0
"""Seconds from a kill until no process of the job may be left, however busy the machine is."""
STREAMS = 16
TOKENS = 60


@pytest.fixture(autouse=True)
def _mpi() -> None:
    require_mpi()


class Streams:
    """Sixteen clients, each reading its stream on a thread of its own."""

    def __init__(self, target: str, tokens: int = TOKENS) -> None:
        self.counts = [0] * STREAMS
        self.codes: list[grpc.StatusCode | None] = [None] * STREAMS
        self._channel = grpc.insecure_channel(target)
        self._tokens = tokens
        self._threads = [threading.Thread(target=self._read, args=(at,), daemon=True) for at in range(STREAMS)]
        for thread in self._threads:
            thread.start()
        wait_for(lambda: all(self.counts), 60.0, lambda: f"got {self.counts}")

    def _read(self, at: int) -> None:
        request = pb.GenerateRequest(prompt=pb.Prompt(text=f"Tell me about {at}"), max_tokens=self._tokens)
        call = GenerationStub(self._channel).Generate(request)
        try:
            for message in call:
                self.counts[at] += len(message.delta.tokens)
        except grpc.RpcError:
            pass
        self.codes[at] = call.code()

    def join(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
            assert not thread.is_alive(), f"a stream still hangs: {self.codes}"
        self._channel.close()


def test_sigterm_loses_no_stream_and_ends_with_zero_case_i1_k3() -> None:
    with job() as running:
        assert_the_start_was_told(running)
        assert len({running.rank(0).pid, running.rank(1).pid, running.mpirun().pid, running.process.pid}) == 4
        streams = Streams(running.target)
        running.process.send_signal(signal.SIGTERM)
        streams.join(90)
        assert running.process.wait(30) == 0
        assert streams.codes == [grpc.StatusCode.OK] * STREAMS
        assert streams.counts == [TOKENS] * STREAMS
        running.wait_until_gone(5)


def assert_the_start_was_told(running: Job) -> None:
    """Who waits for a start sees of what it consists: the supervisor's parts, and the leader's."""
    told = {"preflight", "ranks_joined", "ranks_loaded", "load", "import", "ports", "warm_up", "ready"}
    # It is ready a moment before it says so.
    wait_for(lambda: running.phases().keys() == told, 60.0, lambda: str(running.phases()))
    phases = running.phases()
    assert 0 < phases["ranks_joined"] <= phases["ranks_loaded"]
    assert next(iter(phases)) == "preflight"
    assert list(phases)[-1] == "ready"


def kill_supervisor(running: Job) -> None:
    running.process.kill()


@pytest.mark.parametrize(
    ("kill", "remains"),
    [
        (lambda running: running.rank(0).kill(), True),
        (lambda running: running.rank(1).kill(), True),
        (lambda running: running.mpirun().kill(), True),
        (kill_supervisor, False),
    ],
    ids=["leader", "other-rank", "mpirun", "supervisor"],
)
def test_a_killed_process_takes_all_with_it_case_b7(kill: Callable[[Job], None], remains: bool) -> None:
    with job() as running:
        streams = Streams(running.target, tokens=4000)
        kill(running)
        running.wait_until_gone(GONE)
        assert running.process.wait(30) == (1 if remains else -signal.SIGKILL)
        streams.join(60)
        assert set(streams.codes) == {grpc.StatusCode.UNAVAILABLE}


def test_a_stopped_rank_is_killed_too_when_another_goes() -> None:
    """A rank that can do nothing any more, as one inside a hung library, still goes with the rest."""
    with job() as running:
        running.rank(1).suspend()
        running.rank(0).kill()
        running.wait_until_gone(GONE)
        assert running.process.wait(30) == 1


def test_a_stopped_rank_goes_with_mpirun_and_supervisor() -> None:
    with job() as running:
        stopped = running.rank(1)
        stopped.suspend()
        running.mpirun().kill()
        running.process.kill()
        running.wait_until_gone(GONE)
        assert not psutil.pid_exists(stopped.pid) or stopped.status() == psutil.STATUS_ZOMBIE


def test_ranks_that_do_not_load_are_named_case_k1() -> None:
    with job("--engine.rank_start_timeout", "6", hanging_rank=1, ready=False) as running:
        assert running.process.wait(90) == 1
        (broken,) = [line for line in running.log() if line["event"] == "the job is broken"]
        assert "not loaded after 6 s" in str(broken["why"])
        assert "rank 1 loading" in str(broken["why"])
        running.wait_until_gone(5)


def test_a_stop_while_ranks_still_load_is_orderly() -> None:
    with job(hanging_rank=1, ready=False) as running:
        wait_for(lambda: any(line["event"] == "listening" for line in running.log()), 90)
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(60) == 0
        running.wait_until_gone(5)


def test_what_the_engine_does_not_offer_and_what_its_library_refuses_cost_nobody_else_anything_case_m6() -> None:
    """Through the whole server: by name where it is known beforehand; an error for that request alone where only the library knows."""
    tones = (
        ("", "OK", ""),
        ("formal", "OK", ""),
        ("casual", "INVALID_ARGUMENT", "adapter: must be one of this engine's, formal"),
    )
    cases = [
        (pb.Guide(grammar='start: "a"'), "INVALID_ARGUMENT", "guide.grammar: this engine's guides are"),
        (pb.Guide(json_schema='{"type": "nonsense"}'), "INVALID_ARGUMENT", "guide.json_schema"),
        (pb.Guide(regex="unsupported"), "UNAVAILABLE", ""),
        (pb.Guide(regex="[a-z]+"), "OK", ""),
    ]
    with job(adapters=("formal",)) as running, grpc.insecure_channel(running.target) as channel:
        stub = GenerationStub(channel)
        for adapter, code, words in tones:
            call = stub.Generate(pb.GenerateRequest(prompt=pb.Prompt(text="Say"), max_tokens=4, adapter=adapter))
            try:
                list(call)
            except grpc.RpcError:
                assert words in call.details()
            assert call.code().name == code, adapter
        for guide, code, words in cases:
            call = GenerationStub(channel).Generate(
                pb.GenerateRequest(prompt=pb.Prompt(text="Say"), max_tokens=4, guide=guide)
            )
            try:
                list(call)
            except grpc.RpcError:
                assert words in call.details()
            assert call.code().name == code, guide
        assert running.process.poll() is None
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(60) == 0


def test_a_load_that_fails_ends_the_job_with_what_the_log_means_case_a1_a2_a3() -> None:
    said = (
        "[TRT] [E] IRuntime::deserializeCudaEngine: Error Code 6: API Usage Error (The engine plan file is generated on an incompatible "
        "device, expecting compute 8.9 got compute 9.0, please rebuild.)"
    )
    with job(fails_with=said, ready=False) as running:
        assert running.process.wait(90) == 1
        (meaning,) = [line for line in running.log() if line["event"] == "what it means"]
        assert "compiled for GPUs of compute capability 8.9, this GPU has 9.0" in str(meaning["cause"])
        assert "`firsttoken rebuild`" in str(meaning["cause"])
        assert said in running.log_path.read_text(), "the ranks' own words are passed on"
        running.wait_until_gone(5)
