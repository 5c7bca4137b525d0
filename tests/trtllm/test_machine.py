"""What a machine has, as nvidia-smi and the environment say: no more than the ranks will see."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engines.contract import EngineLoadError
from engines.trtllm.machine import observe_machine

SMI = """#!/bin/sh
test "$1" = "-i" && { wanted=" $(echo "$2" | tr , ' ') "; } || wanted=" 0 1 2 3 "
for gpu in 0 1 2 3; do
  case "$wanted" in *" $gpu "*) echo "NVIDIA H100 $gpu, 9.0, 81559, 580.95.05";; esac
done
"""


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A driver with four GPUs."""
    program = tmp_path / "nvidia-smi"
    program.write_text(SMI)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return program


@pytest.mark.parametrize(
    ("visible", "seen"),
    [(None, ["0", "1", "2", "3"]), ("1,3", ["1", "3"]), ("2", ["2"]), ("", []), ("-1", [])],
    ids=["unset", "two", "one", "empty", "none"],
)
def test_only_visible_gpus_count(
    smi: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, seen: list[str]
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    machine = observe_machine()
    assert [gpu.name.split()[-1] for gpu in machine.gpus] == seen
    assert machine.driver == "580.95.05"


def test_a_machine_without_a_driver_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    machine = observe_machine()
    assert (machine.driver, machine.gpus, machine.mpirun) == (None, (), None)


def test_what_nvidia_smi_says_when_it_fails_is_passed_on(smi: Path) -> None:
    smi.write_text("#!/bin/sh\necho 'No devices were found'; exit 6\n")
    with pytest.raises(EngineLoadError, match="nvidia-smi fails: No devices were found"):
        observe_machine()
