"""From a target's name to its transport."""

from __future__ import annotations

from loadtest.errors import TargetError
from loadtest.transports.base import Target, Transport

WIRES = ("native", "kserve", "openai")


def make_transport(target: Target) -> Transport:
    """Raises TargetError for an unknown wire. Imports only the libraries of the wire that is asked for."""
    if target.wire == "native":
        from loadtest.transports.native import NativeTransport

        return NativeTransport(target)
    if target.wire == "kserve":
        from loadtest.transports.kserve import KserveTransport

        return KserveTransport(target)
    if target.wire == "openai":
        from loadtest.transports.openai import OpenaiTransport

        return OpenaiTransport(target)
    raise TargetError(f"--wire: {target.wire!r} is none of {', '.join(WIRES)}")
