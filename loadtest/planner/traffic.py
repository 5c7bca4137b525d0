"""What the traffic is, in the few numbers that a plan is made of."""

from __future__ import annotations

import itertools

import msgspec
import numpy as np

from loadtest.errors import WorkloadError
from loadtest.sessions import SessionMaker
from loadtest.traces import Trace
from loadtest.workload import Workload

SAMPLE = 20_000


class Traffic(msgspec.Struct, frozen=True):
    """Requests of a workload. Tokens are per request; a later turn of a conversation is a request of its own."""

    rate: float
    """Requests per second at the peak."""
    prompts: tuple[int, ...]
    """A sample of prompt lengths."""
    outputs: tuple[int, ...]
    """The outputs that go with them."""
    cached_share: float
    """Of prompt tokens that the prefix cache will hold, at best."""
    gaps: tuple[float, ...] = ()
    """Times between requests in the sample's order, in units of 1 / rate: bursts make people wait. The beginning of a trace may
    be denser or thinner than the whole. Empty = random arrivals."""

    def unit_gaps(self, count: int) -> np.ndarray:
        """``count`` times between requests, in units of 1 / rate."""
        unit = np.array(self.gaps) if self.gaps else np.random.default_rng(1).exponential(1.0, count)
        result: np.ndarray = np.resize(unit, count)
        return result

    @property
    def pace(self) -> float:
        """How often the sample's requests really come, as a factor on the rate."""
        return 1 / float(np.mean(self.gaps)) if self.gaps else 1.0

    def head(self, count: int) -> Traffic:
        """Its first requests."""
        return msgspec.structs.replace(
            self, prompts=self.prompts[:count], outputs=self.outputs[:count], gaps=self.gaps[:count]
        )

    @property
    def prompt(self) -> float:
        return float(np.mean(self.prompts))

    @property
    def output(self) -> float:
        return float(np.mean(self.outputs))

    @property
    def total_p95(self) -> float:
        """Prompt and output together."""
        return float(np.quantile(np.array(self.prompts) + np.array(self.outputs), 0.95))

    @property
    def longest(self) -> int:
        return int((np.array(self.prompts) + np.array(self.outputs)).max())


def read_traffic(workload: Workload, rate: float | None = None) -> Traffic:
    """Sample a workload. ``rate`` overrides its own, in sessions per second. Raises WorkloadError where neither says one."""
    prompts: list[int] = []
    outputs: list[int] = []
    times: list[float] = []
    cached = sessions = 0
    seen: set[object] = set()
    maker = SessionMaker(workload)
    last = 0.0
    for session in itertools.islice(maker.sessions(), SAMPLE):
        sessions += 1
        last = session.at
        length = session.prefix_tokens
        cached += _shared(session.blocks, session.block_size, seen)
        cached += length if ("prefix", session.prefix_group) in seen else 0
        seen.add(("prefix", session.prefix_group))
        at = session.at
        for number, turn in enumerate(session.turns):
            at += turn.think
            times.append(at)
            cached += length if number else 0
            prompts.append(length + turn.fresh_tokens)
            outputs.append(turn.output_tokens)
            length += turn.fresh_tokens + turn.output_tokens
    if not prompts:
        raise WorkloadError("the workload holds no request")
    own = rate if rate is not None else _own_rate(workload, maker.trace, sessions, last)
    per_session = len(prompts) / sessions
    clock = _own_rate(workload, maker.trace, sessions, last) if workload.trace is not None else None
    order = np.argsort(times, kind="stable")
    return Traffic(
        own * per_session,
        tuple(prompts[place] for place in order),
        tuple(outputs[place] for place in order),
        min(1.0, cached / sum(prompts)),
        _unit_gaps(np.array(times)[order], clock),
    )


def _unit_gaps(times: np.ndarray, rate: float | None) -> tuple[float, ...]:
    """Each request's distance from the one before it, in units of 1 / rate; None: of their mean."""
    gaps = np.diff(times, prepend=times[0])
    unit = gaps.mean() if rate is None else 1 / rate
    return tuple(float(gap) for gap in gaps / unit) if gaps.mean() > 0 else ()


def _shared(blocks: tuple[int, ...], size: int, seen: set[object]) -> int:
    """Prompt tokens in leading blocks that an earlier request had too."""
    known = 0
    for block in blocks:
        if block not in seen:
            break
        known += size
    seen.update(blocks)
    return known


def _own_rate(workload: Workload, trace: Trace | None, sessions: int, last: float) -> float:
    """A replayed trace's is that of the whole of it, as --rate means it, however little of it is sampled."""
    if trace is not None and workload.trace is not None and workload.trace.replay_times:
        return trace.rate
    if workload.arrivals is not None:
        return max(rate for _, rate in workload.arrivals.curve.points)
    if sessions > 1 and last > 0:
        return (sessions - 1) / last
    raise WorkloadError("--rate: a plan needs requests per second")
