"""GPUs show where there are some, and nowhere else."""

from __future__ import annotations

import sys
import threading
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from server.telemetry.devices import Devices
from server.telemetry.metrics import Metrics


class NVMLError(Exception):
    pass


class FakeNvml(ModuleType):
    """pynvml with two GPUs: 80 GiB each, the second one busy."""

    NVMLError = NVMLError

    def __init__(self, *, driver: bool = True) -> None:
        super().__init__("pynvml")
        self.driver = driver
        self.lost = threading.Event()
        self.read = threading.Event()
        self.open = 0

    def nvmlInit(self) -> None:
        if not self.driver:
            raise NVMLError("no driver")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:
        return number

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        if self.lost.is_set():
            raise NVMLError("GPU is lost")
        return SimpleNamespace(used=(handle + 1) << 30, total=80 << 30)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        if handle == 1:
            self.read.set()
        return SimpleNamespace(gpu=(0, 97)[handle])


def shown(devices: Devices) -> dict[tuple[str, ...], float]:
    return {
        (sample.name.removeprefix("firsttoken_device_"), *sample.labels.values()): sample.value
        for family in devices.collect()
        for sample in family.samples
    }


def watched(monkeypatch: pytest.MonkeyPatch, nvml: FakeNvml) -> Devices:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr("server.telemetry.devices.PERIOD", 0.01)
    devices = Devices()
    devices.start()
    return devices


def test_every_gpu_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    devices = watched(monkeypatch, nvml)
    assert nvml.read.wait(60)
    while not (found := shown(devices)):
        pass
    assert found == {
        ("utilisation_ratio", "0"): 0.0,
        ("utilisation_ratio", "1"): 0.97,
        ("memory_bytes", "0", "used"): 1 << 30,
        ("memory_bytes", "0", "free"): 79 << 30,
        ("memory_bytes", "1", "used"): 2 << 30,
        ("memory_bytes", "1", "free"): 78 << 30,
    }
    devices.close()
    devices.close()
    assert nvml.open == 0


def test_a_gpu_that_is_lost_ends_the_watch_and_shows_nothing_old(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml()
    devices = watched(monkeypatch, nvml)
    assert nvml.read.wait(60)
    nvml.lost.set()
    assert devices._thread is not None
    devices._thread.join(60)
    assert (shown(devices), nvml.open) == ({}, 0)


def test_without_a_driver_or_the_package_there_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shown(watched(monkeypatch, FakeNvml(driver=False))) == {}
    monkeypatch.setitem(sys.modules, "pynvml", None)
    devices = Devices()
    devices.start()
    devices.close()
    assert shown(devices) == {}
    assert b"firsttoken_device" not in Metrics().render()
