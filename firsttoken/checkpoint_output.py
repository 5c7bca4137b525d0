"""What `firsttoken build --engine trtllm` shows: the bill of each rank, what a device has room for, the next command."""

from __future__ import annotations

import sys
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from build_scripts.target_device import TargetDevice
from build_scripts.trtllm.build import CheckpointPlan, next_command
from build_scripts.trtllm.record import CheckpointRecord
from firsttoken.build_output import megabytes

_LENGTHS = (512, 2048, 8192, 32768, 131072)


class CheckpointOutput:
    """Results on stdout."""

    def __init__(self, device: TargetDevice | None, *, as_json: bool) -> None:
        """``device``: the GPU that the bill is for; None = no room is reckoned."""
        self._device = device
        self._as_json = as_json
        self._console = Console(highlight=False, soft_wrap=True)

    def planned(self, plan: CheckpointPlan) -> None:
        if self._as_json:
            self._json(
                {
                    "status": "planned",
                    "output": str(plan.output),
                    "up_to_date": plan.up_to_date(),
                    "bill": bill_json(plan, self._device),
                }
            )
        else:
            self.bill(plan)

    def up_to_date(self, plan: CheckpointPlan) -> None:
        if self._as_json:
            self._json({"status": "up_to_date", "output": str(plan.output), "fingerprint": plan.fingerprint})
        else:
            self._console.print(f"{plan.output} is up to date: nothing to build")

    def built(self, plan: CheckpointPlan, record: CheckpointRecord) -> None:
        if self._as_json:
            document = {"status": "built", "output": str(plan.output), "bill": bill_json(plan, self._device)}
            self._json(document | {"record": msgspec.to_builtins(record), "next": next_command(plan)})
            return
        self._console.print(f"built {plan.output}: {plan.layout.world_size} rank files")
        self._console.print(f"  prove it here:         firsttoken verify {plan.output} --source {plan.request.model}")
        self._console.print(f"  engines, on the GPUs:  {next_command(plan)}")
        if len(set(record.max_attention_window)) > 1 or record.max_attention_window[0] != plan.bill.max_context:
            windows = ",".join(map(str, record.max_attention_window))
            self._console.print(f"  tell the executor:     max_attention_window = {windows}")

    def bill(self, plan: CheckpointPlan) -> None:
        if self._as_json:
            return
        decoder, layout = plan.conversion.decoder, plan.layout
        self._console.print(
            f"[bold]{plan.source.name}[/bold] ({plan.source.origin}): {decoder.family}, {decoder.parameters() / 1e6:,.1f} M "
            f"parameters, {plan.opened.summary}"
        )
        self._console.print(
            f"TensorRT-LLM checkpoint, {plan.conversion.dtype}, tp {layout.tp}, pp {layout.pp} -> {plan.output}"
        )
        for note in plan.opened.notes:
            self._console.print(f"note: {note}", markup=False)
        self._console.print(_rank_table(plan))
        self._console.print(
            f"on disk {megabytes(plan.bill.disk)}; memory while converting, at most {megabytes(plan.bill.build_memory)}"
        )
        if self._device is not None:
            self._console.print(_room_table(plan, self._device))
            if not plan.bill.fits(self._device):
                self._console.print(
                    f"[bold]no room for one sequence of {plan.bill.max_context:,} tokens[/bold]: more GPUs (--tp), a larger one, "
                    "or a shorter context"
                )

    def _json(self, document: dict[str, Any]) -> None:
        sys.stdout.buffer.write(msgspec.json.encode(document) + b"\n")
        sys.stdout.buffer.flush()


def bill_json(plan: CheckpointPlan, device: TargetDevice | None) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(plan.bill)
    if device is not None:
        rooms = {str(length): plan.bill.sequences(device, length) for length in lengths(plan)}
        document |= {"device": device.name, "usable": device.usable, "fits": plan.bill.fits(device), "sequences": rooms}
    return document


def lengths(plan: CheckpointPlan) -> list[int]:
    return [length for length in _LENGTHS if length <= plan.bill.max_context] or [plan.bill.max_context]


def _rank_table(plan: CheckpointPlan) -> Table:
    table = Table(
        "each rank of", "weights", "keys and values, a token", "activations of a full step", box=None, pad_edge=False
    )
    for rank in plan.bill.ranks:
        table.add_row(
            f"stage {rank.stage}", megabytes(rank.weights), f"{rank.kv_per_token:,} B", megabytes(rank.workspace)
        )
    return table


def _room_table(plan: CheckpointPlan, device: TargetDevice) -> Table:
    heads = [f"of {length:,}" for length in lengths(plan)]
    table = Table(f"sequences on {plan.layout.world_size} x {device.name}", *heads, box=None, pad_edge=False)
    table.add_row("at once", *(f"{plan.bill.sequences(device, length):,}" for length in lengths(plan)))
    table.caption = f"of {megabytes(device.usable)} usable in each; longest sequence {plan.bill.max_context:,} tokens"
    return table
