"""Whoever looks finds a whole engine or none, whatever dies, races or runs out."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from build_scripts import publish
from build_scripts.errors import PublishError
from build_scripts.publish import exchange, list_files, staging
from engines.manifest import MANIFEST_NAME, EngineManifest
from tests.build.builds import contents
from tests.build.manifests import make_manifest


def put(target: Path, text: str) -> EngineManifest:
    """Publish an engine of one file."""
    with staging(target) as scratch:
        (scratch / "model.bin").write_text(text)
        manifest = make_manifest(files=list_files(scratch))
        publish.publish(scratch, target, manifest)
    return manifest


def put_half(target: Path) -> None:
    with staging(target) as scratch:
        (scratch / "model.bin").write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")


def hidden(parent: Path) -> list[str]:
    return sorted(
        path.name for path in parent.iterdir() if path.name.startswith(".") and not path.name.endswith(".lock")
    )


def test_an_engine_appears_whole(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b" / "engine"
    put(target, "weights")
    assert sorted(contents(target)) == [MANIFEST_NAME, "model.bin"]
    assert target.stat().st_mode & 0o755 == 0o755
    assert hidden(target.parent) == []


@pytest.mark.parametrize("in_one_step", [True, False])
def test_a_new_engine_takes_the_place_of_an_old_one(
    in_one_step: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not in_one_step:
        monkeypatch.setattr(publish, "exchange", lambda *_: False)
    target = tmp_path / "engine"
    put(target, "old")
    put(target, "new")
    assert contents(target)["model.bin"] == b"new"
    assert hidden(tmp_path) == []


def test_exchange_is_what_this_system_can_do(tmp_path: Path) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "what").write_text(name)
    assert exchange(tmp_path / "first", tmp_path / "second")
    assert (tmp_path / "first" / "what").read_text() == "second"
    with pytest.raises(FileNotFoundError):
        exchange(tmp_path / "absent", tmp_path / "second")


def test_the_manifest_is_written_last_and_after_all_else_is_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    flush = publish._flush

    def watched(path: Path) -> None:
        order.append(path.name)
        if path.name == "model.bin":
            assert not (path.parent / MANIFEST_NAME).exists()
        flush(path)

    monkeypatch.setattr(publish, "_flush", watched)
    put(tmp_path / "engine", "weights")
    assert order[:2] == ["model.bin", MANIFEST_NAME]
    assert order[-1] == tmp_path.name


def test_a_build_that_fails_leaves_the_old_engine(tmp_path: Path) -> None:
    target = tmp_path / "engine"
    put(target, "old")
    before = contents(target)
    with pytest.raises(PublishError, match="the disk is full"):
        put_half(target)
    assert contents(target) == before
    assert hidden(tmp_path) == []


def test_two_builds_of_one_engine_do_not_meet(tmp_path: Path) -> None:
    target = tmp_path / "engine"
    with staging(target), pytest.raises(PublishError, match="another build of this engine is running"), staging(target):
        pass
    put(target, "afterwards")


def test_builds_of_other_engines_do_not_wait(tmp_path: Path) -> None:
    with staging(tmp_path / "one") as first, staging(tmp_path / "two") as second:
        assert first != second


def test_what_a_dead_build_left_is_removed(tmp_path: Path) -> None:
    target = tmp_path / "engine"
    script = (
        "import os, sys; from pathlib import Path; from build_scripts.publish import staging\n"
        "with staging(Path(sys.argv[1])) as scratch:\n"
        "    (scratch / 'model.bin').write_text('half'); os.kill(os.getpid(), 9)\n"
    )
    assert subprocess.run([sys.executable, "-c", script, str(target)], check=False).returncode == -9
    assert not target.exists()
    assert len(hidden(tmp_path)) == 1
    put(target, "whole")
    assert hidden(tmp_path) == []


def test_a_directory_of_other_things_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(PublishError, match="with other things in it"):
        put(tmp_path, "weights")
    with pytest.raises(PublishError, match="is a file"):
        put(tmp_path / "thesis.txt", "weights")
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_an_empty_directory_is_a_place(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    put(tmp_path / "engine", "weights")
    assert contents(tmp_path / "engine")["model.bin"] == b"weights"


def test_a_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PublishError, match=r"engine: cannot be written \(File exists\)"):
        put(tmp_path / "file" / "engine", "weights")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_place_is_one_sentence(tmp_path: Path) -> None:
    tmp_path.chmod(0o555)
    with pytest.raises(PublishError, match=r"cannot be written \(Permission denied\)"):
        put(tmp_path / "engine", "weights")
    tmp_path.chmod(0o755)
