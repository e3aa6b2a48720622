"""Where benchmarks read and write."""

import os
from pathlib import Path
from typing import Final

BENCH: Final = Path(__file__).resolve().parent.parent
ROOT: Final = BENCH.parent
WORK: Final = ROOT / ".sits" / "bench"
"""Models, request files, logs and the load generator; made anew when missing."""
RESULTS: Final = BENCH / "results"


def peers() -> Path:
    """Where the environments of other servers are. Outside of the checkout, since they are
    large and outlive it; SITS_CLI_BENCH_PEERS names another folder."""
    named = os.environ.get("SITS_CLI_BENCH_PEERS")
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(named) if named else Path(cache) / "sits" / "peers"
