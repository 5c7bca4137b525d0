"""LoRA adapters: found by name, numbered for the library, read when the executor is made, and named by requests."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from engines.contract import EngineLoadError, ExecutorFinish, PlanError
from engines.trtllm.adapters import MODULES, WEIGHTS, find_adapters, numbered
from tests.conformance.executor_cases import Client, make_text
from tests.trtllm.engines import FACTS, make_adapter
from tests.trtllm.rig import fake_executor

LORA = msgspec.structs.replace(FACTS, max_lora_rank=16)


def registry(folder: Path, *names: str) -> str:
    for name in names:
        make_adapter(folder / name)
    return str(folder)


def test_names_are_those_of_the_directories_in_order(tmp_path: Path) -> None:
    (tmp_path / "README").write_text("not an adapter")
    found = find_adapters(registry(tmp_path, "legal", "formal"))
    assert [adapter.name for adapter in found] == ["formal", "legal"]
    assert [adapter.missing for adapter in found] == [[], []]
    assert found[0].bytes == (tmp_path / "formal" / WEIGHTS).stat().st_size
    assert find_adapters("") == ()


def test_a_registry_that_is_no_directory_is_said(tmp_path: Path) -> None:
    with pytest.raises(EngineLoadError, match=r"engine\.adapters: .*nowhere is no directory"):
        find_adapters(str(tmp_path / "nowhere"))


def test_the_rank_is_the_highest_of_all_modules_and_a_damaged_file_is_said(tmp_path: Path) -> None:
    registry(tmp_path, "formal")
    np.save(tmp_path / "formal" / MODULES, np.array([[[0, 0, 4], [1, 0, 16], [2, 5, 8]]], dtype=np.int32))
    (formal,) = find_adapters(str(tmp_path))
    assert formal.rank == 16
    (tmp_path / "formal" / MODULES).write_bytes(b"nothing of the kind")
    with pytest.raises(EngineLoadError, match=r"not an array of rows .*hf_lora_convert\.py"):
        _ = formal.rank


def test_the_library_sees_numbers_for_as_long_as_it_reads(tmp_path: Path) -> None:
    adapters = find_adapters(registry(tmp_path, "formal", "legal"))
    with numbered(adapters) as folder:
        seen = {path.name: (path / WEIGHTS).read_bytes() for path in Path(folder).iterdir()}
        assert seen.keys() == {"1", "2"}
        assert seen["2"] == (tmp_path / "legal" / WEIGHTS).read_bytes()
    assert not Path(folder).exists()
    assert (tmp_path / "legal" / WEIGHTS).exists()


def test_requests_name_adapters_by_number_and_share_no_blocks_across_them(tmp_path: Path) -> None:
    executor = fake_executor(
        64, 8, facts=LORA, adapters=find_adapters(registry(tmp_path, "formal", "legal")), habits={"end_rate": 0.0}
    )
    assert executor.limits.adapters == ("formal", "legal")
    assert executor.capabilities.adapters
    client, prompt = Client(executor), make_text(1, 40)
    for adapter, cached in ((0, 0), (1, 0), (2, 0), (1, 32)):
        (told,) = client.run(msgspec.structs.replace(client.request(prompt, 4), adapter=adapter))
        assert told.finish() is ExecutorFinish.LENGTH
        assert told.responses[-1].cached_tokens == cached, adapter
    with pytest.raises(PlanError, match=r"adapter must be 0 \.\. 2, got 3"):
        executor.enqueue([msgspec.structs.replace(client.request(prompt, 4), adapter=3)])
    executor.close()


def test_an_executor_without_adapters_says_so_and_refuses_them() -> None:
    executor = fake_executor(64, 8)
    assert not executor.capabilities.adapters
    with pytest.raises(PlanError, match=r"adapter must be 0 \.\. 0, got 1"):
        executor.enqueue([msgspec.structs.replace(Client(executor).request(make_text(1, 5), 4), adapter=1)])
    executor.close()
