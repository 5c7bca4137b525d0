"""`make gpu-check` on a machine without GPUs: nothing passes by default, nothing stops the report, and the checks themselves can fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu_check
from benchmarks.gpu_checks import CHECKS, gaps_between_tokens, installed_names, requests_are_controlled
from benchmarks.gpu_features import FEATURES, Feature, features_are_taken
from benchmarks.gpu_workbench import NotHereError, Workbench
from engines.sampling.params import Guide, SamplingParams
from engines.trtllm.machine import Machine
from engines.trtllm.probe import EXPECTED
from tests.trtllm.engines import HERE
from tests.trtllm.fake_site.tensorrt_llm.bindings import executor as fake_bindings
from tests.trtllm.rig import fake_executor

BARE = Machine(tensorrt_llm=None, tensorrt=None, cuda=None, driver=None, gpus=(), mpirun=None)


def test_there_are_seven_questions() -> None:
    assert len(CHECKS) == 7
    assert all(question.endswith("?") for question, _ in CHECKS)


def test_without_gpus_every_check_is_skipped_with_its_reason_and_none_passes(tmp_path: Path) -> None:
    outcomes = gpu_check.run(Workbench("some-model", None, tmp_path, BARE))
    assert {(outcome.status, outcome.found) for outcome in outcomes} == {("skipped", "TensorRT-LLM is not installed")}


def test_the_report_is_written_and_says_that_not_all_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tmp_path / "out" / "report.json"
    monkeypatch.setattr("benchmarks.gpu_workbench.observe_machine", lambda: BARE)
    assert gpu_check.main(["--report", str(report), "--model", "some-model"]) == 1
    document = json.loads(report.read_text())
    assert [check["number"] for check in document["checks"]] == [1, 2, 3, 4, 5, 6, 7]
    assert document["environment"]["gpus"] == []


def test_a_check_that_breaks_is_a_failure_and_the_next_still_runs(tmp_path: Path) -> None:
    def broken(_: Workbench) -> Any:
        raise ZeroDivisionError("on purpose")

    outcome = gpu_check.run_check(1, "?", broken, Workbench("m", None, tmp_path, HERE))
    assert outcome.status == "failed"
    assert "on purpose" in outcome.found


def test_too_few_gpus_are_said_not_failed(tmp_path: Path) -> None:
    one = Machine(**{**vars(HERE), "gpus": HERE.gpus[:1]})
    with pytest.raises(NotHereError, match="needs 2 GPUs, found 1"):
        Workbench("m", None, tmp_path, one).require(2)


def test_cancel_time_and_priority_are_checked_on_an_executor_that_has_them() -> None:
    executor = fake_executor(256, 8, habits={"fixed": 0.002, "end_rate": 0.0})
    found = requests_are_controlled(executor)
    assert found["cancel_seconds"] > 0
    executor.close()


def test_what_is_installed_is_listed_name_by_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the fake for the library: the report holds each class's names and what its constructor takes, nested ones included."""

    class Distribution:
        files = ()

        def read_text(self, name: str) -> None: ...

    monkeypatch.setattr("benchmarks.gpu_checks.load_bindings", lambda: fake_bindings)
    monkeypatch.setattr("benchmarks.gpu_checks.metadata.distribution", lambda _: Distribution())
    report = installed_names(Workbench("some-model", None, tmp_path, HERE))
    assert report["differences"] == []
    assert "JSON_SCHEMA" in report["names"]["GuidedDecodingParams.GuideType"]
    assert "event_buffer_max_size" in report["signatures"]["KvCacheConfig"]
    assert report["names"].keys() == report["signatures"].keys() == {one.name for one in EXPECTED}


IN_THE_FAKE = {name: one for name, one in FEATURES.items() if not name.startswith(("logit", "banned"))}
"""It bans nothing, and a bias is a tensor of torch's, which is not a dependency of ours."""


def test_every_feature_is_tried_and_what_is_not_done_is_said() -> None:
    executor = fake_executor(256, 8, habits={"end_rate": 0.0})
    assert set(features_are_taken(executor, IN_THE_FAKE).values()) == {"yes"}
    broken = {
        "never true": Feature({}, lambda _: False),
        "not offered": Feature({"sampling": SamplingParams(logprobs=3)}),
        "refused by the library": Feature({"sampling": SamplingParams(guide=Guide("regex", "unsupported"))}),
        "works": Feature({}),
    }
    said = features_are_taken(executor, broken)
    assert said["never true"].startswith("no: [")
    assert said["not offered"].startswith("PlanError: request 1001: sampling.logprobs must be 0")
    assert "unsupported pattern" in said["refused by the library"]
    assert said["works"] == "yes", "one that is refused takes no other with it"
    executor.close()


def test_the_same_check_fails_on_one_that_ignores_cancels(monkeypatch: pytest.MonkeyPatch) -> None:
    executor = fake_executor(256, 8, habits={"fixed": 0.0005, "end_rate": 0.0})
    monkeypatch.setattr(executor, "cancel", lambda _: None)
    with pytest.raises(AssertionError, match="expected"):
        requests_are_controlled(executor)
    executor.close()


def test_gaps_are_those_between_tokens() -> None:
    executor = fake_executor(256, 8, habits={"fixed": 0.002, "end_rate": 0.0})
    gaps = gaps_between_tokens(executor)
    assert len(gaps) == 99
    assert min(gaps) >= 0
    executor.close()
