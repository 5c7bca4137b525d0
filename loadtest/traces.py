"""Recorded traffic: lengths, times and prefix hashes, never text.

Three formats, told apart by their first line: the Azure LLM inference traces (CSV), Mooncake's (JSON lines, 512-token
blocks), and firsttoken's own recording (docs/load.md).
"""

from __future__ import annotations

import csv
import datetime as dt
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from loadtest.errors import TraceError

AZURE_HEADER: Final = "TIMESTAMP,ContextTokens,GeneratedTokens"
MOONCAKE_BLOCK: Final = 512
RECORDING: Final = "firsttoken-recording"
T = TypeVar("T")


class TraceRow(msgspec.Struct, frozen=True):
    """One request as it came."""

    at: float
    """Seconds after the trace's first."""
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()
    """One id per block of the prompt: equal ids mean equal tokens, and all before them equal too."""
    priority: str = ""
    tenant: str = ""


class Trace(msgspec.Struct, frozen=True):
    name: str
    rows: tuple[TraceRow, ...]
    block_size: int = 0
    """Tokens that each of a row's blocks stands for; 0 = the trace knows no prefixes."""

    @property
    def seconds(self) -> float:
        return self.rows[-1].at

    @property
    def rate(self) -> float:
        """Requests per second over the whole trace."""
        return len(self.rows) / self.seconds if self.seconds > 0 else float("inf")


class RecordingHeader(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """First line of a recording."""

    format: str
    version: int
    block_size: int


class RecordingRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A further line of a recording."""

    at: float
    """Seconds after the recording began."""
    prompt_tokens: int
    output_tokens: int
    prefix: tuple[str, ...] = ()
    """Hash of each full block of the prompt, chained over all before it, hexadecimal."""
    priority: str = ""
    tenant: str = ""
    """A pseudonym."""


class _MooncakeRow(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


def read_trace(path: Path) -> Trace:
    """Read a trace of any known format, sorted by time. Raises TraceError naming the file and the line."""
    try:
        with path.open(encoding="utf-8-sig") as lines:
            first = lines.readline().strip()
            rows, block = _read_rows(path, first, lines)
            ordered = sorted(rows, key=lambda row: row.at)
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"cannot read {path}: {error}") from error
    if not ordered:
        raise TraceError(f"{path}: no request in it")
    start = ordered[0].at
    shifted = tuple(msgspec.structs.replace(row, at=row.at - start) for row in ordered)
    return Trace(path.stem, shifted, block)


def _read_rows(path: Path, first: str, rest: Iterable[str]) -> tuple[Iterator[TraceRow], int]:
    if first == AZURE_HEADER:
        return _azure(path, rest), 0
    if f'"{RECORDING}"' in first:
        header = _decode(path, 1, first, RecordingHeader)
        if header.version != 1:
            raise TraceError(f"{path}, line 1: recording version {header.version}; this program reads version 1")
        return _recording(path, rest), header.block_size
    if first.startswith("{"):
        return _mooncake(path, [first, *rest]), MOONCAKE_BLOCK
    raise TraceError(f"{path}, line 1: neither an Azure trace, nor Mooncake's, nor a recording: {first[:60]!r}")


def _azure(path: Path, lines: Iterable[str]) -> Iterator[TraceRow]:
    for number, cells in enumerate(csv.reader(lines), start=2):
        try:
            time, prompt, output = cells
            # The trace has seven digits of a second, Python reads six.
            at = dt.datetime.fromisoformat(time[:26]).replace(tzinfo=dt.UTC).timestamp()
            yield TraceRow(at, int(prompt), int(output))
        except ValueError as error:
            raise TraceError(f"{path}, line {number}: {error}") from error


def _mooncake(path: Path, lines: Iterable[str]) -> Iterator[TraceRow]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            row = _decode(path, number, line, _MooncakeRow)
            yield TraceRow(row.timestamp / 1e3, row.input_length, row.output_length, row.hash_ids)


def _recording(path: Path, lines: Iterable[str]) -> Iterator[TraceRow]:
    for number, line in enumerate(lines, start=2):
        row = _decode(path, number, line, RecordingRow)
        try:
            blocks = tuple(int(each, 16) for each in row.prefix)
        except ValueError as error:
            raise TraceError(f"{path}, line {number}: prefix: {error}") from error
        yield TraceRow(row.at, row.prompt_tokens, row.output_tokens, blocks, row.priority, row.tenant)


def _decode(path: Path, number: int, line: str, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(line, type=kind)
    except msgspec.MsgspecError as error:
        raise TraceError(f"{path}, line {number}: {error}") from error
