"""One look at a server: its load by gRPC, its metrics by HTTP. Either may be missing, and then says why."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field

from firsttoken.client import CallError, Load

SampleKey = tuple[str, frozenset[tuple[str, str]]]


@dataclass(frozen=True, slots=True)
class Reading:
    at: float
    """``time.monotonic()``."""
    load: Load | None = None
    load_error: str = ""
    samples: dict[SampleKey, float] = field(default_factory=dict)
    metrics_error: str = ""

    @property
    def reachable(self) -> bool:
        return self.load is not None or bool(self.samples)

    def value(self, name: str, **labels: str) -> float:
        """A sample; 0 where there is none, as a counter that has not counted yet."""
        return self.samples.get((name, frozenset(labels.items())), 0.0)

    def labelled(self, name: str, label: str) -> dict[str, float]:
        """All samples of a name that have one label, by its value."""
        found = {}
        for (sample, labels), value in self.samples.items():
            if sample == name and len(labels) == 1:
                ((key, text),) = labels
                if key == label:
                    found[text] = value
        return found

    def buckets(self, name: str, **labels: str) -> dict[float, float]:
        """A histogram's cumulative counts by upper bound."""
        wanted = set(labels.items())
        found = {}
        for (sample, given), value in self.samples.items():
            bounds = [text for key, text in given if key == "le"]
            if sample == f"{name}_bucket" and bounds and given - {("le", bounds[0])} == wanted:
                found[float(bounds[0])] = value
        return found


def read(ask: Callable[[], Load], metrics_url: str, *, timeout: float) -> Reading:
    """Never raises for a server that is away: the reading says so. ``timeout``: seconds for the metrics."""
    load, load_error = None, ""
    try:
        load = ask()
    except CallError as error:
        load_error = str(error)
    samples: dict[SampleKey, float] = {}
    metrics_error = ""
    try:
        samples = parse(fetch(metrics_url, timeout))
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        metrics_error = f"{metrics_url}: {reason}"
    return Reading(time.monotonic(), load, load_error, samples, metrics_error)


def fetch(url: str, timeout: float) -> str:
    """Raises OSError and HTTPException. No proxy: this is about a server one operates."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=timeout) as response:
        return str(response.read().decode())


def parse(text: str) -> dict[SampleKey, float]:
    """Raises ValueError where it is not Prometheus' text format."""
    from prometheus_client.parser import text_string_to_metric_families

    families = text_string_to_metric_families(text)
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}
