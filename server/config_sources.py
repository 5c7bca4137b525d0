"""Where the values of the configuration come from: defaults, a TOML file, ``FIRSTTOKEN_*``, flags. A later source wins.

All three name a knob by its path: ``[grpc] port`` in TOML, ``FIRSTTOKEN_GRPC__PORT``, ``--grpc.port``. A name that is no
knob is refused in each of them, with the nearest knob named: a typo must not silently serve a default.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from server.config import Config

ENV_PREFIX = "FIRSTTOKEN_"
ENV_DELIMITER = "__"
NOT_KNOBS = frozenset({"FIRSTTOKEN_CONFIG", "FIRSTTOKEN_TOKEN"})
"""Environment variables of ours that are no knob: the path of the TOML file, and the client's token."""


class ConfigError(Exception):
    """The configuration cannot be used; the text says which source, which knob, and why. Written for whoever starts the server."""


@dataclass(frozen=True)
class Knob:
    path: str
    """Dotted, e.g. ``grpc.port``."""
    field: FieldInfo

    @property
    def env(self) -> str:
        return ENV_PREFIX + self.path.upper().replace(".", ENV_DELIMITER)

    @property
    def flag(self) -> str:
        return "--" + self.path


@dataclass(frozen=True)
class LoadedConfig:
    config: Config
    origins: Mapping[str, str]
    """Knob path to the source that set it; knobs at their default are absent."""

    def to_toml(self) -> str:
        """The effective tree as TOML; a comment behind each knob says where its value comes from."""
        lines: list[str] = []
        for name, section in self.config:
            lines += [f"[{name}]"] if not lines else ["", f"[{name}]"]
            for key, value in section:
                lines.append(f"{key} = {_toml_value(value)}  # {self.origins.get(f'{name}.{key}', 'default')}")
        return "\n".join(lines) + "\n"


def knobs(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[Knob]:
    """Every knob of the tree, in order."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from knobs(kind, f"{prefix}{name}.")
        else:
            yield Knob(prefix + name, field)


def load_config(file: Path | None, environ: Mapping[str, str], flags: Mapping[str, str]) -> LoadedConfig:
    """Merge the sources and validate the result once.

    ``flags`` maps knob paths to text. Raises ConfigError, naming every violation and its source.
    """
    named = {knob.path: knob for knob in knobs()}
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for source in (_from_toml(file, named), _from_env(environ, named), _from_flags(flags, named)):
        for path, value, origin in source:
            values[path], origins[path] = value, origin
    try:
        return LoadedConfig(Config.model_validate(_nest(values)), origins)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(error, origins))) from error


Source = Iterable[tuple[str, Any, str]]
"""(knob path, value, origin) of each knob that a source sets."""


def _from_toml(file: Path | None, named: Mapping[str, Knob]) -> Source:
    if file is None:
        return []
    try:
        tree = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not TOML: {error}") from error
    leaves = list(_leaves(tree))
    for path, _ in leaves:
        _require_known(path, path, named, str(file))
    sections = {path.partition(".")[0]: knob for path, knob in named.items()}
    for name in tree:  # an empty section had no setting that could give its name away
        _require_known(name, name, sections, str(file))
    return [(path, value, f"{file}") for path, value in leaves]


def _from_env(environ: Mapping[str, str], named: Mapping[str, Knob]) -> Source:
    by_env = {knob.env: knob for knob in named.values()}
    ours = sorted(name for name in environ if name.startswith(ENV_PREFIX) and name not in NOT_KNOBS)
    for name in ours:
        _require_known(name, name, by_env, "the environment")
    return [(by_env[name].path, environ[name], name) for name in ours]


def _from_flags(flags: Mapping[str, str], named: Mapping[str, Knob]) -> Source:
    for path in flags:
        _require_known(path, f"--{path}", named, "the command line")
    return [(path, value, f"--{path}") for path, value in flags.items()]


def _require_known(key: str, shown: str, known: Mapping[str, Knob], where: str) -> None:
    if key in known:
        return
    near = difflib.get_close_matches(key, known, n=1)
    hint = f"; did you mean {known[near[0]].flag if shown.startswith('--') else near[0]}?" if near else ""
    raise ConfigError(f"{where}: unknown setting {shown}{hint}")


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _nest(values: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, value in values.items():
        section, _, key = path.rpartition(".")
        tree.setdefault(section, {})[key] = value
    return tree


def _explain(error: ValidationError, origins: Mapping[str, str]) -> Iterator[str]:
    for problem in error.errors():
        path = ".".join(str(part) for part in problem["loc"])
        message = problem["msg"].removeprefix("Value error, ")
        if path in origins:
            yield f"{path}: {message}; given {problem['input']!r} by {origins[path]}"
        else:
            yield message


def _toml_value(value: bool | float | str) -> str:
    # JSON's strings, numbers and booleans are TOML's, too.
    return json.dumps(value, ensure_ascii=False)


def parse_flags(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Split ``--section.key VALUE`` and ``--section.key=VALUE`` from the other arguments. Raises ConfigError for a missing value
    and for a flag that is given twice: neither value may win without a word."""
    flags: dict[str, str] = {}
    rest: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        name, equals, value = argument.partition("=")
        if not name.startswith("--") or "." not in name:
            rest.append(argument)
            continue
        if not equals:
            value = next(remaining, "")
            if not value or value.startswith("--"):
                raise ConfigError(f"the command line: {name} needs a value")
        path = name.removeprefix("--")
        if path in flags:
            raise ConfigError(f"the command line: {name} is given twice: {flags[path]} and {value}")
        flags[path] = value
    return flags, rest
