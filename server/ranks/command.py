"""The command line that starts the ranks."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

RANK_MODULE = "firsttoken.rank"


def mpirun_command(world_size: int, socket: str, arguments: Sequence[str], *, mpirun: str = "mpirun") -> list[str]:
    """Open MPI's, 4.1 and 5. Ranks run under ``-m mpi4py``: an exception then ends the whole job instead of hanging the others.

    Ranks are not bound to a core each, which would put the leader's server threads on one.
    """
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    placing = ["--bind-to", "none", "--oversubscribe"]
    rank = [sys.executable, "-m", "mpi4py", "-m", RANK_MODULE, socket, *arguments]
    return [mpirun, *root, "-n", str(world_size), *placing, *rank]


def own_rank(environ: dict[str, str] | os._Environ[str]) -> int:
    """This process's rank, as its starter says. Raises ValueError where nobody does."""
    for name in ("OMPI_COMM_WORLD_RANK", "PMIX_RANK"):
        if name in environ:
            return int(environ[name])
    raise ValueError("OMPI_COMM_WORLD_RANK is not set: ranks are started by mpirun, which `firsttoken serve` starts")
