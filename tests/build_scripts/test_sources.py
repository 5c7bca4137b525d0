"""What a build is told names a file, a directory or a model on the hub; and its content is what identifies it."""

from __future__ import annotations

from pathlib import Path

import pytest

from build_scripts.errors import SourceError
from build_scripts.hub import is_hub_name
from build_scripts.source import directory_sha256, resolve
from tests.build_scripts.tiny import BY_NAME, write_model

LLAMA = BY_NAME["llama2"]


def test_the_hash_of_a_directory_covers_weights_and_config_and_no_more(tmp_path: Path) -> None:
    first = directory_sha256(write_model(tmp_path / "a", LLAMA))
    again = write_model(tmp_path / "b", LLAMA)
    (again / "notes.txt").write_text("of no effect")
    theta = write_model(tmp_path / "c", LLAMA, rope_theta=20000.0)
    weights = write_model(tmp_path / "d", BY_NAME["llama-linear"])
    assert directory_sha256(again) == first
    assert len({first, directory_sha256(theta), directory_sha256(weights)}) == 3


def test_a_directory_is_named_by_its_last_part(tmp_path: Path) -> None:
    write_model(tmp_path / "my-model", LLAMA)
    source = resolve(str(tmp_path / "my-model"), cache=tmp_path, progress=lambda _: None)
    assert (source.name, source.origin) == ("my-model", "my-model")
    assert source.sha256 == directory_sha256(tmp_path / "my-model")


@pytest.mark.parametrize(
    ("name", "on_hub"),
    [
        ("HuggingFaceTB/SmolLM2-135M", True),
        ("smollm2", False),
        ("./models/x", False),
        ("a/b/c", False),
        ("model.gguf", False),
    ],
)
def test_a_hub_name_is_owner_and_name(name: str, on_hub: bool) -> None:
    assert is_hub_name(name) is on_hub


def test_a_path_wins_over_a_hub_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "owner" / "name", LLAMA)
    monkeypatch.chdir(tmp_path)
    assert not is_hub_name("owner/name")
    assert resolve("owner/name", cache=tmp_path, progress=lambda _: None).origin == "name"


def test_without_a_network_the_message_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        SourceError, match="without a network, run `hf download owner/absent --local-dir DIR` elsewhere"
    ):
        resolve("owner/absent", cache=tmp_path, progress=lambda _: None)
