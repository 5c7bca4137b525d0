"""What `firsttoken build` shows: the bill, the progress, the result. Text goes to the terminal, JSON to programs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from build_scripts.bill import DEFAULT_KV_BUDGET
from build_scripts.build import Plan
from engines.manifest import EngineManifest

_LENGTHS = (512, 2048, 8192)


def megabytes(count: int) -> str:
    return f"{count / 1e6:,.0f} MB"


class ConsoleReporter:
    """Implements build_scripts.progress.Reporter on stderr: lines for notes, a bar for stages."""

    def __init__(self) -> None:
        self._console = Console(stderr=True)
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
        )
        self._progress = Progress(*columns, console=self._console, transient=True)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def note(self, text: str) -> None:
        self._console.print(f"[dim]{text}[/dim]", highlight=False)

    @contextmanager
    def stage(self, text: str, total: int) -> Iterator[Callable[[int], None]]:
        self.note(text)
        task = self._progress.add_task(text, total=total)
        try:
            yield lambda count: self._progress.advance(task, count)
        finally:
            self._progress.remove_task(task)


class Output:
    """Results on stdout."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._console = Console(highlight=False, soft_wrap=True)

    def planned(self, plan: Plan) -> None:
        if self._as_json:
            self._json(
                {"status": "planned", "output": str(plan.output), "up_to_date": plan.up_to_date(), "bill": _bill(plan)}
            )
        else:
            self.bill(plan)

    def up_to_date(self, plan: Plan) -> None:
        if self._as_json:
            self._json({"status": "up_to_date", "output": str(plan.output), "fingerprint": plan.fingerprint})
        else:
            self._console.print(f"{plan.output} is up to date: nothing to build")

    def built(self, plan: Plan, manifest: EngineManifest) -> None:
        if self._as_json:
            document = {"status": "built", "output": str(plan.output), "bill": _bill(plan)}
            self._json(document | {"manifest": msgspec.to_builtins(manifest)})
            return
        self._console.print(f"built {plan.output}")
        print_findings(self._console, manifest)

    def bill(self, plan: Plan) -> None:
        if self._as_json:
            return
        bill, decoder = plan.bill, plan.decoder
        self._console.print(
            f"[bold]{plan.source.name}[/bold] ({plan.source.origin}): {decoder.family}, {decoder.parameters() / 1e6:,.1f} M "
            f"parameters, {plan.checkpoint.tensors.quantisation()}"
        )
        self._console.print(
            f"weights {plan.choice.weights}, keys and values {plan.choice.kv_cache}, activations {plan.choice.activations}"
            f" -> {plan.output}"
        )
        self._console.print(_cost_table(plan))
        self._console.print(_room_table(plan))
        self._console.print(f"longest sequence: {bill.max_context:,} tokens")

    def _json(self, document: dict[str, Any]) -> None:
        sys.stdout.buffer.write(msgspec.json.encode(document) + b"\n")
        sys.stdout.buffer.flush()


def print_findings(console: Console, manifest: EngineManifest) -> None:
    """How near the engine is to its reference, and how fast its steps are."""
    numerics, profile = manifest.numerics, manifest.profile
    console.print(
        f"  likeliest token as in {numerics.golden_reference}: "
        f"{numerics.golden_argmax_agreement:.1%} of {numerics.golden_positions} positions"
    )
    console.print(
        f"  log-probabilities off by {numerics.golden_mean_difference:.2g} on average, {numerics.golden_max_difference:.2g} "
        f"at most; batched against alone within {numerics.tolerance:.2g}"
    )
    if numerics.golden_reference.startswith("numpy"):
        console.print(
            "  [bold]no golden data is committed for this file[/bold]: compared with this project's own forward pass"
        )
    console.print(
        f"  a step of one stream takes about {1e3 * (profile.fixed + profile.per_decode):.1f} ms, a prompt token "
        f"{1e3 * profile.per_new_token:.2f} ms (fitted, {profile.machine})"
    )


def _cost_table(plan: Plan) -> Table:
    table = Table("what it costs", "", box=None, pad_edge=False)
    bill = plan.bill
    for name, count in (
        ("engine on disk", bill.disk),
        ("memory while building, at most", bill.build_memory),
        ("memory when loaded, before keys and values", bill.loaded),
        ("activations of a full step", bill.workspace),
    ):
        table.add_row(name, megabytes(count))
    return table


def _room_table(plan: Plan) -> Table:
    bill = plan.bill
    lengths = [length for length in _LENGTHS if length <= bill.max_context] or [bill.max_context]
    heads = [f"of {length:,}" for length in lengths]
    table = Table("keys and values", "a token", *heads, box=None, pad_edge=False)
    for precision, count in bill.kv_per_token.items():
        chosen = " (chosen)" if precision == bill.kv_precision else ""
        rooms = [f"{bill.sequences(length, DEFAULT_KV_BUDGET, precision):,}" for length in lengths]
        table.add_row(precision + chosen, f"{count:,} B", *rooms)
    table.caption = f"sequences of so many tokens in {megabytes(DEFAULT_KV_BUDGET)} of keys and values"
    table.caption_justify = "left"
    return table


def _bill(plan: Plan) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(plan.bill)
    rooms = {str(length): plan.bill.sequences(length, DEFAULT_KV_BUDGET) for length in _LENGTHS}
    return document | {"kv_budget": DEFAULT_KV_BUDGET, "sequences": rooms}
