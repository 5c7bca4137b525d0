"""What `firsttoken build --export` shows: what it will cost, then what was found."""

from __future__ import annotations

import sys
from typing import Any

import msgspec
from rich.console import Console

from build_scripts.export.build import ExportPlan
from engines.manifest import EngineManifest
from firsttoken.build_output import megabytes, print_findings


class ExportOutput:
    """Results on stdout."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._console = Console(highlight=False, soft_wrap=True)

    def planned(self, plan: ExportPlan) -> None:
        if self._as_json:
            bill = {"disk": plan.weight_bytes, "build_memory": plan.build_memory}
            standing = {"output": str(plan.output), "up_to_date": plan.up_to_date()}
            self._json({"status": "planned", "bill": bill} | standing)
        self.bill(plan)

    def up_to_date(self, plan: ExportPlan) -> None:
        if self._as_json:
            self._json({"status": "up_to_date", "output": str(plan.output), "fingerprint": plan.fingerprint})
        else:
            self._console.print(f"{plan.output} is up to date: nothing to build")

    def bill(self, plan: ExportPlan) -> None:
        if self._as_json:
            return
        kind, environment = plan.config["model_type"], plan.environment
        self._console.print(f"[bold]{plan.source.name}[/bold] ({plan.source.origin}): {kind} through {plan.recipe}")
        self._console.print(f"  environment {environment.python}, torch {environment.versions['torch']}")
        self._console.print(
            f"  weights {plan.choice.weights}, keys and values {plan.choice.kv_cache} -> {plan.output}, "
            f"{megabytes(plan.weight_bytes)} on disk"
        )
        self._console.print(f"  memory while building, about {megabytes(plan.build_memory)}")

    def built(self, plan: ExportPlan, manifest: EngineManifest) -> None:
        if self._as_json:
            document = {"status": "built", "output": str(plan.output), "manifest": msgspec.to_builtins(manifest)}
            self._json(document)
            return
        self._console.print(f"built {plan.output}")
        print_findings(self._console, manifest)

    def _json(self, document: dict[str, Any]) -> None:
        sys.stdout.buffer.write(msgspec.json.encode(document) + b"\n")
        sys.stdout.buffer.flush()
