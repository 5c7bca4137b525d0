"""What is asked of a server: who comes when, with how long a prompt, and how they behave. A value, so that processes can share it."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from loadtest.arrivals import Arrivals
from loadtest.distributions import Distribution
from loadtest.errors import WorkloadError
from loadtest.traces import Trace, read_trace

PRIORITIES = ("interactive", "standard", "batch")


class Lengths(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tokens. ``prompt`` counts what is new in a turn: a shared prefix and earlier turns come on top."""

    prompt: Distribution = Distribution("constant", {"value": 256.0})
    output: Distribution = Distribution("constant", {"value": 64.0})


class SharedPrefix(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A system prompt: every session starts with the same ``tokens`` tokens as the others of its group."""

    tokens: int = 0
    groups: int = 1


class Turns(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A conversation: each turn sends all before it again, the server's answers included."""

    count: Distribution = Distribution("constant", {"value": 1.0})
    think: Distribution = Distribution("constant", {"value": 0.0})
    """Seconds between an answer's end and the next turn."""


class TraceUse(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    path: str
    replay_times: bool = True
    """False: only the lengths and prefixes are used, in the trace's order."""
    speedup: float = 1.0
    """The trace's clock runs this much faster."""
    scale: float = 1.0
    """Factor on all lengths, for models with less context than the recorded one."""


class Behaviour(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How clients behave. Deadlines are seconds from sending."""

    ttft_deadline: float | None = None
    deadline: float | None = None
    cancel_rate: float = 0.0
    """Share of requests that are cancelled by the client ..."""
    cancel_after: Distribution = Distribution("uniform", {"low": 0.0, "high": 2.0})
    """... this many seconds after sending."""
    stall_rate: float = 0.0
    """Share of requests whose client stops reading and never reads on."""


class Workload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything but the server. Two runs of equal workloads ask the same of it."""

    seed: int = 0
    arrivals: Arrivals | None = None
    """Open loop. None: closed loop, or the trace's own times."""
    concurrency: int | None = None
    """Closed loop: so many sessions at any time, a new one when one ends."""
    requests: int | None = None
    """Sessions to start, at most."""
    duration: float | None = None
    """Seconds in which sessions start."""
    warmup: float = 0.0
    """Requests sent before this many seconds count for nothing."""
    drain: float = 60.0
    """Seconds that the last requests have to finish; what still runs is then cancelled and counted as unfinished."""
    lengths: Lengths = Lengths()
    prefix: SharedPrefix = SharedPrefix()
    turns: Turns = Turns()
    trace: TraceUse | None = None
    prompts: str | None = None
    """A file of prompts, used instead of synthetic ones."""
    classes: dict[str, float] = msgspec.field(default_factory=lambda: {"interactive": 1.0})
    tenants: dict[str, float] = {}
    """Weights by name; a tenant's name is its cache salt. Empty: one tenant without a salt."""
    behaviour: Behaviour = Behaviour()
    ignore_end: bool = True
    """Ask for outputs of exactly the planned length where the server can do it."""

    def check(self) -> None:
        """Raises WorkloadError naming the option, the limit and the value given."""
        self._check_limits()
        self._check_behaviour()
        replays = self.trace is not None and self.trace.replay_times
        if sum((self.arrivals is not None, self.concurrency is not None, replays)) != 1:
            raise WorkloadError("give one of --rate, --ramp, --concurrency, or a --trace with its own times")
        if self.requests is None and self.duration is None and not replays:
            raise WorkloadError("an endless run: give --duration or --requests")
        if self.prompts is not None and self.trace is not None:
            raise WorkloadError("--prompts and --trace both say what is sent: give one")
        if unknown := sorted(set(self.classes) - set(PRIORITIES)):
            raise WorkloadError(f"--classes: {unknown[0]!r} is none of {', '.join(PRIORITIES)}")

    def _check_limits(self) -> None:
        positive = {
            "--concurrency": self.concurrency,
            "--requests": self.requests,
            "--duration": self.duration,
            "--speedup": self.trace.speedup if self.trace else None,
            "--scale-lengths": self.trace.scale if self.trace else None,
            "--prefix-groups": self.prefix.groups,
        }
        for option, value in positive.items():
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise WorkloadError(f"{option}: must be above 0, not {value:g}")
        for option, value in {"--warmup": self.warmup, "--drain": self.drain, "--prefix": self.prefix.tokens}.items():
            if not (value >= 0 and math.isfinite(value)):
                raise WorkloadError(f"{option}: must be at least 0, not {value:g}")
        if self.duration is not None and self.warmup >= self.duration:
            raise WorkloadError(
                f"--warmup: {self.warmup:g} s leaves nothing of --duration {self.duration:g} s to measure"
            )

    def _check_behaviour(self) -> None:
        behaviour = self.behaviour
        for option, share in {"--cancel-rate": behaviour.cancel_rate, "--stall-rate": behaviour.stall_rate}.items():
            if not 0 <= share <= 1:
                raise WorkloadError(f"{option}: must be from 0 to 1, not {share:g}")
        for option, seconds in {"--ttft-deadline": behaviour.ttft_deadline, "--deadline": behaviour.deadline}.items():
            if seconds is not None and not (seconds > 0 and math.isfinite(seconds)):
                raise WorkloadError(f"{option}: must be above 0, not {seconds:g}")

    def read_trace(self) -> Trace | None:
        """The trace with its clock and its lengths as they are to be used. Raises TraceError."""
        if self.trace is None:
            return None
        trace, use = read_trace(Path(self.trace.path)), self.trace
        rows = tuple(
            msgspec.structs.replace(
                row,
                at=row.at / use.speedup,
                prompt_tokens=max(1, round(row.prompt_tokens * use.scale)),
                output_tokens=max(1, round(row.output_tokens * use.scale)),
            )
            for row in trace.rows
        )
        block = max(1, round(trace.block_size * use.scale)) if trace.block_size else 0
        return Trace(trace.name, rows, block)
