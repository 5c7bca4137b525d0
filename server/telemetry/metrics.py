"""Every metric of the server, with its definition, in a registry of its own.

Definitions that others build dashboards on do not drift: TTFT is from the server's reading of a request until its first output is
about to be written; a gap between tokens is the time between two writes of one stream divided by the tokens of the later
one, observed once a write. What the engine counts is read from its snapshot when somebody scrapes, and costs nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from server.engine import EngineInfo, EngineStats, PriorityClass
from server.telemetry.devices import Devices
from server.telemetry.gc_pauses import GcPauses
from server.telemetry.tally import TallyFamily

CLASSES = tuple(priority.name.lower() for priority in PriorityClass)
STEP_PARTS = ("plan", "engine", "sample", "deliver")
BLOCK_STATES = ("free", "cached", "in_use", "quarantined")
CACHE_SAVES = ("saved", "failed")
CACHE_RESTORES = ("restored", "foreign", "corrupt", "unreadable")

# Upper bounds in seconds. A voice agent cares about 50 ms, a saturated queue about a minute.
WAITS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 60.0)
GAPS = (0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 3.0)
TOTALS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0)
LAGS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class Metrics:
    """What is counted as it happens. Any thread; in practice the event loop."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self.requests = self._counter("requests", "Generate requests that are over, by how.", "class", "outcome")
        self.rejections = self._counter("rejections", "Requests refused for lack of room, by which limit.", "reason")
        self.rpcs = self._counter("rpcs", "Calls of every kind that are over, by status.", "method", "code")
        self.authentication_failures = self._counter(
            "authentication_failures", "Calls refused for their credentials, by what was wrong.", "cause"
        )
        self.reloads = self._counter("reloads", "Files read again because they changed, by outcome.", "what", "outcome")
        self.trace_spans = self._counter("trace_spans", "Spans of traces, by what became of them.", "outcome")
        self.completion_tokens = self._counter("completion_tokens", "Output tokens that count for clients.", "class")
        self.first_token = self._histogram("time_to_first_token_seconds", "Arrival to first write.", WAITS, "class")
        self.gap = TallyFamily(
            "firsttoken_inter_token_seconds", "Time between writes of a stream, per token.", GAPS, "class", CLASSES
        )
        self.registry.register(self.gap)
        self.queue = self._histogram(
            "queue_seconds", "Arrival until the prompt's first step was planned.", WAITS, "class"
        )
        self.total = self._histogram("request_seconds", "Arrival to end, of requests that ended well.", TOTALS, "class")
        self.loop_lag = self._histogram("event_loop_lag_seconds", "How late the event loop wakes from a sleep.", LAGS)
        self.interpreter_wait = self._histogram(
            "interpreter_wait_seconds", "How long a thread waits for Python's interpreter lock, sampled.", LAGS
        )
        self.startup = self._gauge("startup_seconds", "Duration of each phase of the start.", "phase")
        ProcessCollector(registry=self.registry)
        self.gc_pauses = GcPauses()
        self.registry.register(self.gc_pauses)
        self.devices = Devices()
        self.registry.register(self.devices)
        self._engine = EngineCollector()
        self.registry.register(self._engine)
        self.cache_config = Info(
            "firsttoken_cache_config", "The KV pool's shape: the gateway's.", registry=self.registry
        )
        self.build = Info("firsttoken_build", "What serves.", registry=self.registry)

    def watch_server(self, ready: Callable[[], bool], streams: Callable[[], int]) -> None:
        """Report readiness and open streams at each scrape."""
        self._gauge("ready", "1 when new requests are taken: the truth of health and /readyz.").set_function(ready)
        self._gauge("open_streams", "Generate streams open on the wire.").set_function(streams)

    def watch_engine(self, info: EngineInfo, stats: Callable[[], EngineStats], version: str) -> None:
        """Report the engine's snapshot at each scrape. When it is loaded, or swapped in."""
        self.build.info({"version": version, "engine": info.kind, "model": info.model, "fingerprint": info.fingerprint})
        self.cache_config.info({"block_size": str(info.block_size), "num_gpu_blocks": str(info.block_count)})
        self._engine.stats = stats

    def render(self) -> bytes:
        """The text format of Prometheus."""
        return generate_latest(self.registry)

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(f"firsttoken_{name}", help_text, labels, registry=self.registry)

    def _gauge(self, name: str, help_text: str, *labels: str) -> Gauge:
        return Gauge(f"firsttoken_{name}", help_text, labels, registry=self.registry)

    def _histogram(self, name: str, help_text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"firsttoken_{name}", help_text, labels, buckets=buckets, registry=self.registry)


class _Reading(NamedTuple):
    """A metric that has one value and is read off the engine's snapshot."""

    name: str
    help_text: str
    read: Callable[[EngineStats], float]


_GAUGES = (
    _Reading("engine_alive", "1 while the engine runs.", lambda s: s.alive),
    _Reading("engine_idle_seconds", "Since the engine's loop last showed life.", lambda s: s.last_step_age or 0.0),
    _Reading("busy_ratio", "Share of the recent time in which the engine computed.", lambda s: s.busy),
    _Reading("step_cost_error_ratio", "Usual relative error of a step's predicted time.", lambda s: s.step_cost_error),
    _Reading("running_sequences", "Sequences that hold a seat.", lambda s: s.running),
    _Reading(
        "queued_requests", "Requests without a seat, all classes: the gateway's.", lambda s: sum(s.waiting_by_class)
    ),
    _Reading("waiting_tokens", "Prompt tokens yet to be computed.", lambda s: s.waiting_tokens),
    _Reading(
        "kv_utilisation_ratio", "KV blocks in use by running sequences, of all.", lambda s: kv_share(s, s.blocks_in_use)
    ),
    _Reading("kv_pinned_blocks", "KV blocks that operators pinned, among those in use.", lambda s: s.blocks_pinned),
)
_COUNTERS = (
    _Reading("steps", "Steps of the engine.", lambda s: s.steps),
    _Reading("step_predicted_seconds", "What the cost model said the steps would take.", lambda s: s.predicted_seconds),
    _Reading("prompt_tokens", "Prompt tokens of requests that were seated.", lambda s: s.prompt_tokens),
    _Reading("prefix_hit_tokens", "Of these, tokens that came out of the prefix cache.", lambda s: s.cached_tokens),
    _Reading("computed_tokens", "Tokens run through the model.", lambda s: s.computed_tokens),
    _Reading("generated_tokens", "Tokens drawn.", lambda s: s.generated_tokens),
    _Reading("discarded_tokens", "Tokens drawn and thrown away.", lambda s: s.discarded_tokens),
    _Reading("preemptions", "Sequences set aside and recomputed.", lambda s: s.preemptions),
    _Reading("kv_evictions", "Cached KV blocks given up to make room.", lambda s: s.blocks_evicted),
    _Reading("held_calls", "Calls into the engine's library that hold up every Python thread.", lambda s: s.held_calls),
    _Reading("held_seconds", "How long these calls took.", lambda s: s.held_seconds),
)


def kv_share(stats: EngineStats, blocks: int) -> float:
    """``blocks`` as a share of the pool; 0 for an engine that tells of none."""
    total = stats.blocks_free + stats.blocks_cached + stats.blocks_in_use + stats.blocks_quarantined
    return blocks / total if total else 0.0


class EngineCollector(Collector):
    """Turns one snapshot of the engine into metrics, whenever somebody scrapes."""

    def __init__(self) -> None:
        self.stats: Callable[[], EngineStats] | None = None
        """Of the engine that serves; a swapped-in one begins to count at 0."""

    def collect(self) -> Iterator[Metric]:
        if self.stats is None:
            return
        stats = self.stats()
        for gauge in _GAUGES:
            yield GaugeMetricFamily(f"firsttoken_{gauge.name}", gauge.help_text, value=gauge.read(stats))
        for counter in _COUNTERS:
            yield CounterMetricFamily(f"firsttoken_{counter.name}", counter.help_text, value=counter.read(stats))
        waiting = GaugeMetricFamily("firsttoken_waiting_requests", "Requests without a seat.", labels=("class",))
        for name, count in zip(CLASSES, stats.waiting_by_class, strict=True):
            waiting.add_metric((name,), count)
        blocks = GaugeMetricFamily("firsttoken_kv_blocks", "KV blocks by state.", labels=("state",))
        for name, count in zip(BLOCK_STATES, _block_counts(stats), strict=True):
            blocks.add_metric((name,), count)
        seconds = CounterMetricFamily(
            "firsttoken_step_seconds", "Where the engine thread's time went.", labels=("part",)
        )
        for name, spent in zip(STEP_PARTS, _step_seconds(stats), strict=True):
            seconds.add_metric((name,), spent)
        yield from (waiting, blocks, seconds)
        yield from _saved_cache(stats)


def _saved_cache(stats: EngineStats) -> Iterator[Metric]:
    saved = stats.saved_cache
    for name, help_text, counts, outcomes in (
        ("cache_saves", "Saves of the prefix cache, by outcome.", saved.saves, CACHE_SAVES),
        ("cache_restores", "Saved caches found at start, by outcome.", saved.restores, CACHE_RESTORES),
    ):
        family = CounterMetricFamily(f"firsttoken_{name}", help_text, labels=("outcome",))
        for outcome in outcomes:
            family.add_metric((outcome,), counts.get(outcome, 0))
        yield family
    for name, help_text, value in (
        ("cache_saved_blocks", "KV blocks in the file that was saved last.", saved.saved_blocks),
        ("cache_restored_blocks", "KV blocks that were restored at start.", saved.restored_blocks),
    ):
        yield GaugeMetricFamily(f"firsttoken_{name}", help_text, value=value)


def _block_counts(stats: EngineStats) -> tuple[int, int, int, int]:
    return stats.blocks_free, stats.blocks_cached, stats.blocks_in_use, stats.blocks_quarantined


def _step_seconds(stats: EngineStats) -> tuple[float, float, float, float]:
    return stats.plan_seconds, stats.engine_seconds, stats.sample_seconds, stats.deliver_seconds
