"""The fast histogram shows exactly what prometheus_client's would."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from server.telemetry.metrics import GAPS
from server.telemetry.tally import TallyFamily

# Sums of these are exact, so that the order of adding cannot show.
VALUES = st.lists(st.tuples(st.sampled_from(("a", "b")), st.integers(0, 4096).map(lambda n: n / 1024)), max_size=50)


@given(VALUES)
def test_the_same_exposition_as_the_librarys(values: list[tuple[str, float]]) -> None:
    ours, theirs = CollectorRegistry(auto_describe=True), CollectorRegistry()
    family = TallyFamily("x_seconds", "Help.", (*GAPS[:-1], 2.0), "class", ("a", "b"))
    ours.register(family)
    histogram = Histogram("x_seconds", "Help.", ("class",), buckets=(*GAPS[:-1], 2.0), registry=theirs)
    for label in ("a", "b"):
        histogram.labels(label)
    for label, value in values:
        family.labels(label).observe(value)
        histogram.labels(label).observe(value)
    assert shown(ours) == shown(theirs)


def shown(registry: CollectorRegistry) -> list[str]:
    """Without the times of creation."""
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]
