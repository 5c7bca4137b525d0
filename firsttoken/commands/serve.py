"""`firsttoken serve [ENGINE] [--config FILE] [--section.knob VALUE …]`: serve an engine until told to stop."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from concurrent.futures import Future

    from server.config import Config
    from server.config_sources import LoadedConfig
    from server.loading import LoadedModel
    from server.phases import Phases
    from server.ranks.link import Link

HELP = "serve an engine over gRPC"

USAGE = """\
usage: firsttoken serve [ENGINE] [--config FILE] [--print-config] [--section.knob VALUE ...]

Serve an engine over gRPC, with metrics and health over HTTP, until SIGTERM or Ctrl-C (twice: at once).

  ENGINE           what `firsttoken build` made (short for --engine.directory), or simulated:PROFILE
  --config FILE    TOML file with the settings below (or FIRSTTOKEN_CONFIG=FILE)
  --print-config   print the effective settings as TOML, each with its source, and exit
  --help           this text

Settings, as a flag --section.knob, in the environment FIRSTTOKEN_SECTION__KNOB, in TOML [section] knob. Flags win over the
environment, the environment over the file.
"""


class UsageError(Exception):
    """The command line cannot be understood."""


def run_raw(arguments: Sequence[str]) -> int:
    """Run the command. Exit status: 0 after an orderly end, 1 for a failure, 2 for what the user must change."""
    from server.config_sources import ConfigError

    if "--help" in arguments or "-h" in arguments:
        sys.stdout.write(describe())
        return 0
    try:
        loaded, print_only = _load(arguments)
    except (ConfigError, UsageError) as error:
        sys.stderr.write(f"firsttoken serve: {error}\n")
        return 2
    if print_only:
        sys.stdout.write(loaded.to_toml())
        return 0
    from server.ranks.entry import is_trtllm, supervise

    if is_trtllm(loaded.config.engine.directory):
        configure(loaded.config)
        return supervise(loaded.config, arguments)
    return serve(loaded.config)


def prepare(arguments: Sequence[str]) -> Config:
    """What ``serve`` needs, from a command line. Raises ConfigError and UsageError."""
    return _load(arguments)[0].config


def describe() -> str:
    """The help: every setting with its default and its meaning."""
    from server.config_sources import knobs

    settings = (f"  {knob.flag} (default {knob.field.default!r})\n      {knob.field.description}" for knob in knobs())
    return "\n".join((USAGE, *settings)) + "\n"


def _load(arguments: Sequence[str]) -> tuple[LoadedConfig, bool]:
    from server.config_sources import load_config, parse_flags

    flags, rest = parse_flags(arguments)
    file = os.environ.get("FIRSTTOKEN_CONFIG")
    print_only = False
    named: list[str] = []
    remaining = iter(rest)
    for argument in remaining:
        if argument == "--print-config":
            print_only = True
        elif argument == "--config" or argument.startswith("--config="):
            file = next(remaining, None) if argument == "--config" else argument.removeprefix("--config=")
            if file is None:
                raise UsageError("--config needs a value")
            named.append(file)
            if len(named) > 1:
                raise UsageError(f"--config is given twice: {named[0]} and {file}")
        elif argument.startswith("-"):
            raise UsageError(f"unknown option {argument}; --help lists them all")
        elif "engine.directory" in flags:
            raise UsageError(f"two engines: {flags['engine.directory']} and {argument}")
        else:
            flags["engine.directory"] = argument
    return load_config(Path(file) if file else None, os.environ, flags), print_only


def configure(config: Config) -> None:
    from server.telemetry.logging import configure_logging

    configure_logging(config.telemetry)


def serve(config: Config, link: Link | None = None) -> int:
    """Serve in this process until told to stop. ``link``: to the supervisor of the job whose leader this is."""
    signal.signal(signal.SIGTERM, _end_at_once)
    configure(config)
    _quieten_grpc()
    phases, loading = _begin_loading(config)
    if link is not None:
        from server.ranks.messages import LOADED

        loading.add_done_callback(lambda _: link.report("failed" if loading.exception() else LOADED))
    from server.app import App  # after the load has begun: this imports for half a second
    from server.event_loop import loop_factory
    from server.swap import EngineSource

    with asyncio.Runner(loop_factory=loop_factory(uvloop=config.lifecycle.uvloop)) as runner:
        trouble = None if link is None else link.trouble
        # A job of several ranks is made for one engine.
        engines = None if link is not None else EngineSource(_load_another, _check_another)
        status = runner.run(App(config, loading, phases, trouble, engines).run())
    if status or not loading.done():
        # A hung engine's thread may never end, and its library could wait for it while Python shuts down.
        if link is not None:
            link.ended(status)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


def _end_at_once(number: int, _: object) -> None:
    """SIGTERM before the server takes signals over. It would end any process but a container's first, where what nobody handles is lost."""
    os._exit(128 + number)


def _begin_loading(config: Config) -> tuple[Phases, Future[LoadedModel]]:
    """Load the engine in a thread: its library reads and compiles without the interpreter, which meanwhile imports the rest."""
    from server.concurrency import start_daemon
    from server.loading import load_model
    from server.phases import Phases

    phases = Phases()
    under_way = threading.Event()

    def load() -> LoadedModel:
        try:
            with phases.measure("load"):
                return load_model(config, phases, under_way.set)
        finally:
            under_way.set()

    loading = start_daemon(load, "loader")
    under_way.wait()  # importing two things at once only makes both late
    return phases, loading


def _load_another(config: Config) -> Future[LoadedModel]:
    """Begin to load an engine that is to take the place of the one that serves."""
    from server.concurrency import start_daemon
    from server.loading import load_model
    from server.phases import Phases

    def load() -> LoadedModel:
        _refuse_jobs(config)
        return load_model(config, Phases())

    return start_daemon(load, "loader")


def _check_another(config: Config) -> None:
    """Whether such an engine can be loaded, before the one that serves is closed for it."""
    from server.loading import check_model

    _refuse_jobs(config)
    check_model(config)


def _refuse_jobs(config: Config) -> None:
    from server.ranks.entry import is_trtllm

    if is_trtllm(config.engine.directory):
        raise ValueError("an engine of TensorRT-LLM is a job of processes; start a server of its own for it")


def _quieten_grpc() -> None:
    """gRPC's core writes to standard error what is no error, and expects forks that this process never makes."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
