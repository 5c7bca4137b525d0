"""`firsttoken version`."""

from __future__ import annotations

import argparse
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

HELP = "print the version"

_TOLD = ("openvino", "tensorrt-llm", "grpcio", "tokenizers", "numpy")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--verbose", action="store_true", help="also Python's and those of the libraries that matter")


def run(arguments: argparse.Namespace) -> int:
    sys.stdout.write(f"firsttoken {_version('firsttoken')}\n")
    if arguments.verbose:
        sys.stdout.write(f"python {platform.python_version()}\n")
        sys.stdout.writelines(f"{name} {_version(name)}\n" for name in _TOLD)
    return 0


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "(not installed)"
