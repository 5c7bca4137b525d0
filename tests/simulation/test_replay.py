"""The simulator: clients get what they would get from a server, and the same again from the same seed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from loadtest.distributions import Distribution
from loadtest.errors import WorkloadError
from loadtest.record import CLIENT_CANCELLED, OK, UNFINISHED, to_wire
from loadtest.simulation.compare import simulate_mode
from loadtest.simulation.profile import PROFILES, Profile
from loadtest.simulation.simulate import Account, Setup, Simulation, simulate
from loadtest.slo import parse_slo
from loadtest.summary import summarise
from loadtest.workload import Behaviour, Lengths, TraceUse, Turns, Workload
from server.scheduling.admission import Admission
from server.scheduling.config import BatcherConfig

GPU = PROFILES["h100-8b-tp1"]
SMALL = msgspec.structs.replace(GPU, name="small", kv_tokens=4096, max_context=2048, block_size=16)
CONFIG = BatcherConfig(max_sequences=8)


def workload(rate: float = 4.0, seconds: float = 20.0, seed: int = 1, **changes: object) -> Workload:
    from loadtest.arrivals import Arrivals, constant_rate

    base = Workload(
        seed=seed,
        arrivals=Arrivals(constant_rate(rate)),
        duration=seconds,
        lengths=Lengths(
            Distribution("uniform", {"low": 20.0, "high": 600.0}), Distribution("uniform", {"low": 1.0, "high": 80.0})
        ),
    )
    return msgspec.structs.replace(base, **changes)


def run(asked: Workload | None = None, profile: Profile = SMALL, **setup: object) -> Simulation:
    made = msgspec.structs.replace(Setup(profile=profile, config=CONFIG, check=True), **setup)
    return simulate(asked or workload(), made)


def essence(simulation: Simulation) -> tuple[bytes, Account]:
    return msgspec.json.encode([to_wire(record) for record in simulation.result.records]), simulation.account


@pytest.mark.parametrize("engine", ["steps", "executor"])
def test_the_same_seed_gives_the_same_figures_to_the_last_bit(engine: str) -> None:
    first, again, other = (run(workload(seed=seed), engine=engine) for seed in (1, 1, 2))
    assert essence(first) == essence(again)
    assert essence(first) != essence(other)


@pytest.mark.parametrize("engine", ["steps", "oracle", "executor"])
def test_everybody_is_answered_in_full(engine: str) -> None:
    records = run(engine=engine).result.records
    assert len(records) > 50
    for record in records:
        assert record.status == OK
        assert sum(record.tokens) == record.max_tokens
        assert record.sent <= record.times[0]
        assert list(record.times) == sorted(record.times)


def test_only_the_time_is_simulated_yet_it_is_the_oracle_s_time() -> None:
    """Outputs differ (the oracle's words mean something), so nobody shares blocks here: then every step must cost the same."""
    timed, oracle = run(engine="steps"), run(engine="oracle")
    assert essence(timed) == essence(oracle)


def test_a_client_that_gives_up_is_counted_as_such_and_frees_its_seat() -> None:
    behaviour = Behaviour(cancel_rate=0.5, cancel_after=Distribution("constant", {"value": 0.05}))
    result = run(workload(behaviour=behaviour)).result
    statuses = {record.status for record in result.records}
    assert statuses == {OK, CLIENT_CANCELLED}
    assert all(record.end - record.sent < 0.3 for record in result.records if record.status == CLIENT_CANCELLED), (
        "a cancel takes effect within a step"
    )


def test_a_stalled_reader_loses_its_stream_after_the_server_s_patience() -> None:
    long = Lengths(Distribution("constant", {"value": 50.0}), Distribution("constant", {"value": 1900.0}))
    slow = msgspec.structs.replace(SMALL, cost=msgspec.structs.replace(GPU.cost, fixed=0.1))
    asked = workload(rate=0.2, seconds=10.0, lengths=long, behaviour=Behaviour(stall_rate=1.0), drain=300.0)
    records = run(asked, slow).result.records
    assert records
    assert {record.status for record in records} == {"CANCELLED"}
    assert all(30.0 <= record.end - record.times[0] < 31.0 for record in records)


def test_deadlines_end_what_comes_too_late() -> None:
    records = run(workload(rate=60.0, behaviour=Behaviour(ttft_deadline=0.2))).result.records
    late = [record for record in records if record.status == "DEADLINE_EXCEEDED"]
    assert late
    assert all(not record.times for record in late)
    assert all(record.ttft is not None and record.ttft <= 0.2 + 0.05 for record in records if record.ok), (
        "a deadline takes effect at a step's border"
    )


def test_a_cap_refuses_at_once_and_is_counted_by_reason() -> None:
    simulation = run(workload(rate=100.0), admission=Admission(max_waiting_requests=10, max_waiting_tokens=100_000))
    refused = [record for record in simulation.result.records if record.status == "RESOURCE_EXHAUSTED"]
    assert refused
    assert all(record.end == record.sent for record in refused)
    assert simulation.account.rejections == {"waiting_requests": len(refused)}


def test_a_later_turn_finds_the_earlier_ones_in_the_cache() -> None:
    turns = Turns(Distribution("constant", {"value": 3.0}), Distribution("constant", {"value": 1.0}))
    short = Lengths(Distribution("constant", {"value": 200.0}), Distribution("constant", {"value": 20.0}))
    records = run(workload(rate=0.5, turns=turns, lengths=short)).result.records
    assert {record.turn for record in records} == {0, 1, 2}
    for record in records:
        # All full blocks of the turns before but perhaps the one that the last token, never computed, would have filled.
        assert (record.usage.cached_tokens or 0) >= record.turn * 220 - 2 * SMALL.block_size


def test_a_closed_loop_keeps_so_many_on_their_way() -> None:
    asked = msgspec.structs.replace(workload(), arrivals=None, concurrency=3)
    simulation = run(asked)
    assert len(simulation.result.records) > 50
    assert max(sample.load.running + sample.load.waiting for sample in simulation.result.samples) == 3


def test_a_failed_step_ends_those_whom_it_named_and_nobody_else() -> None:
    records = run(faults=("error@40", "slow@60:2.5")).result.records
    failed = [record for record in records if record.status == "UNAVAILABLE"]
    assert 0 < len(failed) < len(records) / 4
    assert max(gap for record in records for gap in record.gaps()) > 2.5


def test_after_the_engine_s_death_everybody_is_told() -> None:
    records = run(faults=("die@100",)).result.records
    dead = [record for record in records if record.status == "UNAVAILABLE"]
    assert dead
    assert {record.status for record in records} == {OK, "UNAVAILABLE"}
    assert all(record.status == "UNAVAILABLE" for record in records[-5:])


def test_what_is_not_over_by_the_drain_is_unfinished() -> None:
    slow = msgspec.structs.replace(SMALL, cost=msgspec.structs.replace(GPU.cost, fixed=5.0))
    records = run(workload(drain=10.0), slow).result.records
    assert UNFINISHED in {record.status for record in records}


def test_batching_in_flight_beats_static_batches_which_beat_one_at_a_time() -> None:
    asked = workload(rate=6.0, seconds=40.0)
    medians = []
    for mode in ("serial", "static", "inflight"):
        simulation = simulate_mode(mode, asked, Setup(profile=GPU, config=CONFIG, check=True))
        ttft = summarise(simulation.result, parse_slo("chat")).total.latencies.ttft
        assert ttft is not None
        medians.append(ttft.p50)
    serial, static, inflight = medians
    assert serial > 2 * static > 4 * inflight


def test_a_trace_brings_its_times_and_its_prefixes(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 1000 * n, "input_length": 1100, "output_length": 5, "hash_ids": [7, 8, 100 + n]} for n in range(9)
    ]
    trace.write_bytes(b"\n".join(msgspec.json.encode(row) for row in rows))
    records = run(Workload(trace=TraceUse(str(trace)))).result.records
    assert [record.sent for record in records] == [float(n) for n in range(9)]
    assert [record.usage.cached_tokens for record in records] == [0] + [1024] * 8


def test_an_unknown_fault_is_refused_by_name() -> None:
    with pytest.raises(WorkloadError, match="melt@3"):
        run(faults=("melt@3",))
