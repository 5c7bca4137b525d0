"""The parser of every verb that argparse reads."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any


class CommandParser(argparse.ArgumentParser):
    """As its base, but an option that takes one value is refused where it is given twice: argparse lets the last one win without a word."""

    def __init__(self, **named: Any) -> None:  # noqa: ANN401 - as the base takes them
        super().__init__(**named)
        for action in (None, "store"):
            self.register("action", action, _Once)
        self._given: dict[str, object] = {}

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[argparse.Namespace, list[str]]:  # type: ignore[override]  # noqa: ANN401 - one of the base's overloads
        self._given.clear()
        return super().parse_known_args(args, namespace)

    def once(self, option: str, dest: str, value: object) -> None:
        """Note that ``option`` was given. Ends the program with usage where it had been before."""
        if dest in self._given:
            self.error(f"argument {option}: is given twice: {self._given[dest]} and {value}")
        self._given[dest] = value


class _Once(argparse._StoreAction):  # noqa: SLF001 - what "store" means there; it has no public name
    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        if option_string is not None and isinstance(parser, CommandParser):
            parser.once(option_string, self.dest, values)
        super().__call__(parser, namespace, values, option_string)
