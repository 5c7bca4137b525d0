"""The `firsttoken` command: finds the verb, runs it, and turns what went wrong into one sentence and an exit status.

A verb is a module of :mod:`firsttoken.commands` with ``HELP`` (one line) and either

* ``add_arguments(parser)`` and ``run(arguments) -> int``, or
* ``run_raw(argv) -> int``, which gets everything after the verb as it is.

Only the verb that runs is imported, and none imports an engine library or gRPC before it runs: `firsttoken --help` is quick.

Exit status: 0 done, 1 failed, 2 the command line is wrong, 130 interrupted, 141 nobody reads the output any more.
"""

from __future__ import annotations

import argparse
import difflib
import os
import pkgutil
import sys
from collections.abc import Sequence
from importlib import import_module
from types import ModuleType

from firsttoken import commands
from firsttoken.command_line import CommandParser
from firsttoken.errors import FirstTokenError

_ORDER = (
    "build",
    "rebuild",
    "verify",
    "inspect",
    "serve",
    "token",
    "generate",
    "chat",
    "cache",
    "top",
    "swap",
    "load",
    "simulate",
    "plan",
    "version",
)
FAILED, WRONG_USAGE, INTERRUPTED, NO_READER = 1, 2, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line (default: this process's) and return the exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        status = _dispatch(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return NO_READER
    except (FirstTokenError, OSError) as error:
        print(f"firsttoken: {error}", file=sys.stderr)  # noqa: T201 - the user's terminal
        return FAILED
    return status


def verbs() -> list[str]:
    """Every verb, in the order in which one needs them."""
    found = [module.name for module in pkgutil.iter_modules(commands.__path__)]
    return sorted(found, key=lambda verb: (_ORDER.index(verb) if verb in _ORDER else len(_ORDER), verb))


def _dispatch(arguments: list[str]) -> int:
    if arguments and arguments[0] in verbs():
        verb, *rest = arguments
        return _run(verb, _module(verb), rest)
    return _no_verb(arguments)


def _run(verb: str, module: ModuleType, rest: list[str]) -> int:
    if hasattr(module, "run_raw"):
        return int(module.run_raw(rest))
    parser = CommandParser(prog=f"firsttoken {verb}", description=_sentence(module.HELP))
    module.add_arguments(parser)
    return int(module.run(parser.parse_args(rest)))


def _no_verb(arguments: list[str]) -> int:
    """Help, the version, or what is wrong."""
    names = verbs()
    parser = argparse.ArgumentParser(
        prog="firsttoken",
        usage="firsttoken VERB ...",
        description="A production server for language models, made for people who wait for the first word.",
        epilog="\n".join(["verbs:", *(f"  {name:<10} {_module(name).HELP}" for name in names)])
        + "\n\n`firsttoken VERB --help` says more.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    parser.add_argument("verb", nargs="*", help=argparse.SUPPRESS)
    known, _ = parser.parse_known_args(arguments)
    if known.version:
        return _run("version", _module("version"), [])
    if known.verb:
        close = difflib.get_close_matches(known.verb[0], names, n=1)
        hint = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(names)}"
        parser.error(f"no verb {known.verb[0]!r}{hint}")
    parser.print_help(sys.stderr)
    return WRONG_USAGE


def _module(verb: str) -> ModuleType:
    return import_module(f"{commands.__name__}.{verb}")


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + ("" if text.endswith(".") else ".")


def _discard_output() -> None:
    """Python flushes standard output once more at exit, which would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
