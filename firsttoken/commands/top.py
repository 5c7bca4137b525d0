"""`firsttoken top`: what a server is doing, in a terminal, again and again."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from firsttoken.errors import CommandError
from firsttoken.request_options import add_credential_options, credentials_of

if TYPE_CHECKING:
    from firsttoken.top.view import View

HELP = "show what a server is doing: queue, cache, latencies, steps, rates"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--once", action="store_true", help="show it once and end")
    parser.add_argument("--json", action="store_true", help="an object a line instead of a screen, for programs")
    parser.add_argument(
        "--interval", type=_seconds, default=2.0, metavar="SECONDS", help="between two looks; default: %(default)s"
    )
    server = parser.add_argument_group("server")
    server.add_argument("--address", default="localhost:50051", metavar="HOST:PORT", help="default: %(default)s")
    server.add_argument(
        "--metrics", default="http://localhost:8080/metrics", metavar="URL", help="default: %(default)s"
    )
    add_credential_options(server)


def run(arguments: argparse.Namespace) -> int:
    """Until interrupted, also while the server is away. Raises CommandError where --once finds nobody."""
    views = _views(arguments)
    if arguments.once:
        view = next(views)
        _show_one(view, as_json=arguments.json)
        if not view.reachable:
            raise CommandError(f"no server answers at {arguments.address}, nor at {arguments.metrics}")
        return 0
    if arguments.json:
        for view in views:
            _show_one(view, as_json=True)
    else:
        _show_live(views)
    return 0


def _views(arguments: argparse.Namespace) -> Iterator[View]:
    """For ever, one an interval; the first after one interval, since rates need two looks."""
    from firsttoken.client import Client, RetryPolicy
    from firsttoken.top.reading import read
    from firsttoken.top.view import view_of

    tls, token = credentials_of(arguments)
    patience = max(1.0, arguments.interval)
    with Client(arguments.address, tls=tls, token=token, retry=RetryPolicy(attempts=1), timeout=patience) as client:
        before = read(client.load, arguments.metrics, timeout=patience)
        while True:
            time.sleep(arguments.interval)
            now = read(client.load, arguments.metrics, timeout=patience)
            yield view_of(arguments.address, before, now)
            before = now


def _show_one(view: View, *, as_json: bool) -> None:
    from firsttoken.terminal import write_json

    if as_json:
        write_json(asdict(view))
        return
    from rich.console import Console

    from firsttoken.top.screen import screen

    Console(highlight=False).print(screen(view))


def _show_live(views: Iterator[View]) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from firsttoken.top.screen import screen

    console = Console(highlight=False)
    # On a terminal its own screen, which leaves no trace; elsewhere one view after another.
    with Live(Text("…"), console=console, screen=console.is_terminal, auto_refresh=False) as live:
        for view in views:
            live.update(screen(view), refresh=True)


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.1 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"must be between 0.1 and 3600 seconds, it is {text}")
    return value
