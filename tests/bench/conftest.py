"""bench/ is no distribution: its package is found by its folder."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "bench"))


@pytest.fixture(scope="session")
def loadgen_built() -> None:
    """Skips where the load generator cannot be compiled."""
    from sits_bench import loadgen

    try:
        loadgen.build()
    except loadgen.BenchError as error:
        pytest.skip(str(error).partition("\n")[0])
