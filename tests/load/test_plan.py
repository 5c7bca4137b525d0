"""The planner: the arithmetic of queues and memory, its choices, and its estimate against steps that are played through."""

from __future__ import annotations

import argparse
import json
import math
import tomllib
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from build_scripts.devices import DEVICES, find_device
from build_scripts.errors import UnsupportedError
from engines.manifest import StepProfile
from firsttoken.commands import plan as command
from loadtest.arrivals import Arrivals, constant_rate
from loadtest.distributions import parse_distribution
from loadtest.errors import WorkloadError
from loadtest.planner import memory, queueing, render
from loadtest.planner.cost import step_cost
from loadtest.planner.model import PlannedModel, read_model
from loadtest.planner.plan import Planner, Wanted
from loadtest.planner.service import Replica
from loadtest.planner.stepping import play as play_steps
from loadtest.planner.traffic import Traffic, read_traffic
from loadtest.sessions import SessionMaker
from loadtest.slo import Slo, parse_slo
from loadtest.workload import Lengths, SharedPrefix, TraceUse, Turns, Workload
from server.config import Config
from server.scheduling.config import BatcherConfig
from tests.load.manifests import write_manifest

LLAMA_2_7B = PlannedModel(
    name="Llama-2-7B", parameters=6_738_415_616, layers=32, hidden=4096, heads=32, kv_heads=32, head_dim=128, max_context=8192
)  # fmt: skip
LLAMA_3_8B = PlannedModel(
    name="Llama-3-8B", parameters=8_030_261_248, layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, max_context=131072
)  # fmt: skip
LLAMA_3_70B = PlannedModel(
    name="Llama-3-70B", parameters=70_553_706_496, layers=80, hidden=8192, heads=64, kv_heads=8, head_dim=128, max_context=131072
)  # fmt: skip


def steady(rate: float, prompt: int = 1000, output: int = 200, cached: float = 0.0) -> Traffic:
    return Traffic(rate, (prompt,) * 10, (output,) * 10, cached)


# ---------------------------------------------------------------- the arithmetic, with well-known numbers


def test_fifty_requests_a_second_of_250_ms_are_twelve_and_a_half_in_service() -> None:
    assert queueing.in_service(50, 0.250) == 12.5


def test_at_99_percent_a_server_of_four_a_second_makes_people_wait_25_seconds() -> None:
    inside, seconds = queueing.mm1_waiting(3.96, 4.0)
    assert queueing.utilisation(3.96, 4.0) == pytest.approx(0.99)
    assert inside == pytest.approx(99)
    assert seconds == pytest.approx(25)
    assert queueing.mm1_waiting(2.4, 4.0)[1] == pytest.approx(0.625)
    assert queueing.mm1_waiting(4.0, 4.0) == (math.inf, math.inf)


def test_a_48_gb_card_with_14_gb_of_weights_holds_seven_sequences_of_8k() -> None:
    left = memory.kv_left(48, 0.9, 14)
    assert left == pytest.approx(29, abs=0.3)
    assert int(left / 4) == 7


def test_the_same_card_and_model_out_of_our_tables_hold_seven() -> None:
    bill = memory.draw_up(LLAMA_2_7B, find_device("L40S").memory, 1, weights="fp16", kv="fp16", step_tokens=2048)
    assert bill.kv_per_token == 512 * 1024
    assert LLAMA_2_7B.kv_bytes(8192, "fp16") == 4 << 30
    costs = {each.context: each.sequences for each in memory.context_costs(LLAMA_2_7B, bill, 8192)}
    assert costs == {1024: 60, 2048: 30, 4096: 15, 8192: 7}


def test_replicas_keep_their_headroom() -> None:
    assert queueing.replicas(50, 0.25, 12.5, 0.0) == 1
    assert queueing.replicas(50, 0.25, 12.5, 0.3) == 2
    assert queueing.replicas(100, 1.0, 10, 0.5) == 20
    with pytest.raises(WorkloadError, match="--headroom"):
        queueing.replicas(1, 1, 1, 1.0)


@given(st.floats(0.1, 100), st.floats(0.01, 10), st.floats(1, 100), st.floats(0, 0.9))
def test_replicas_are_just_enough(rate: float, seconds: float, each: float, headroom: float) -> None:
    count = queueing.replicas(rate, seconds, each, headroom)
    room = each * (1 - headroom)
    assert count * room >= rate * seconds * (1 - 1e-6)
    assert count == 1 or (count - 1) * room < rate * seconds * (1 + 1e-6)


def test_waiting_is_that_of_theory_and_bursts_make_it_longer() -> None:
    """Answers of one token and a step that is all fixed cost, one prompt in each: an M/D/1 queue."""
    cost = msgspec.structs.replace(PROFILE, fixed=0.1, per_new_token=0.0, per_decode=0.0, per_decode_context=0.0)
    rng = np.random.default_rng(0)

    def wait(gaps: np.ndarray) -> float:
        count = len(gaps)
        traffic = Traffic(1.0, (64,) * count, (1,) * count, 0.0, tuple(gaps.tolist()))
        return float(play_steps(cost, traffic, 8.0, BatcherConfig(step_tokens=64)).ttft.mean()) - 0.1

    # Pollaczek and Khinchine: rate * service^2 / 2 / (1 - load).
    assert wait(rng.exponential(1.0, 100_000)) == pytest.approx(8 * 0.01 / 2 / 0.2, rel=0.1)
    assert wait(rng.gamma(0.1, 10, 100_000)) > 3 * 0.2
    assert wait(np.full(100, 2.0)) == pytest.approx(0.0, abs=1e-9)


def test_a_bursty_trace_needs_more_than_a_smooth_one() -> None:
    replica = Replica(PROFILE, 10**9, 10**6, Slo(ttft=0.5), 0.9)
    rng = np.random.default_rng(0)
    bursts = tuple(float(gap) for gap in rng.gamma(0.05, 20, 4000))
    bursty = Traffic(1.0, (1000,) * 4000, (200,) * 4000, 0.0, bursts)
    assert replica.capacity(bursty) < 0.7 * replica.capacity(steady(1))


# ---------------------------------------------------------------- memory


def test_windowed_layers_keep_no_more_than_their_window() -> None:
    windowed = PlannedModel(
        name="w", parameters=1, layers=2, hidden=8, heads=1, kv_heads=1, head_dim=4, max_context=100, windows=(10, None)
    )
    assert windowed.kv_bytes(5, "fp16") == 2 * 4 * 2 * (5 + 5)
    assert windowed.kv_bytes(50, "fp16") == 2 * 4 * 2 * (10 + 50)


def test_more_devices_than_kv_heads_keep_copies() -> None:
    few = PlannedModel(
        name="f", parameters=10**9, layers=2, hidden=64, heads=16, kv_heads=2, head_dim=64, max_context=1000
    )
    one, eight = (memory.draw_up(few, 10**10, tp, weights="bf16", kv="bf16", step_tokens=64) for tp in (1, 8))
    assert eight.kv_per_token == 4 * one.kv_per_token


# ---------------------------------------------------------------- the estimate against steps played through


PROFILE = StepProfile(
    fixed=8e-3,
    per_new_token=6e-5,
    per_decode=2e-4,
    per_decode_context=1e-7,
    per_attention=0.0,
    machine="",
    relative_error=0,
)


def play(
    profile: StepProfile, rate: float, *, prompt: int, output: int, seconds: float, chunk: int
) -> tuple[float, float, float]:
    """In-flight batching, step by step: every running sequence decodes, prompts are chunked in order. Mean step time as a
    decoding sequence feels it, mean batch, and the 90th percentile of the time to the first token."""
    rng = np.random.default_rng(3)
    arrivals = list(np.cumsum(rng.exponential(1 / rate, int(rate * seconds))))[::-1]
    now, waiting, running, firsts = 0.0, [], [], []  # type: float, list[list[float]], list[list[float]], list[float]
    felt = batch = weight = 0.0
    while arrivals or waiting or running:
        if not waiting and not running:
            now = max(now, arrivals[-1])
        while arrivals and arrivals[-1] <= now:
            waiting.append([arrivals.pop(), prompt])
        budget, done = chunk, []
        while waiting and budget:
            part = min(budget, int(waiting[0][1]))
            waiting[0][1] -= part
            budget -= part
            if not waiting[0][1]:
                done.append(waiting.pop(0)[0])
        context = sum(prompt + made for (made,) in running)
        step = profile.fixed + (chunk - budget) * profile.per_new_token
        step += len(running) * profile.per_decode + context * profile.per_decode_context
        felt += step * len(running)
        batch += step * len(running)
        weight += len(running)
        now += step
        running = [[made + 1] for (made,) in running if made + 1 < output]
        for arrived in done:
            firsts.append(now - arrived)
            running.append([1.0])
    return felt / weight, batch / now, float(np.quantile(firsts, 0.9))


@pytest.mark.parametrize("rate", [2.0, 5.0, 7.0])
def test_the_steady_state_is_that_of_steps_played_through(rate: float) -> None:
    replica = Replica(PROFILE, 10**9, 10**6, Slo(itl=0.1), 0.9)
    service = replica.serve(steady(rate), rate)
    assert service is not None
    step, batch, first = play(PROFILE, rate, prompt=1000, output=200, seconds=400.0, chunk=replica.step_tokens)
    assert service.step == pytest.approx(step, rel=0.2)
    assert service.running == pytest.approx(batch, rel=0.2)
    assert service.ttft_quantile == pytest.approx(first, rel=0.4)


def test_beyond_its_work_a_replica_has_no_steady_state() -> None:
    replica = Replica(PROFILE, 10**9, 10**6, Slo(itl=10.0), 0.9)
    full = 1 / (1000 * PROFILE.per_new_token + 200 * (PROFILE.per_decode + 1100 * PROFILE.per_decode_context))
    assert replica.serve(steady(1), full * 1.01) is None
    assert 0.5 * full < replica.capacity(steady(1)) < full


@pytest.mark.parametrize(
    ("replica", "limit"),
    [
        (Replica(PROFILE, 10**9, 10**6, Slo(itl=0.012), 0.9), "time per token"),
        (Replica(PROFILE, 10**9, 10**6, Slo(ttft=0.15, itl=1.0), 0.9), "time to first token"),
        (Replica(PROFILE, 5_000, 10**6, Slo(itl=1.0), 0.9), "KV cache"),
        (Replica(PROFILE, 10**9, 4, Slo(itl=1.0), 0.9), "seats"),
    ],
)
def test_what_limits_a_replica_is_named_and_binds(replica: Replica, limit: str) -> None:
    capacity = replica.capacity(steady(1))
    assert capacity > 0
    assert limit in replica.limit(steady(1), capacity)
    assert replica.keeps(steady(1), capacity)
    assert not replica.keeps(steady(1), capacity * 1.05)


def test_an_answer_of_one_token_has_no_time_per_token_to_miss() -> None:
    """As Slo.kept() has it: half of the answers are single tokens, and no other can be given in 8 ms a token."""
    traffic = Traffic(1.0, (100, 100), (1, 50), 0.0)
    assert Replica(PROFILE, 10**9, 10**6, Slo(ttft=0.5, itl=0.008), 0.5).capacity(traffic) > 1
    assert Replica(PROFILE, 10**9, 10**6, Slo(ttft=0.5, itl=0.008), 0.6).capacity(traffic) == 0


def test_cached_prompts_raise_the_capacity() -> None:
    replica = Replica(PROFILE, 10**9, 10**6, Slo(ttft=0.3, itl=0.05), 0.9)
    assert replica.capacity(steady(1, cached=0.8)) > 1.5 * replica.capacity(steady(1))


# ---------------------------------------------------------------- choices


def test_what_fits_one_device_is_replicated() -> None:
    plan = Planner(LLAMA_3_8B, steady(60.0), Wanted(parse_slo("ttft=1s,itl=50ms"))).on_device(find_device("H100-80GB"))
    assert plan.chosen.tp == 1
    assert plan.chosen.replicas > 1
    assert any("data parallel" in sentence for sentence in plan.why)
    assert plan.rate / plan.chosen.replicas <= plan.chosen.capacity * (1 - plan.headroom) * 1.0001
    assert plan.in_service == pytest.approx(60.0 * plan.service.latency_mean)


def test_what_does_not_fit_is_split_and_the_reason_said() -> None:
    plan = Planner(LLAMA_3_70B, steady(1.0), Wanted(parse_slo("ttft=2s,itl=60ms"))).on_device(find_device("H100-80GB"))
    assert plan.chosen.tp > 1
    assert "the weights do not fit" in plan.why[0]


def test_a_time_per_token_that_one_device_cannot_give_is_split_too() -> None:
    plan = Planner(LLAMA_3_8B, steady(1.0), Wanted(parse_slo("itl=10ms"))).on_device(find_device("L40S"))
    assert plan.chosen.tp > 1
    assert "time per token" in plan.why[0]


def test_what_nothing_can_do_is_refused_with_the_reasons() -> None:
    with pytest.raises(WorkloadError, match=r"cannot meet itl <= 1 ms on L4: tp 1.*time per token"):
        Planner(LLAMA_3_8B, steady(1.0), Wanted(parse_slo("itl=1ms"))).on_device(find_device("L4"))


@pytest.mark.parametrize(
    ("context", "problem"), [(200_000, "trained for 131072"), (1000, "longest request needs 1200")]
)
def test_a_context_that_cannot_be_is_refused(context: int, problem: str) -> None:
    with pytest.raises(WorkloadError, match=f"--context.*{problem}"):
        Planner(LLAMA_3_8B, steady(1.0), Wanted(parse_slo("chat"), context=context))


def test_the_configuration_is_one_that_the_server_takes() -> None:
    plan = Planner(LLAMA_3_8B, steady(20.0), Wanted(parse_slo("ttft=1s,itl=50ms"))).on_device(find_device("H100-80GB"))
    config = Config.model_validate(tomllib.loads(render.configuration(plan)))
    assert config.scheduler.max_sequences == plan.settings.max_sequences >= plan.service.running
    assert config.admission.max_waiting_tokens >= plan.settings.max_context
    assert plan.settings.client_timeout == pytest.approx(3 * plan.service.latency_p95)


def test_lower_precision_needs_less_of_everything() -> None:
    device = find_device("H100-80GB")
    whole, half = (step_cost(LLAMA_3_8B, device, 1, weights=each, kv=each) for each in ("bf16", "fp8"))
    assert half.fixed < whole.fixed
    assert half.per_new_token == pytest.approx(whole.per_new_token / 2, rel=0.01)
    assert half.per_decode_context == pytest.approx(whole.per_decode_context / 2)


# ---------------------------------------------------------------- traffic, models, devices


def test_traffic_counts_what_the_prefix_cache_can_hold() -> None:
    lengths = Lengths(parse_distribution("100", "p"), parse_distribution("20", "o"))
    base = {"arrivals": Arrivals(constant_rate(4.0)), "requests": 100, "lengths": lengths}
    assert read_traffic(Workload(**base)).cached_share == 0.0  # type: ignore[arg-type]
    prefixed = read_traffic(Workload(prefix=SharedPrefix(300), **base))  # type: ignore[arg-type]
    assert prefixed.cached_share == pytest.approx(0.75 * 99 / 100)
    turns = Turns(parse_distribution("2", "t"))
    talking = read_traffic(Workload(turns=turns, **base))  # type: ignore[arg-type]
    assert talking.rate == 8.0
    assert talking.cached_share == pytest.approx(120 / (100 + 220))


def test_a_trace_brings_its_rate_and_its_shared_blocks(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 1000 * at, "input_length": 1024, "output_length": 10, "hash_ids": [0, 100 + at]}
        for at in range(5)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    traffic = read_traffic(Workload(trace=TraceUse(str(path))))
    assert traffic.rate == 1.25  # as --rate has it: all rows over the whole trace's time
    assert traffic.cached_share == pytest.approx(4 * 512 / (5 * 1024))


def test_sessions_keep_their_own_two_lengths() -> None:
    maker = SessionMaker(Workload(arrivals=Arrivals(constant_rate(1.0)), requests=3))
    assert [each.longest() for each in maker.sessions()] == [320] * 3


def config_json(tmp_path: Path, **changes: object) -> Path:
    values: dict[str, object] = {
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000, "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False,
    }  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(values | changes))
    return path


def test_a_config_alone_gives_the_models_size(tmp_path: Path) -> None:
    model = read_model(config_json(tmp_path))
    assert model.parameters == LLAMA_2_7B.parameters
    assert (model.layers, model.kv_heads, model.head_dim) == (32, 32, 128)


def test_a_config_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="model: cannot read"):
        read_model(tmp_path / "none.json")
    with pytest.raises(WorkloadError, match="alien"):
        read_model(config_json(tmp_path, model_type="alien"))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(WorkloadError, match=r"config\.json"):
        read_model(tmp_path)


def test_devices_are_found_by_a_unique_beginning() -> None:
    assert find_device("l40s").name == "L40S"
    assert find_device("h200").name == "H200"
    assert find_device("L4").name == "L4"
    with pytest.raises(UnsupportedError, match="A100-40GB or A100-80GB"):
        find_device("a100")
    with pytest.raises(UnsupportedError, match="H200"):
        find_device("abacus")


def test_every_device_is_plausible() -> None:
    for device in DEVICES.values():
        assert 16 << 30 <= device.memory <= 300 << 30
        assert 30 < device.flops_16 / device.bandwidth < 500
        assert device.flops_8 == device.flops_16 or 1.9 <= device.flops_8 / device.flops_16 <= 2.1


# ---------------------------------------------------------------- the command


def run(*words: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(words))


def test_the_command_prints_the_bill_and_writes_a_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, out = config_json(tmp_path), tmp_path / "server.toml"
    words = [
        str(config),
        "--device",
        "H100",
        "--rate",
        "5",
        "--slo",
        "ttft=1s,itl=50ms",
        "--no-check",
        "--config-out",
        str(out),
    ]
    assert run(*words[:2], "H100-80GB", *words[3:]) == 0
    printed = capsys.readouterr().out
    assert "keys and values" in printed
    assert "data parallel" in printed
    Config.model_validate(tomllib.loads(out.read_text()))
    assert run(*words[:2], "H100-80GB", *words[3:-2], "--json") == 0
    assert json.loads(capsys.readouterr().out)["chosen"]["tp"] == 1


def test_an_engines_own_measurements_plan_this_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_manifest(tmp_path, PROFILE)
    words = ["--device", "this", "--rate", "1", "--slo", "ttft=1s,itl=50ms", "--json", "--no-check"]
    assert run(str(tmp_path), *words) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["profile"]["fixed"] == PROFILE.fixed
    assert plan["chosen"]["bill"]["kv_per_token"] == 2 * 2 * 2 * 16 * 2
    assert run(str(tmp_path / "nothing"), *words) == 2
    assert "needs an engine" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--device", "H100-80GB"), "--rate"),
        (("--rate", "1", "--device", "abacus"), "abacus"),
        (("--rate", "1", "--headroom", "1"), "--headroom"),
        (("--rate", "1", "--tp", "0"), "--tp"),
        (("--concurrency", "3"), "--concurrency"),
    ],
)
def test_the_command_says_what_to_change(
    tmp_path: Path, words: tuple[str, ...], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(str(config_json(tmp_path)), *words) == 2
    assert problem in capsys.readouterr().err
