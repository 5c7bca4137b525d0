"""`python -m firsttoken.health HOST:PORT`: one question to the standard gRPC health service, for container health checks."""

from __future__ import annotations

import os
import sys

TIMEOUT = 2.0
"""Seconds."""


def main(arguments: list[str]) -> int:
    """0 = serving, 1 = it is not, or does not answer; 2 = no address was given."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    if len(arguments) != 1:
        sys.stderr.write("usage: python -m firsttoken.health HOST:PORT\n")
        return 2
    with grpc.insecure_channel(arguments[0]) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=TIMEOUT)
        except grpc.RpcError as error:
            sys.stderr.write(f"{arguments[0]}: {error.code().name}\n")
            return 1
    name = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    sys.stderr.write(f"{arguments[0]}: {name}\n")
    return 0 if answer.status == health_pb2.HealthCheckResponse.SERVING else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
