"""The bill of a machine that an engine was measured on."""

from __future__ import annotations

import msgspec

from engines.manifest import FileEntry
from engines.openvino.memory_need import loaded_bytes
from loadtest.planner.machine import machine_bill
from tests.openvino.tiny_engine import with_numerics


def test_the_plan_counts_an_engine_as_the_loader_does() -> None:
    files = (
        FileEntry("model.bin", 1000, "00"),
        FileEntry("wide.bin", 4000, "00"),
        FileEntry("tokenizer.json", 7, "00"),
    )
    manifest = msgspec.structs.replace(with_numerics(wide_weights="bf16"), files=files)
    bill = machine_bill(manifest, free=10**9)
    assert bill.weights + bill.workspace == loaded_bytes(manifest)
    assert bill.usable == bill.kv + loaded_bytes(manifest)
