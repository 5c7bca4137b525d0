"""`make figures`: every figure, its bound, its value, and whether it holds. Exit code 1 when one does not.

Each module named here offers ``figures() -> list[Figure]`` and says in its docstring how it measures. Run one alone with
``make figures ARGS='--only overhead'``; nothing else may run on the machine meanwhile.
"""

from __future__ import annotations

import argparse
import importlib
import sys

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.figure import Figure

MODULES = (
    "fidelity",
    "isolation",
    "startup",
    "ranks",
    "overhead",
    "prefix",
    "restart",
    "cache_off",
    "planning",
    "scheduling",
    "rejections",
    "load_client",
    "api",
    "operating",
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make figures", description=__doc__)
    parser.add_argument("--json", action="store_true", help="a list of objects with the keys name, bound, value, holds")
    parser.add_argument("--only", action="append", choices=MODULES, help="measure these alone")
    arguments = parser.parse_args()
    measured: list[Figure] = []
    for name in arguments.only or MODULES:
        Console(stderr=True).print(f"measuring {name} …", style="dim")
        measured += importlib.import_module(f"benchmarks.bench_{name}").figures()
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(measured)).decode())
    else:
        Console().print(_table(measured))
    return 0 if all(figure.holds for figure in measured) else 1


def _table(measured: list[Figure]) -> Table:
    table = Table("name", "bound", "value", "holds")
    for figure in measured:
        table.add_row(figure.name, figure.bound, figure.value, "yes" if figure.holds else "[bold red]no[/]")
    return table


if __name__ == "__main__":
    sys.exit(main())
