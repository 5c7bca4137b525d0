"""Settings that other parts define once more, as their own: the two must not drift apart."""

from __future__ import annotations

import dataclasses

from server.config import SchedulerConfig
from server.scheduling.config import BatcherConfig


def test_the_schedulers_settings_are_the_batchers() -> None:
    assert SchedulerConfig().model_dump() == dataclasses.asdict(BatcherConfig())
