"""What counts as a dead or a hung engine."""

from __future__ import annotations

import msgspec
import pytest

from server.engine import EngineStats
from server.watchdog import PERIOD, EngineWatchdog
from tests.fakes.fake_engine import FakeEngine


class Watched(FakeEngine):
    """An engine whose steps end when the test says so, and a clock."""

    def __init__(self, **changes: object) -> None:
        super().__init__()
        self.changes = changes
        self.now = 100.0
        self.step_began = self.now

    def stats(self) -> EngineStats:
        running = self.now - self.step_began
        return msgspec.structs.replace(super().stats(), **({"step_running_for": running} | self.changes))

    def watchdog(self) -> EngineWatchdog:
        return EngineWatchdog(self, stuck_after=60.0, clock=lambda: self.now)

    def look_until(self, watchdog: EngineWatchdog, seconds: float) -> list[str]:
        """Look as often as one should, until ``seconds`` from now; everything that was reported."""
        verdicts = []
        end = self.now + seconds
        while self.now < end:
            self.now += PERIOD
            verdicts.append(watchdog.look())
        return [verdict for verdict in verdicts if verdict]


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
    verdict = Watched(**changes).watchdog().look()
    assert (verdict is None) if words is None else (words in str(verdict))


def test_a_step_that_does_not_end_is_reported() -> None:
    engine = Watched()
    watchdog = engine.watchdog()
    assert not engine.look_until(watchdog, 60.0)
    assert "one step" in engine.look_until(watchdog, PERIOD)[0]


def test_time_in_which_the_whole_process_stood_still_is_not_held_against_the_engine() -> None:
    engine = Watched()
    watchdog = engine.watchdog()
    assert not engine.look_until(watchdog, 10.0)
    engine.now += 300.0  # the machine was paused amid a step
    assert not engine.look_until(watchdog, 49.0)
    assert engine.look_until(watchdog, 2.0)


def test_a_pause_is_forgiven_to_the_step_that_it_hit_alone() -> None:
    engine = Watched()
    watchdog = engine.watchdog()
    watchdog.look()
    engine.now += 300.0
    assert not engine.look_until(watchdog, 1.0)
    engine.step_began = engine.now
    assert not engine.look_until(watchdog, 60.0)
    assert engine.look_until(watchdog, 1.0)
