"""A config.json read in a closed way: whatever nobody asked for is a feature that nobody implemented."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from build_scripts.errors import CheckpointError, UnsupportedError

T = TypeVar("T")

_NEUTRAL: tuple[object, ...] = (None, False, [], {}, "")
"""A key that nobody knows may stand there as long as it says nothing."""


class ConfigReader:
    """Typed access to a JSON object that remembers which keys were read."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self._where = where
        self._read: set[str] = set()

    def whole(self, key: str, default: int | None = None) -> int:
        return self._typed(key, int, default)

    def number(self, key: str, default: float | None = None) -> float:
        value = self._value(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        return self._typed(key, float, default)

    def flag(self, key: str, default: bool | None = None) -> bool:
        return self._typed(key, bool, default)

    def text(self, key: str, default: str | None = None) -> str:
        return self._typed(key, str, default)

    def optional_whole(self, key: str) -> int | None:
        return None if self._value(key) is None else self.whole(key)

    def optional_number(self, key: str) -> float | None:
        return None if self._value(key) is None else self.number(key)

    def numbers(self, key: str) -> tuple[float, ...]:
        values = self._typed(key, list, None)
        if not all(isinstance(value, int | float) for value in values):
            raise CheckpointError(f"{self._where}: {key} should be a list of numbers")
        return tuple(float(value) for value in values)

    def texts(self, key: str) -> tuple[str, ...] | None:
        if self._value(key) is None:
            return None
        return tuple(str(value) for value in self._typed(key, list, None))

    def section(self, key: str) -> ConfigReader | None:
        """A nested object, read in its turn; None where absent."""
        if self._value(key) is None:
            return None
        return ConfigReader(self._typed(key, dict, None), f"{self._where}: {key}")

    def has(self, key: str) -> bool:
        return self._values.get(key) is not None

    def ignore(self, keys: frozenset[str]) -> None:
        """Keys that do not change what the model computes."""
        self._read |= keys

    def refuse_unread(self) -> None:
        """Raises UnsupportedError naming the first key that says something and was not read."""
        for key, value in sorted(self._values.items()):
            if key not in self._read and value not in _NEUTRAL:
                raise UnsupportedError(f"{self._where}: {key} = {value!r:.60} is not implemented")

    def refuse(self, key: str, why: str) -> None:
        raise UnsupportedError(f"{self._where}: {key} = {self._values.get(key)!r:.60} is not implemented; {why}")

    def _value(self, key: str) -> Any:  # noqa: ANN401 - a value of a JSON file
        self._read.add(key)
        return self._values.get(key)

    def _typed(self, key: str, kind: type[T], default: T | None) -> T:
        value = self._value(key)
        if value is None:
            if default is None:
                raise CheckpointError(f"{self._where} lacks {key}")
            return default
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise CheckpointError(
                f"{self._where}: {key} should be a {kind.__name__}, it is {type(value).__name__} {value!r:.60}"
            )
        return value
