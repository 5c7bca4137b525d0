"""From two readings, what happened between them and what is now. Plain values: `--json` prints them, the screen draws them."""

from __future__ import annotations

from dataclasses import dataclass, field

from firsttoken.top.reading import Reading

CLASSES = ("interactive", "standard", "batch")
PARTS = ("plan", "engine", "sample", "deliver")


@dataclass(frozen=True, slots=True)
class Spread:
    """Seconds; None where nothing happened."""

    p50: float | None
    p95: float | None


@dataclass(frozen=True, slots=True)
class View:
    """Rates are per second between the two readings; None = the reading that would tell is missing."""

    address: str
    reachable: bool
    ready: bool | None = None
    busy: float | None = None
    """Share of the last ten seconds in which the engine computed."""
    running: int | None = None
    open_streams: int | None = None
    waiting: dict[str, int] = field(default_factory=dict)
    waiting_tokens: int | None = None
    kv_utilisation: float | None = None
    kv_cached: float | None = None
    hit_rate: float | None = None
    """Of the prompt tokens, those out of the prefix cache; since the server's start where none came meanwhile."""
    tokens_per_second: float | None = None
    """Delivered to clients."""
    computed_per_second: float | None = None
    """Through the model, prompts included."""
    steps_per_second: float | None = None
    step_seconds: dict[str, float] = field(default_factory=dict)
    """Seconds of a step, by part."""
    first_token: dict[str, Spread] = field(default_factory=dict)
    gap: dict[str, Spread] = field(default_factory=dict)
    outcomes_per_second: dict[str, float] = field(default_factory=dict)
    rejections_per_second: dict[str, float] = field(default_factory=dict)
    devices: dict[str, float] = field(default_factory=dict)
    """Utilisation of the GPUs, by their number."""
    errors: tuple[str, ...] = ()
    """What could not be read, and why."""


def view_of(address: str, before: Reading, now: Reading) -> View:
    """``before`` must be the earlier one; a server that restarted between them counts from its start."""
    errors = tuple(error for error in (now.load_error, now.metrics_error) if error)
    facts: dict[str, object] = {}
    if now.load is not None:
        load = now.load
        facts = {
            "ready": load.ready,
            "busy": load.busy,
            "running": load.running,
            "open_streams": load.open_streams,
            "waiting": {priority.value: count for priority, count in load.waiting.items()},
            "waiting_tokens": load.waiting_tokens,
            "kv_utilisation": load.kv_utilisation,
            "kv_cached": load.kv_cached,
        }
    if now.samples:
        facts |= _metric_facts(before, now)
    return View(address, now.reachable, errors=errors, **facts)  # type: ignore[arg-type]  # names are View's


def _metric_facts(before: Reading, now: Reading) -> dict[str, object]:
    since = _Since(before, now)
    steps = since.grown("firsttoken_steps_total")
    spent = {part: since.grown("firsttoken_step_seconds_total", part=part) for part in PARTS}
    tokens = sum(since.grown("firsttoken_completion_tokens_total", **{"class": name}) for name in CLASSES)
    return {
        "hit_rate": _hit_rate(since, now),
        "tokens_per_second": tokens / since.seconds,
        "computed_per_second": since.grown("firsttoken_computed_tokens_total") / since.seconds,
        "steps_per_second": steps / since.seconds,
        "step_seconds": {part: seconds / steps for part, seconds in spent.items()} if steps else {},
        "first_token": {name: since.spread("firsttoken_time_to_first_token_seconds", name) for name in CLASSES},
        "gap": {name: since.spread("firsttoken_inter_token_seconds", name) for name in CLASSES},
        "outcomes_per_second": _outcomes(since, now),
        "rejections_per_second": {
            reason: since.grown("firsttoken_rejections_total", reason=reason) / since.seconds
            for reason in now.labelled("firsttoken_rejections_total", "reason")
        },
        "devices": now.labelled("firsttoken_device_utilisation_ratio", "device"),
    }


def _hit_rate(since: _Since, now: Reading) -> float | None:
    prompt, hit = "firsttoken_prompt_tokens_total", "firsttoken_prefix_hit_tokens_total"
    if tokens := since.grown(prompt):
        return since.grown(hit) / tokens
    return now.value(hit) / now.value(prompt) if now.value(prompt) else None


def _outcomes(since: _Since, now: Reading) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, labels in now.samples:
        if name == "firsttoken_requests_total":
            given = dict(labels)
            rate = since.grown(name, **given) / since.seconds
            found[given["outcome"]] = found.get(given["outcome"], 0.0) + rate
    return {outcome: rate for outcome, rate in found.items() if rate}


class _Since:
    """What grew between two readings. A counter that fell was begun anew: its process, or its engine, is another."""

    def __init__(self, before: Reading, now: Reading) -> None:
        self._before, self._now = before, now
        self.seconds = max(1e-3, now.at - before.at)

    def grown(self, name: str, **labels: str) -> float:
        earlier, later = self._before.value(name, **labels), self._now.value(name, **labels)
        return later - earlier if later >= earlier else later

    def spread(self, name: str, priority: str) -> Spread:
        labels = {"class": priority}
        later, earlier = self._now.buckets(name, **labels), self._before.buckets(name, **labels)
        counts = {bound: count - earlier.get(bound, 0.0) for bound, count in later.items()}
        if any(count < 0 for count in counts.values()):
            counts = later
        return Spread(quantile(counts, 0.5), quantile(counts, 0.95))


def quantile(counts: dict[float, float], share: float) -> float | None:
    """Of cumulative counts by upper bound, as Prometheus' histogram_quantile: linear within a bucket."""
    bounds = sorted(counts)
    if not bounds or not counts[bounds[-1]]:
        return None
    wanted, low, below = share * counts[bounds[-1]], 0.0, 0.0
    for bound in bounds:
        if counts[bound] >= wanted:
            if bound == float("inf") or counts[bound] == below:
                return low
            return low + (bound - low) * (wanted - below) / (counts[bound] - below)
        low, below = bound, counts[bound]
    return low
