"""What counts as a dead or a hung engine."""

from __future__ import annotations

import msgspec
import pytest

from server.watchdog import EngineWatchdog
from tests.fakes.fake_engine import FakeEngine


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        ({"alive": False}, "died"),
        ({"step_running_for": 59.0, "last_step_age": 59.0}, None),
        ({"step_running_for": 61.0}, "one step"),
        ({"step_running_for": 1.0, "last_step_age": 100.0}, None),
        ({"step_running_for": None, "last_step_age": 61.0}, "no life"),
        ({"step_running_for": None, "last_step_age": None}, None),
    ],
)
def test_verdicts_case_B8_B9(changes: dict[str, object], words: str | None) -> None:
    engine = FakeEngine()
    stats = msgspec.structs.replace(engine.stats(), **changes)
    verdict = EngineWatchdog(engine, stuck_after=60.0).verdict(stats)
    assert (verdict is None) if words is None else (words in str(verdict))
