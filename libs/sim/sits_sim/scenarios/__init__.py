"""The scenarios by name. Each returns a report whose figures have the bars it must reach."""

from collections.abc import Callable
from importlib import import_module
from typing import Final

from sits_sim.figures import Report
from sits_sim.progress import Progress
from sits_sim.scenarios.size import Size as Size

Scenario = Callable[[Size, Progress], Report]

NAMES: Final = ("thousand", "tenants", "timeslice", "contention", "jitter", "governance")


def scenario(name: str) -> Scenario:
    """Imported when asked for, so that a command line that only needs the names is quick."""
    run: Scenario = import_module(f"sits_sim.scenarios.{name}").run
    return run
