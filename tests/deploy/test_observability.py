"""Dashboard, alerts and runbook ask only for what exists."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml
from prometheus_client import Metric

from server.config import TelemetryConfig
from server.telemetry.devices import Reading
from server.telemetry.metrics import Metrics
from server.telemetry.requests import RequestTelemetry
from tests.fakes.fake_engine import FakeEngine

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD, ALERTS = ROOT / "deploy/grafana/firsttoken.json", ROOT / "deploy/prometheus/alerts.yml"
RUNBOOK = ROOT / "docs/operations.md"
NAME = re.compile(r"\b(?:firsttoken|process)_[a-z_]+")
SELECTOR = re.compile(r"\b((?:firsttoken|process)_[a-z_]+)\{([^}]*)\}")
GROUPING = re.compile(r"by \(([^)]*)\)")
TARGET_LABELS = {"instance"}
"""Prometheus adds them."""
MAX_SERIES = 60


GATEWAY = {"firsttoken_queued_requests", "firsttoken_running_sequences", "firsttoken_kv_utilisation_ratio"}
"""What the Kubernetes inference gateway's endpoint picker is told to read."""


def everything() -> Metrics:
    """As a server on a machine with a GPU."""
    metrics, engine = Metrics(), FakeEngine()
    metrics.devices._readings = (Reading("0", 0.5, 1, 2),)
    RequestTelemetry(metrics, TelemetryConfig())
    metrics.watch_server(lambda: True, lambda: 0)
    metrics.watch_engine(engine.info, engine.stats, "1")
    return metrics


def families() -> list[Metric]:
    return list(everything().registry.collect())


def known() -> dict[str, set[str]]:
    """Every series name to its labels; those of counters and histograms without a child are declared, too."""
    metrics = everything()
    found: dict[str, set[str]] = {}
    for name, collector in metrics.registry._names_to_collectors.items():
        found[name] = set(getattr(collector, "_labelnames", ()))
    for family in metrics.registry.collect():
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def expressions() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    return [target["expr"] for panel in panels for target in panel["targets"]] + [rule["expr"] for rule in rules]


def test_every_name_and_label_that_is_asked_for_exists() -> None:
    labels = known()
    for expression in expressions():
        names = NAME.findall(expression)
        assert names, expression
        for name in names:
            assert name in labels, f"{name} in {expression}"
        for name, selectors in SELECTOR.findall(expression):
            asked = {part.split("=")[0].rstrip("!~").strip() for part in selectors.split(",")}
            assert asked - TARGET_LABELS <= labels[name], expression
        for group in GROUPING.findall(expression):
            asked = {label.strip() for label in group.split(",")}
            offered = set().union(*(labels[name] for name in names)) | TARGET_LABELS
            if any(name.endswith("_bucket") for name in names):
                offered |= {"le"}
            assert asked <= offered, expression


def test_every_alert_has_its_place_in_the_runbook_and_says_how_bad_it_is() -> None:
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    headings = set(re.findall(r"^### (Firsttoken\w+)$", RUNBOOK.read_text(), re.MULTILINE))
    assert {rule["alert"] for rule in rules} == headings
    for rule in rules:
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert rule["annotations"]["summary"]


def test_every_metric_is_in_the_runbook() -> None:
    text = RUNBOOK.read_text()
    for family in families():
        name = family.name if family.type != "counter" else f"{family.name}_total"
        name = f"{name}_info" if family.type == "info" else name
        short = name.removeprefix("firsttoken")
        assert name.startswith("process_") or name in text or f"`{short}" in text, name


def test_the_gateways_gauges_are_there_and_named_in_the_runbook() -> None:
    found = {family.name: family for family in families()}
    for name in GATEWAY:
        assert found[name].type == "gauge"
        (sample,) = found[name].samples  # one number, without labels, is what it can read
        assert sample.labels == {}
    (config,) = found["firsttoken_cache_config"].samples
    assert set(config.labels) == {"block_size", "num_gpu_blocks"}
    section = RUNBOOK.read_text().split("### Kubernetes inference gateway")[1].split("## ")[0]
    assert all(name in section for name in (*GATEWAY, "firsttoken_cache_config_info"))


def test_names_units_help_and_cardinality() -> None:
    """Prometheus' conventions: base units in the name, counters end in _total, and no label that clients can fill."""
    for family in families():
        assert re.fullmatch(r"(firsttoken|process)_[a-z_]+", family.name)
        assert family.documentation
        assert not family.name.endswith(("_ms", "_milliseconds", "_percent", "_total")), family.name
        assert len(family.samples) <= MAX_SERIES * (20 if family.type == "histogram" else 1), family.name
        free = {label for sample in family.samples for label in sample.labels} & {"tenant", "request", "user", "token"}
        assert not free, family.name
