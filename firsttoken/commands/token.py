"""`firsttoken token`: a new bearer token, and the line that the access file needs for it."""

from __future__ import annotations

import argparse
import datetime as dt
import sys

from firsttoken.errors import CommandError

HELP = "make a bearer token for a tenant"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--days", type=int, metavar="N", help="it expires after N days; default: never")


def run(arguments: argparse.Namespace) -> int:
    """The token goes to standard output and is stored nowhere; the line for the access file goes to standard error."""
    from server.access.directory import hash_token, new_token

    if arguments.days is not None and not 1 <= arguments.days <= 36_500:
        raise CommandError(f"--days must be from 1 to 36500, given {arguments.days}")
    token = new_token()
    entry = f'sha256 = "{hash_token(token)}"'
    if arguments.days is not None:
        expires = dt.datetime.now(dt.UTC).replace(microsecond=0) + dt.timedelta(days=arguments.days)
        entry += f", expires = {expires.isoformat().replace('+00:00', 'Z')}"
    print(token)  # noqa: T201 - what was asked for
    print(f"tokens = [{{ {entry} }}]", file=sys.stderr)  # noqa: T201 - the user's terminal
    return 0
