"""The default model's own file, nine heads and three key heads: three ranks carry it exactly, two cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from build_scripts.errors import UnsupportedError
from build_scripts.source import DEFAULT_MODEL, default_cache
from build_scripts.trtllm.build import CheckpointRequest, build, make_plan
from build_scripts.trtllm.layout import Layout
from build_scripts.trtllm.verify import verify_against
from tests.engines_built import SilentReporter

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def request(output: Path, tp: int) -> CheckpointRequest:
    return CheckpointRequest(
        DEFAULT_MODEL, output, Layout(tp, 1), "float32", None, share_embedding=False, cache=default_cache()
    )


def test_three_ranks_compute_what_the_file_computes(tmp_path: Path) -> None:
    plan = make_plan(request(tmp_path / "ranks", 3), SilentReporter())
    build(plan, SilentReporter())
    proof = verify_against(tmp_path / "ranks", plan.source.path, 24)
    assert proof.max_difference <= 1e-12


def test_two_ranks_are_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=r"9.*heads"):
        make_plan(request(tmp_path / "ranks", 2), SilentReporter())
    assert not (tmp_path / "ranks").exists()
