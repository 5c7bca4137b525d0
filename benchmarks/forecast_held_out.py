"""The forecast on what nothing of it was chosen on: ``LOAD_TRACES=DIR python -m benchmarks.forecast_held_out``.

The figures judge it on the beginning of each trace, and what it does was tried on the beginnings and from the middles. Here it is judged from a quarter and from
three quarters on; and on the beginnings where every client asks for far more tokens than it will get, as clients do.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.scheduling_capacity import SPEEDS
from benchmarks.scheduling_scenes import TRACES, required, run
from loadtest.traces import RECORDING, RecordingHeader, RecordingRow, read_trace
from loadtest.workload import TraceUse, Workload

SECONDS = 90.0
MAX_TOKENS = 2048
PARTS: tuple[tuple[str, float, int | None], ...] = (
    ("from a quarter", 0.25, None),
    ("from three quarters", 0.75, None),
    (f"max_tokens {MAX_TOKENS}", 0.0, MAX_TOKENS),
)
"""From which part of its time on, and what every client asks for; None = exactly the length of its answer."""


def later_part(name: str, after: float, directory: Path) -> Path:
    """The trace from that part of its time on, as a recording. Raises FileNotFoundError."""
    trace = read_trace(required(name))
    first = after * trace.seconds
    lines = [msgspec.json.encode(RecordingHeader(RECORDING, 1, trace.block_size))]
    for row in trace.rows:
        if row.at >= first:
            prefix = tuple(f"{block:x}" for block in row.blocks)
            lines.append(msgspec.json.encode(RecordingRow(row.at, row.prompt_tokens, row.output_tokens, prefix)))
    path = directory / f"{after:g}-{Path(name).stem}.jsonl"
    path.write_bytes(b"\n".join(lines))
    return path


def error(path: Path, *, speedup: float, engine: str, max_tokens: int | None) -> float | None:
    """Median error of the first tokens predicted; None where nothing was."""
    asked = Workload(trace=TraceUse(str(path), speedup=speedup), duration=SECONDS, seed=7)
    return run(asked, engine=engine, max_tokens=max_tokens).account.forecast_error


def main() -> None:
    table = Table("engine", "part", *(name.partition(".")[0] for name in TRACES), title="median error, at both speeds")
    with tempfile.TemporaryDirectory(prefix="firsttoken-forecast-") as name:
        for engine in ("steps", "executor"):
            for part, after, max_tokens in PARTS:
                table.add_row(engine, part, *_cells(Path(name), engine, after, max_tokens))
    Console().print(table)


def _cells(directory: Path, engine: str, after: float, max_tokens: int | None) -> list[str]:
    cells = []
    for name in TRACES:
        path = later_part(name, after, directory)
        found = [
            error(path, speedup=faster * SPEEDS[name], engine=engine, max_tokens=max_tokens) for faster in (0.5, 1.5)
        ]
        cells.append(" / ".join("-" if each is None else f"{each:.1%}" for each in found))
    return cells


if __name__ == "__main__":
    main()
