"""What may go wrong while measuring, as one hierarchy. Every text is written for the person who typed the command.

LoadError
├── WorkloadError   the workload cannot be what was asked for: names the option, the limit and the value given
├── TraceError      a trace file cannot be read: names the file and the line
├── TargetError     the server cannot be reached, or does not speak what was asked of it
└── WorkerError     a client process died
"""

from __future__ import annotations


class LoadError(Exception):
    """Root."""


class WorkloadError(LoadError):
    pass


class TraceError(LoadError):
    pass


class TargetError(LoadError):
    pass


class WorkerError(LoadError):
    pass
