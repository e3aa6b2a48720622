"""The references and the front door alone start, and answer rightly."""

import pytest

from sits_bench import checks
from sits_bench.messages import Inference, random_floats
from sits_bench.servers import Echo, FrontAlone, NaiveMesh
from sits_bench.system import System

ECHO = Inference("echo", {"INPUT": random_floats(1, 1, 256)})


@pytest.mark.parametrize(
    "system", [Echo("sync"), Echo("aio"), FrontAlone(), NaiveMesh(2)], ids=lambda s: s.name
)
def test_it_echoes(system: System) -> None:
    with system.start() as running:
        checks.echoes(running, ECHO)
        assert running.pids()
