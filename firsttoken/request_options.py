"""The options that every verb which asks a server for text has in common."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from firsttoken.errors import CommandError

if TYPE_CHECKING:
    from firsttoken.client import Client, GenerateOptions, Tls

_PASSED_ON = (
    "max_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "priority",
    "cache_salt",
    "ttft_deadline",
    "timeout",
)


def add_request_options(parser: argparse.ArgumentParser) -> None:
    server = parser.add_argument_group("server")
    server.add_argument("--address", default="localhost:50051", metavar="HOST:PORT", help="default: %(default)s")
    add_credential_options(server)
    server.add_argument("--timeout", type=float, metavar="SECONDS", help="give up after so long; default: never")
    server.add_argument(
        "--ttft-deadline", type=float, metavar="SECONDS", help="give up unless the first token is out by then"
    )
    server.add_argument("--priority", choices=("interactive", "standard", "batch"), help="default: interactive")
    server.add_argument("--cache-salt", metavar="TEXT", help="share cached prefixes only with requests of this salt")
    _add_sampling_options(parser)


def add_credential_options(server: argparse._ArgumentGroup) -> None:
    server.add_argument(
        "--token-file", metavar="FILE", help="a bearer token; default: the environment variable FIRSTTOKEN_TOKEN"
    )
    server.add_argument("--tls", action="store_true", help="encrypt; implied by the next three")
    server.add_argument("--ca", metavar="FILE", help="PEM of who vouches for the server; default: the machine's own")
    server.add_argument("--certificate", metavar="FILE", help="PEM of your own certificate, with --key")
    server.add_argument("--key", metavar="FILE", help="PEM of its private key")


def credentials_of(arguments: argparse.Namespace) -> tuple[Tls | None, str | None]:
    """TLS and token as they were given. A token is never an argument: every user of the machine could read it there.

    Raises OSError and ArgumentError.
    """
    from firsttoken.client import Tls

    files = (arguments.ca, arguments.certificate, arguments.key)
    tls = Tls.from_files(*files) if arguments.tls or any(files) else None
    if arguments.token_file:
        return tls, Path(arguments.token_file).read_text(encoding="ascii").strip()
    return tls, os.environ.get("FIRSTTOKEN_TOKEN") or None


def _add_sampling_options(parser: argparse.ArgumentParser) -> None:
    output = parser.add_argument_group("output")
    output.add_argument("--max-tokens", type=int, metavar="N", help="default: the server's")
    output.add_argument("--temperature", type=float, metavar="T", help="0 (the default) takes the likeliest token")
    output.add_argument("--top-k", type=int, metavar="K", help="draw among the K likeliest tokens")
    output.add_argument("--top-p", type=float, metavar="P", help="draw among the likeliest that sum to P")
    output.add_argument("--min-p", type=float, metavar="P", help="draw among those P times as likely as the likeliest")
    output.add_argument("--seed", type=int, metavar="S", help="the same seed gives the same text")
    guide = output.add_mutually_exclusive_group()
    guide.add_argument("--json-schema", metavar="FILE", help="the text is a JSON document that this schema accepts")
    guide.add_argument("--regex", metavar="PATTERN", help="the whole text matches this regular expression")
    output.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end before this text; may be given several times"
    )


def options_of(arguments: argparse.Namespace) -> GenerateOptions:
    """What was given, as generate() takes it."""
    given = {name: getattr(arguments, name) for name in _PASSED_ON}
    options: GenerateOptions = {name: value for name, value in given.items() if value is not None}  # type: ignore[assignment]
    if arguments.stop:
        options["stop"] = arguments.stop
    if arguments.json_schema:
        options["json_schema"] = Path(arguments.json_schema).read_text(encoding="utf-8")
    if arguments.regex:
        options["regex"] = arguments.regex
    return options


@contextmanager
def asking(arguments: argparse.Namespace) -> Iterator[Client]:
    """A client of the server that was named. Where none answers there, the error says so."""
    from firsttoken.client import Client, UnavailableError

    tls, token = credentials_of(arguments)
    with Client(arguments.address, tls=tls, token=token) as client:
        try:
            yield client
        except UnavailableError as error:
            if error.reason is not None:
                raise  # a server of ours said it, and knows better
            raise CommandError(f"no server answers at {arguments.address} ({error})") from error
