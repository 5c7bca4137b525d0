"""`firsttoken cache list|pin|unpin|warm|clear`: look after a running server's prefix cache."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from firsttoken.errors import CommandError
from firsttoken.request_options import add_credential_options, asking
from firsttoken.terminal import decode_input, write_json

if TYPE_CHECKING:
    from firsttoken.client import CachedPrefix, Client
    from firsttoken.client.options import PrefixOptions

HELP = "look after a running server's prefix cache"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_NAME_DIGITS = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    listing = _verb(verbs, "list", "the prefixes that were reused most: names and sizes, never text")
    listing.add_argument("--most", type=int, default=20, metavar="N", help="default: %(default)s")
    pin = _verb(verbs, "pin", "keep a prefix, whatever else wants its memory, for a time")
    pin.add_argument("prompt", help="its text, or - for standard input, or the name of a cached prefix (64 digits)")
    pin.add_argument(
        "--for", dest="time", default="1h", metavar="TIME", help="as 90s, 10m, 1h, 7d; default: %(default)s"
    )
    _add_owner(pin)
    unpin = _verb(verbs, "unpin", "end a pin before its time")
    unpin.add_argument("prefix", metavar="NAME", help="as `firsttoken cache list` shows it")
    warm = _verb(verbs, "warm", "compute a prompt ahead of its use")
    warm.add_argument("prompt", help="its text, or - for standard input")
    _add_owner(warm)
    clear = _verb(verbs, "clear", "forget what is cached")
    clear.add_argument("--pinned", action="store_true", help="what is pinned, too")


def run(arguments: argparse.Namespace) -> int:
    """One line, or with --json one object, for each prefix that is told of."""
    with asking(arguments) as client:
        _VERBS[arguments.verb](client, arguments)
    return 0


def _list(client: Client, arguments: argparse.Namespace) -> None:
    prefixes = client.list_prefixes(arguments.most, timeout=arguments.timeout)
    for prefix in prefixes:
        _tell(prefix, arguments)
    if not prefixes and not arguments.json:
        sys.stdout.write("nothing is cached\n")


def _pin(client: Client, arguments: argparse.Namespace) -> None:
    seconds = _seconds(arguments.time)
    if _is_name(arguments.prompt):
        _tell(client.pin_prefix(seconds=seconds, prefix=arguments.prompt, timeout=arguments.timeout), arguments)
        return
    prompt = _read(arguments.prompt)
    _tell(client.pin_prefix(prompt, seconds=seconds, timeout=arguments.timeout, **_owner(arguments)), arguments)


def _unpin(client: Client, arguments: argparse.Namespace) -> None:
    if not client.unpin_prefix(arguments.prefix, timeout=arguments.timeout):
        raise CommandError(f"nothing is pinned under {arguments.prefix}")


def _warm(client: Client, arguments: argparse.Namespace) -> None:
    warmed = client.warm_prefix(_read(arguments.prompt), timeout=arguments.timeout, **_owner(arguments))
    if arguments.json:
        write_json({"prompt_tokens": warmed.prompt_tokens, "cached_tokens": warmed.cached_tokens})
    else:
        sys.stdout.write(f"{warmed.prompt_tokens} tokens, {warmed.cached_tokens} of them cached before\n")


def _clear(client: Client, arguments: argparse.Namespace) -> None:
    cleared = client.clear_cache(pinned=arguments.pinned, timeout=arguments.timeout)
    if arguments.json:
        write_json({"forgotten_blocks": cleared.forgotten_blocks, "kept_blocks": cleared.kept_blocks})
    else:
        sys.stdout.write(f"{cleared.forgotten_blocks} blocks forgotten, {cleared.kept_blocks} in use or pinned\n")


_VERBS: dict[str, Callable[[Client, argparse.Namespace], None]] = {
    "list": _list,
    "pin": _pin,
    "unpin": _unpin,
    "warm": _warm,
    "clear": _clear,
}


def _verb(verbs: argparse._SubParsersAction[argparse.ArgumentParser], name: str, words: str) -> argparse.ArgumentParser:
    verb: argparse.ArgumentParser = verbs.add_parser(name, help=words, description=words)
    verb.add_argument("--json", action="store_true", help="JSON, an object a line")
    server = verb.add_argument_group("server")
    server.add_argument("--address", default="localhost:50051", metavar="HOST:PORT", help="default: %(default)s")
    server.add_argument("--timeout", type=float, metavar="SECONDS", help="give up after so long; default: never")
    add_credential_options(server)
    return verb


def _add_owner(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--cache-salt", metavar="TEXT", help="requests of this salt are to find it")
    verb.add_argument("--tenant", metavar="NAME", help="requests of this tenant are to find it; default: your own")


def _owner(arguments: argparse.Namespace) -> PrefixOptions:
    given: PrefixOptions = {}
    if arguments.cache_salt is not None:
        given["cache_salt"] = arguments.cache_salt
    if arguments.tenant is not None:
        given["tenant"] = arguments.tenant
    return given


def _is_name(text: str) -> bool:
    return len(text) == _NAME_DIGITS and all(digit in "0123456789abcdef" for digit in text)


def _read(prompt: str) -> str:
    return decode_input(sys.stdin.buffer.read()).removesuffix("\n") if prompt == "-" else prompt


def _seconds(time: str) -> float:
    """Raises CommandError."""
    number, unit = time[:-1], time[-1:]
    try:
        return float(number) * _UNITS[unit]
    except (KeyError, ValueError) as error:
        raise CommandError(f"--for: must be as 90s, 10m, 1h or 7d, not {time!r}") from error


def _tell(prefix: CachedPrefix, arguments: argparse.Namespace) -> None:
    if arguments.json:
        fields = ("name", "tokens", "blocks", "bytes", "reuses", "in_use", "pinned_for")
        write_json({field: getattr(prefix, field) for field in fields})
        return
    state = "cached" if not prefix.in_use else "in use"
    if prefix.pinned_for is not None:
        state = f"pinned for {prefix.pinned_for:,.0f} s"
    sys.stdout.write(
        f"{prefix.name}  {prefix.tokens:>7,} tokens  {prefix.bytes / 2**20:>8,.1f} MiB  {prefix.reuses:>5} reuses  {state}\n"
    )
