"""One simulation from its description to its figures."""

from __future__ import annotations

from collections import Counter

import msgspec

from engines.contract import ExecutorLimits, StepRunner
from engines.simulated.clock import VirtualClock
from engines.simulated.executor import SimulatedExecutor
from engines.simulated.faults import Faults
from engines.simulated.language import Language
from engines.simulated.step_runner import SimulatedStepRunner
from engines.simulated.timed_runner import TimedRunner
from loadtest.errors import WorkloadError
from loadtest.run import RunResult
from loadtest.sessions import SessionMaker
from loadtest.simulation.faults import parse_faults
from loadtest.simulation.gate import Gate
from loadtest.simulation.machine import ExecutorMachine, Machine, StepMachine
from loadtest.simulation.profile import VOCABULARY, Profile
from loadtest.simulation.replay import Replay
from loadtest.simulation.requests import END_ID, RequestMaker
from loadtest.transports.base import Target, TargetFacts
from loadtest.workload import Workload
from server.scheduling.admission import Admission
from server.scheduling.batcher import Batcher
from server.scheduling.config import BatcherConfig
from server.scheduling.executor_feed import ExecutorFeed
from server.scheduling.policies import Policies

ENGINES = ("steps", "executor", "oracle")


class Setup(msgspec.Struct, frozen=True):
    """Everything but the workload and the policies. Equal setups and workloads give equal results, to the last bit."""

    profile: Profile
    config: BatcherConfig = BatcherConfig()
    admission: Admission | None = None
    """None = however many wait."""
    forecast: bool = True
    """Refuse at once whoever would only wait to miss a deadline of its own."""
    engine: str = "steps"
    """"steps": our batcher, an engine of which only the time is simulated; "oracle": one that checks every block it reads, at a
    fraction of the speed; "executor": an engine that batches by itself."""
    max_tokens: int | None = None
    """What every client asks for; None = exactly the length of its answer."""
    faults: tuple[str, ...] = ()
    check: bool = False
    """Check every law that the scheduler can check of itself, at the end."""


class Account(msgspec.Struct, frozen=True):
    """What only the scheduler can tell, beside the figures of any load test."""

    virtual_seconds: float
    steps: int
    utilisation: float
    """Share of the time in which the engine computed."""
    hit_rate: float
    """Prompt tokens out of the prefix cache."""
    preemptions: int
    discarded_tokens: int
    rejections: dict[str, int]
    """By reason, refused before or ended while waiting."""
    forecast_error: float | None
    """Median of |predicted - true| / true time to the first token, of all who got one; None where nothing was predicted."""


class Simulation(msgspec.Struct, frozen=True):
    result: RunResult
    account: Account


def simulate(workload: Workload, setup: Setup, policies: Policies | None = None) -> Simulation:
    """Run it. Raises LoadError for what the caller must change, ValueError where configuration and profile contradict."""
    sessions = SessionMaker(workload)
    limits = setup.profile.limits()
    clock = VirtualClock()
    maker = RequestMaker(workload, max_context=limits.max_context, max_tokens=setup.max_tokens)
    machine = _machine(setup, policies, maker, clock, workload.seed)
    gate = Gate(machine, setup.admission, forecast=setup.forecast)
    replay = Replay(sessions, maker, machine, gate, clock)
    replay.run()
    if setup.check:
        machine.check_integrity()
    result = RunResult(
        workload=workload,
        target=Target(wire="simulated", address=setup.profile.name),
        facts=TargetFacts(
            kind="simulated",
            model=setup.profile.name,
            engine=setup.engine,
            vocab_size=VOCABULARY,
            max_context=limits.max_context,
            max_sequences=setup.config.max_sequences,
            block_size=limits.block_size,
        ),
        began="in virtual time",
        records=replay.records,
        samples=replay.sampler.samples,
        health=[],
    )
    return Simulation(result, _account(result, machine, gate, clock))


def _machine(setup: Setup, policies: Policies | None, maker: RequestMaker, clock: VirtualClock, seed: int) -> Machine:
    faults, profile = parse_faults(setup.faults), setup.profile
    if setup.engine == "executor":
        return _executor_machine(setup, policies, clock, seed, faults)
    if setup.engine not in ENGINES:
        raise WorkloadError(f"--engine: must be one of {', '.join(ENGINES)}, not {setup.engine!r}")
    batcher = Batcher(
        profile.limits(),
        fingerprint=profile.name,
        config=setup.config,
        policies=policies,
        profile=profile.step_profile(),
    )
    runner = (
        _oracle(setup, clock, seed, faults) if setup.engine == "oracle" else _timed(setup, maker, clock, seed, faults)
    )
    return StepMachine(batcher, runner, clock, profile.overhead)


def _timed(setup: Setup, maker: RequestMaker, clock: VirtualClock, seed: int, faults: Faults) -> StepRunner:
    return TimedRunner(
        setup.profile.limits(),
        cost=setup.profile.cost,
        clock=clock,
        end_id=END_ID,
        length_of=maker.length_of,
        seed=seed,
        faults=faults,
    )


def _oracle(setup: Setup, clock: VirtualClock, seed: int, faults: Faults) -> StepRunner:
    limits = setup.profile.limits()
    return SimulatedStepRunner(
        Language(VOCABULARY, end_ids=(END_ID,), seed=seed),
        blocks=limits.block_count,
        block_size=limits.block_size,
        max_rows=limits.max_rows,
        max_step_tokens=limits.max_step_tokens,
        max_context=limits.max_context,
        cost=setup.profile.cost,
        clock=clock,
        seed=seed,
        faults=faults,
    )


def _executor_machine(
    setup: Setup, policies: Policies | None, clock: VirtualClock, seed: int, faults: Faults
) -> ExecutorMachine:
    limits = setup.profile.limits()
    executor = SimulatedExecutor(
        Language(VOCABULARY, end_ids=(END_ID,), seed=seed),
        blocks=limits.block_count,
        block_size=limits.block_size,
        max_batch_size=min(setup.config.max_sequences, limits.max_rows),
        max_num_tokens=max(setup.config.step_tokens, setup.config.max_sequences),
        max_context=limits.max_context,
        cost=setup.profile.cost,
        clock=clock,
        seed=seed,
        faults=faults,
    )
    inner: ExecutorLimits = executor.limits
    feed = ExecutorFeed(inner, config=setup.config, policies=policies, profile=setup.profile.step_profile())
    return ExecutorMachine(feed, executor, clock)


def _account(result: RunResult, machine: Machine, gate: Gate, clock: VirtualClock) -> Account:
    stats, seconds = machine.stats(), clock.now()
    refused = Counter(
        record.detail for record in result.records if record.status in {"RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"}
    )
    return Account(
        virtual_seconds=seconds,
        steps=stats.steps,
        utilisation=machine.busy_seconds / seconds if seconds else 0.0,
        hit_rate=stats.cached_tokens / stats.prompt_tokens if stats.prompt_tokens else 0.0,
        preemptions=stats.preemptions,
        discarded_tokens=stats.discarded_tokens,
        rejections=dict(refused),
        forecast_error=gate.median_error(),
    )
