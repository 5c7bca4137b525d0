"""What an engine may raise."""

from __future__ import annotations


class EngineError(Exception):
    """Root of what an engine may raise. Its text is for logs, never for clients.

    EngineError
    ├── PlanError        a plan breaks the contract (id out of range, unknown sequence, too many rows); nothing was run
    ├── StepError        a step failed inside the library; the KV contents it was to write are undefined, the runner lives
    ├── EngineLoadError  an engine cannot be loaded: its files, its numerics on this machine
    │   └── EngineMemoryError   ... or its memory
    └── EngineDeadError  the engine cannot run anything any more
    """


class PlanError(EngineError):
    """A step plan or request breaks the contract. Nothing was run and no block was touched."""


class StepError(EngineError):
    """One step failed. Blocks that it was to write hold garbage; the engine can run further steps."""


class EngineLoadError(EngineError):
    """An engine cannot be loaded; names what is wrong and what was found. Raised by loaders, never by a loaded engine."""


class EngineMemoryError(EngineLoadError):
    """There is no room for it beside what is loaded already; names what it needs and what is available."""


class EngineDeadError(EngineError):
    """The engine is gone: closed, crashed or hung. Every further call raises this."""
