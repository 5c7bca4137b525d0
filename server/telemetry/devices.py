"""How busy the GPUs are and how full, where there are any: NVIDIA's management library, asked on a thread of its own.

A scrape must not wait for a driver, so it shows the last reading. Without ``nvidia-ml-py`` (part of ``firsttoken[trtllm]``), or without a
GPU, there are no such metrics at all: a 0 would be a lie.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias

import structlog
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

log = structlog.get_logger(__name__)

PERIOD = 1.0
"""Seconds between readings; the library's own utilisation is that of the last second or less."""

Nvml: TypeAlias = Any
"""The module pynvml, which has no types."""


class Reading(NamedTuple):
    device: str
    """Its number, as nvidia-smi counts."""
    utilisation: float
    """Share of the last moments in which a kernel ran, 0 to 1."""
    used: int
    """Bytes of its memory, whoever uses them."""
    total: int


class Devices(Collector):
    """Any thread may scrape."""

    def __init__(self) -> None:
        self._readings: tuple[Reading, ...] = ()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Look for GPUs, and watch them where there are any. Once."""
        nvml = _library()
        if nvml is not None:
            self._thread = threading.Thread(target=self._watch, args=(nvml,), name="devices", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Idempotent, and right where it was never started."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(PERIOD)

    def _watch(self, nvml: Nvml) -> None:
        try:
            handles = [nvml.nvmlDeviceGetHandleByIndex(number) for number in range(nvml.nvmlDeviceGetCount())]
            while not self._over.is_set():
                self._readings = tuple(_read(nvml, number, handle) for number, handle in enumerate(handles))
                self._over.wait(PERIOD)
        except nvml.NVMLError as error:
            log.warning("the GPUs are no longer watched", why=str(error))
        finally:
            self._readings = ()
            nvml.nvmlShutdown()

    def collect(self) -> Iterator[Metric]:
        readings = self._readings
        if not readings:
            return
        busy = GaugeMetricFamily(
            "firsttoken_device_utilisation_ratio",
            "Share of the last second in which a GPU computed.",
            labels=("device",),
        )
        memory = GaugeMetricFamily(
            "firsttoken_device_memory_bytes", "A GPU's memory, used by anybody, and free.", labels=("device", "state")
        )
        for reading in readings:
            busy.add_metric((reading.device,), reading.utilisation)
            memory.add_metric((reading.device, "used"), reading.used)
            memory.add_metric((reading.device, "free"), reading.total - reading.used)
        yield from (busy, memory)


def _library() -> Nvml | None:
    """The library, open; None where it, its driver or a GPU is missing."""
    try:
        nvml = import_module("pynvml")
        nvml.nvmlInit()
    except ImportError:
        return None
    except nvml.NVMLError:
        return None
    return nvml


def _read(nvml: Nvml, number: int, handle: object) -> Reading:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return Reading(str(number), nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100, memory.used, memory.total)
