from __future__ import annotations

import os
from pathlib import Path

import psutil
import pytest

from engines.openvino.host import available_memory, usable_cores


def group(path: Path, **files: str) -> Path:
    for name, text in files.items():
        (path / name.replace("_", ".")).write_text(text + "\n")
    return path


def test_without_a_control_group_the_machine_is_all_there_is(tmp_path: Path) -> None:
    assert available_memory(tmp_path) == pytest.approx(psutil.virtual_memory().available, rel=0.2)
    assert usable_cores(tmp_path) == len(os.sched_getaffinity(0))


def test_a_control_group_without_limits(tmp_path: Path) -> None:
    unlimited = group(tmp_path, memory_max="max", memory_current="1000", cpu_max="max 100000")
    assert available_memory(unlimited) == pytest.approx(psutil.virtual_memory().available, rel=0.2)
    assert usable_cores(unlimited) == len(os.sched_getaffinity(0))


def test_memory_limit_less_what_is_used_and_cannot_be_given_up(tmp_path: Path) -> None:
    limited = group(
        tmp_path, memory_max="1000000", memory_current="700000", memory_stat="anon 5\ninactive_file 200000\nfile 3"
    )
    assert available_memory(limited) == 500_000


def test_memory_used_beyond_the_limit_is_none_left(tmp_path: Path) -> None:
    assert available_memory(group(tmp_path, memory_max="1000", memory_current="5000")) == 0


@pytest.mark.parametrize(("quota", "cores"), [("50000 100000", 1), ("100000 100000", 1), ("1000 100000", 1)])
def test_share_of_time_is_rounded_up_and_at_least_one(tmp_path: Path, quota: str, cores: int) -> None:
    assert usable_cores(group(tmp_path, cpu_max=quota)) == cores


def test_a_share_above_the_cores_that_there_are(tmp_path: Path) -> None:
    assert usable_cores(group(tmp_path, cpu_max="99900000 100000")) == len(os.sched_getaffinity(0))
