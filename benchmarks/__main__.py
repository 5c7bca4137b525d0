"""`make bench`: what the parts cost, as tables. ``python -m benchmarks [NAME …]`` runs those alone; nothing else may run meanwhile.

The figures with bounds are `make figures`; the race against other servers is `make race`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable

from build_scripts.source import DEFAULT_MODEL, default_cache
from tests.engines_built import default_engine

BENCHMARKS: dict[str, Callable[[], list[str]]] = {
    "planning": lambda: ["benchmarks.bench_planning"],
    "sampling": lambda: ["benchmarks.bench_runner", "--sampling"],
    "runner": lambda: ["benchmarks.bench_runner", str(default_engine())],
    "numerics": lambda: ["benchmarks.bench_numerics"],
    "forms": lambda: ["benchmarks.weight_forms", DEFAULT_MODEL, str(default_cache() / "weight-forms")],
}
"""Name to the module and its arguments. Each runs in a process of its own, so that none warms another's caches."""


def main() -> int:
    """The number of benchmarks that failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; all by default")
    names = parser.parse_args().names or list(BENCHMARKS)
    if unknown := sorted(set(names) - set(BENCHMARKS)):
        parser.error(f"no benchmark {unknown[0]!r}; there are {', '.join(BENCHMARKS)}")
    failed = 0
    for name in names:
        print(f"== {name}", flush=True)
        failed += subprocess.run([sys.executable, "-m", *BENCHMARKS[name]()], check=False).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
