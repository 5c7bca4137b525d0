"""One rank of an engine that several processes share: what mpirun starts, once for each GPU. Not for the command line.

Arguments: the supervisor's socket, then those of `firsttoken serve`. Rank 0 is the server; the others hold their share of the weights.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from server.config import Config
    from server.ranks.link import Link


def main(argv: list[str]) -> int:
    """Runs until the job ends. Exit status 0 after an orderly end."""
    from firsttoken.commands.serve import prepare, serve
    from server.ranks.command import own_rank
    from server.ranks.link import Link

    socket, *arguments = argv
    rank = own_rank(os.environ)
    link = Link(socket, rank)
    config = prepare(arguments)
    link.report("loading")
    status = serve(config, link) if rank == 0 else _follow(config, link)
    link.ended(status)
    return status


def _follow(config: Config, link: Link) -> int:
    """Load this rank's share and wait inside the library until the leader lets go."""
    from engines.contract import EngineLoadError
    from engines.manifest_file import read_manifest
    from engines.trtllm.loading import follow
    from server.ranks.entry import executor_settings
    from server.ranks.messages import LOADED

    directory = Path(config.engine.directory)
    try:
        manifest = read_manifest(directory, "trtllm")
        follow(directory, manifest, executor_settings(config.engine), lambda: link.report(LOADED))
    except EngineLoadError as error:
        sys.stderr.write(f"firsttoken serve: {error}\n")
        link.ended(1)
        sys.stderr.flush()
        os._exit(1)  # an orderly exit would wait for the other ranks, inside MPI
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
