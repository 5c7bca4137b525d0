"""The parts of a build, each known by a hash of what decides it: done once, resumed after a kill, reused by a rebuild.

A stage leaves files in the build's directory and, when they are all there, a marker with their hashes. A later build of the
same target finds the marker and goes on behind it, if the files are still what the marker says; a rebuild takes the files of
a finished result whose record has the same key.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from build_scripts.source import file_sha256
from engines.manifest import FileEntry, StageRecord

_MARKER = ".stage-"

Inputs = dict[str, str]
"""What decides a stage's result, by a name that a person reads."""


@dataclass(frozen=True)
class Finished:
    """A result that stands, whose files may be taken over."""

    directory: Path
    stages: tuple[StageRecord, ...]


def stage_key(name: str, inputs: Inputs) -> str:
    return hashlib.sha256(json.dumps([name, inputs], sort_keys=True).encode()).hexdigest()


class Stages:
    """Runs the stages of one build in one directory."""

    def __init__(self, scratch: Path, finished: Finished | None, note: Callable[[str], None]) -> None:
        self._scratch = scratch
        self._finished = finished
        self._note = note
        self.records: list[StageRecord] = []
        self._drop_unmarked()

    def run(self, name: str, inputs: Inputs, produce: Callable[[], Sequence[str]]) -> StageRecord:
        """``produce`` writes files and returns their names; it is not called where they are there already."""
        key = stage_key(name, inputs)
        record = self._marked(name, key) or self._taken_over(name, key)
        if record is None:
            self._drop(name)
            files = tuple(describe_file(self._scratch, file) for file in sorted(produce()))
            record = StageRecord(name, key, inputs, files)
            self._mark(record)
        self.records.append(record)
        return record

    def clear_markers(self) -> None:
        """Before the directory is published."""
        for marker in self._scratch.glob(f"{_MARKER}*"):
            marker.unlink()

    def _drop(self, name: str) -> None:
        """The files of a marker that no longer holds, before the stage is done again."""
        marker = self._marker(name)
        record = _read(marker)
        marker.unlink(missing_ok=True)
        for entry in record.files if record else ():
            (self._scratch / entry.name).unlink(missing_ok=True)

    def _marker(self, name: str) -> Path:
        return self._scratch / f"{_MARKER}{name.replace(' ', '-')}.json"

    def _drop_unmarked(self) -> None:
        """What no marker vouches for: half-written files, or an engine that had just been exchanged for a new one. They may be
        links to published files, so they must not be written over."""
        vouched = {entry.name for path in self._markers() if (record := _read(path)) for entry in record.files}
        for path in self._scratch.iterdir():
            if path.name not in vouched and not path.name.startswith(_MARKER):
                path.unlink()

    def _markers(self) -> list[Path]:
        return sorted(self._scratch.glob(f"{_MARKER}*.json"))

    def _mark(self, record: StageRecord) -> None:
        path = self._marker(record.name)
        draft = path.with_suffix(".draft")
        draft.write_bytes(msgspec.json.encode(record))
        draft.replace(path)

    def _marked(self, name: str, key: str) -> StageRecord | None:
        record = _read(self._marker(name))
        if record is None or record.key != key or not files_stand(self._scratch, record.files):
            return None
        self._note(f"{name}: done by a build that was interrupted")
        return record

    def _taken_over(self, name: str, key: str) -> StageRecord | None:
        if self._finished is None:
            return None
        for record in self._finished.stages:
            if record.key == key and record.files and files_stand(self._finished.directory, record.files):
                for entry in record.files:
                    link_or_copy(self._finished.directory / entry.name, self._scratch / entry.name)
                self._note(f"{name}: up to date")
                self._mark(record)
                return record
        return None


def _read(marker: Path) -> StageRecord | None:
    try:
        return msgspec.json.decode(marker.read_bytes(), type=StageRecord)
    except (OSError, msgspec.DecodeError):
        return None


def describe_file(directory: Path, name: str) -> FileEntry:
    path = directory / name
    return FileEntry(name, path.stat().st_size, file_sha256(path))


def files_stand(directory: Path, entries: Iterable[FileEntry]) -> bool:
    """Whether every file is there, byte for byte."""
    for entry in entries:
        path = directory / entry.name
        if not path.is_file() or path.stat().st_size != entry.bytes or file_sha256(path) != entry.sha256:
            return False
    return True


def link_or_copy(source: Path, target: Path) -> None:
    """Published files are never written again, so two directories may share one."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


@dataclass(frozen=True)
class StageState:
    name: str
    stale: bool
    why: str


def explain(finished: Finished, planned: Sequence[tuple[str, Inputs]]) -> list[StageState]:
    """Which stages a build would do again, and what changed."""
    by_name = {record.name: record for record in finished.stages}
    return [_state(finished.directory, name, by_name.get(name), inputs) for name, inputs in planned]


def _state(directory: Path, name: str, record: StageRecord | None, inputs: Inputs) -> StageState:
    if record is None:
        return StageState(name, stale=True, why="not recorded")
    if record.key == stage_key(name, inputs):
        if not files_stand(directory, record.files):
            return StageState(name, stale=True, why="its files are not what was built")
        return StageState(name, stale=False, why="up to date")
    changes = [
        f"{field} {_short(record.inputs.get(field))} -> {_short(inputs.get(field))}"
        for field in sorted(record.inputs.keys() | inputs.keys())
        if record.inputs.get(field) != inputs.get(field)
    ]
    return StageState(name, stale=True, why=", ".join(changes))


def _short(value: str | None) -> str:
    if value is None:
        return "nothing"
    return f"{value[:12]}…" if len(value) == 64 else value
