"""`firsttoken swap DIR`: have a running server serve another engine, without a pause."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from firsttoken.request_options import add_credential_options, asking

HELP = "have a running server serve another engine, without a pause"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="what `firsttoken build` made, on the server's machine")
    parser.add_argument(
        "--replace",
        action="store_true",
        help="where memory does not hold both: close the engine that serves first; requests are refused until the new one is loaded",
    )
    server = parser.add_argument_group("server")
    server.add_argument("--address", default="localhost:50051", metavar="HOST:PORT", help="default: %(default)s")
    server.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="give up waiting after so long; default: never"
    )
    add_credential_options(server)


def run(arguments: argparse.Namespace) -> int:
    """One line when it serves. Giving up does not stop the server's loading."""
    here = Path(arguments.directory)
    # The server looks for it from where it was started, which may be elsewhere.
    directory = str(here.resolve()) if here.is_dir() else arguments.directory
    with asking(arguments) as client:
        served = client.load_engine(directory, replace=arguments.replace, timeout=arguments.timeout)
    sys.stdout.write(f"serving {served.model} ({served.engine}, {served.fingerprint})\n")
    return 0
