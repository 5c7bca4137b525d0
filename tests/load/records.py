"""Small factories for records."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from loadtest.client_health import ClientHealth
from loadtest.record import RequestRecord, Usage
from loadtest.run import RunResult, Sample
from loadtest.transports.base import LoadSample, Target, TargetFacts
from loadtest.workload import Workload


def record(
    sent: float = 0.0,
    times: Sequence[float] = (),
    tokens: Sequence[int] | None = None,
    **changes: object,
) -> RequestRecord:
    """A request sent at ``sent`` whose messages came at ``times``; ended with the last of them."""
    values: dict[str, object] = {
        "session": 0, "turn": 0, "due": sent, "sent": sent, "end": times[-1] if times else sent, "status": "OK",
        "detail": "", "priority": "interactive", "tenant": "", "prompt_tokens": 10, "max_tokens": 10,
        "usage": Usage(), "stalled": False, "warmup": False, "times": array("d", times),
        "tokens": array("i", tokens if tokens is not None else [1] * len(times)),
    }  # fmt: skip
    return RequestRecord(**values | changes)  # type: ignore[arg-type]


def result(
    records: Sequence[RequestRecord],
    samples: Sequence[tuple[float, LoadSample]] = (),
    *,
    workload: Workload | None = None,
    facts: TargetFacts | None = None,
    health: ClientHealth | None = None,
) -> RunResult:
    return RunResult(
        workload or Workload(concurrency=1, requests=1),
        Target("native", "host:1"),
        facts or TargetFacts("native", max_sequences=10),
        "2026-01-01T00:00:00+00:00",
        list(records),
        [Sample(at, load) for at, load in samples],
        [health or ClientHealth(0.1, 0.0, 0.001, 0.002, 1)],
    )
