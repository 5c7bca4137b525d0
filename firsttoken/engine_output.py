"""What `firsttoken build --engine trtllm --stage engine` shows: the plan, the bill, the exact commands, the result."""

from __future__ import annotations

import shlex
import sys
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from build_scripts.trtllm.engine_plan import EnginePlan
from build_scripts.trtllm.limits import EXPECTED_LENGTH
from engines.manifest import EngineManifest

_LENGTHS = (EXPECTED_LENGTH, 8192, 32_768)


class EngineOutput:
    """Results on stdout."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._console = Console(highlight=False, soft_wrap=True)

    def planned(self, plan: EnginePlan, convert: str) -> None:
        """``convert``: the command of the stage before, which makes the checkpoint."""
        if self._as_json:
            self._json({"status": "planned", **plan_json(plan, convert)})
            return
        layout, limits = plan.conversion.layout, plan.limits
        self._console.print(
            f"[bold]{plan.name}[/bold]: {plan.decoder.parameters() / 1e9:,.2f} B parameters, tp {layout.tp}, pp {layout.pp}, for "
            f"{layout.world_size} x {plan.device.name}, profile {plan.profile}"
        )
        self._console.print(_bill_table(plan))
        self._console.print(_room_table(plan))
        self._console.print(
            f"batch {limits.max_batch_size}, {limits.max_num_tokens} tokens a step, sequences of {limits.max_seq_len} tokens at most"
        )
        self._console.print("1. convert, on any machine:", convert, sep="\n   ", markup=False)
        self._console.print("2. compile, on the GPUs:", shlex.join(plan.command()), sep="\n   ", markup=False)

    def up_to_date(self, plan: EnginePlan) -> None:
        if self._as_json:
            self._json({"status": "up_to_date", "output": str(plan.output)})
        else:
            self._console.print(f"{plan.output} is up to date: nothing to build")

    def built(self, plan: EnginePlan, manifest: EngineManifest) -> None:
        if self._as_json:
            self._json({"status": "built", "output": str(plan.output), "manifest": msgspec.to_builtins(manifest)})
            return
        numerics = manifest.numerics
        self._console.print(f"built {plan.output}")
        if numerics.golden_greedy_total:
            self._console.print(
                f"  {numerics.golden_greedy_equal} of {numerics.golden_greedy_total} greedy continuations are those of "
                f"{numerics.golden_reference}, {numerics.golden_argmax_agreement:.1%} of their tokens"
            )
        else:
            self._console.print("  it speaks; what it says was compared with nothing: give --reference FILE")
        self._console.print(f"  serve it: firsttoken serve {plan.output}")

    def _json(self, document: dict[str, Any]) -> None:
        sys.stdout.buffer.write(msgspec.json.encode(document) + b"\n")
        sys.stdout.buffer.flush()


def plan_json(plan: EnginePlan, convert: str) -> dict[str, Any]:
    lengths = _lengths(plan)
    return {
        "model": plan.name,
        "parameters": plan.decoder.parameters(),
        "tp": plan.conversion.layout.tp,
        "pp": plan.conversion.layout.pp,
        "device": plan.device.name,
        "profile": plan.profile,
        "limits": msgspec.to_builtins(plan.limits) | {"max_input_len": plan.limits.max_input_len},
        "bill": msgspec.to_builtins(plan.bill) | {"kv_blocks": plan.bill.kv_blocks, "kv_tokens": plan.bill.kv_tokens},
        "sequences": {str(length): plan.bill.sequences(length) for length in lengths},
        "convert": convert,
        "compile": plan.command(),
        "output": str(plan.output),
    }


def _lengths(plan: EnginePlan) -> list[int]:
    return sorted({*(length for length in _LENGTHS if length <= plan.limits.max_seq_len), plan.limits.max_seq_len})


def _bill_table(plan: EnginePlan) -> Table:
    bill = plan.bill
    table = Table("each GPU", "", box=None, pad_edge=False)
    for name, count in (
        ("usable", bill.usable),
        ("weights", bill.weights),
        ("activations of a full step", bill.workspace),
        ("left for keys and values", max(0, bill.usable - bill.weights - bill.workspace)),
    ):
        table.add_row(name, f"{count / 1e9:,.2f} GB")
    table.add_row("a token of keys and values", f"{bill.kv_per_token:,} B")
    return table


def _room_table(plan: EnginePlan) -> Table:
    lengths = _lengths(plan)
    table = Table(
        f"{plan.bill.kv_tokens:,} tokens", *(f"of {length:,}" for length in lengths), box=None, pad_edge=False
    )
    table.add_row("sequences at once", *(f"{plan.bill.sequences(length):,}" for length in lengths))
    return table
